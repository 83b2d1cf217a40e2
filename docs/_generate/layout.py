"""Where the generated pages find the code they describe: the one place that names modules."""

from __future__ import annotations

from importlib import import_module
from typing import Any

MODULES: dict[str, str] = {
    "cli": "hoptui.cli.main",
    "actions": "hoptui.tui.actions",
    "config": "hoptui.settings",
    "retention": "hoptui.daemon.recordings",
    "messages": "hoptui.protocol.messages",
    "devices": "hoptui.domain.devices",
    "gpu_readings": "hoptui.presentation.gpu_readings",
    "readings": "hoptui.presentation.readings",
    "verdicts": "hoptui.presentation.sentences.diagnosis",
    "database": "hoptui.recording.database",
}
"""The names that the generators use, and their modules."""


def load(name: str) -> Any:
    """The module of a name in `MODULES`.

    Raises:
        ModuleNotFoundError: there is no such module.
    """
    return import_module(MODULES[name])


def resolve(path: str) -> Any:
    """The module, class, method or function of a dotted path such as `hoptui.sdk.run.Run.phase`.

    Raises:
        ModuleNotFoundError, AttributeError: there is no such module, or nothing of that name in it.
    """
    module, names = path, list[str]()
    while True:
        try:
            found: Any = import_module(module)
            break
        except ModuleNotFoundError as error:
            if "." not in module or (error.name is not None and not path.startswith(error.name)):
                raise
            module, _, name = module.rpartition(".")
            names.insert(0, name)
    for name in names:
        found = getattr(found, name)
    return found
