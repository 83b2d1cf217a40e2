"""Where the generated pages find the code they describe: the one place that names modules."""

from __future__ import annotations

from importlib import import_module
from typing import Any

MODULES: dict[str, str] = {
    "cli": "hoptui.cli.main",
    "actions": "hoptui.tui.actions",
    "config": "hoptui.settings.config",
    "retention": "hoptui.daemon.storage.retention",
    "messages": "hoptui.protocol.messages",
    "devices": "hoptui.domain.devices",
    "readings": "hoptui.presentation.readings",
    "database": "hoptui.recording.database",
}
"""The names that the generators use, and their modules."""

OLD_NAMES: dict[str, str] = {
    "hoptui.sdk.KnobHandle": "hoptui.sdk.knobs.KnobHandle",
    "hoptui.sdk.RankGroup": "hoptui.sdk.ranks.Ranks",
    "hoptui.sdk.ranks.RankGroup": "hoptui.sdk.ranks.Ranks",
    "hoptui.sdk.daemon_link": "hoptui.sdk.link",
    "hoptui.sdk.daemon_link.DaemonLink": "hoptui.sdk.link.LinkThread",
    "hoptui.sdk.command_inbox": "hoptui.sdk.desk",
    "hoptui.sdk.command_inbox.CommandInbox": "hoptui.sdk.desk.Desk",
    "hoptui.sdk.command_execution": "hoptui.sdk.boundary",
    "hoptui.sdk.metric_values": "hoptui.sdk.values",
    "hoptui.sdk.send_buffer": "hoptui.sdk.outgoing",
}
"""Names of the documentation that do not exist yet, and what has the old name of the same thing."""


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
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        module = _module(".".join(parts[:length]))
        if module is None:
            continue
        found = module
        for name in parts[length:]:
            found = getattr(found, name)
        return found
    raise ModuleNotFoundError(path)


def present(path: str) -> str:
    """The path under which a name of the documentation can be found now."""
    module, _, name = path.rpartition(".")
    try:
        exists = hasattr(import_module(module), name)
    except ModuleNotFoundError:
        exists = False
    return path if exists else OLD_NAMES.get(path, path)


def _module(path: str) -> Any:
    """The module of a path, or an object that an old path stands for; None if there is neither."""
    try:
        return import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not path.startswith(error.name):
            raise
    old = OLD_NAMES.get(path)
    return resolve(old) if old is not None and old != path else None
