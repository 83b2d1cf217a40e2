"""Where the generated pages find the code they describe: the one place that names modules."""

from __future__ import annotations

from importlib import import_module
from typing import Any

MODULES: dict[str, tuple[str, ...]] = {
    "cli": ("hoptui.cli.main",),
    "actions": ("hoptui.tui.actions",),
    "config": ("hoptui.settings.config", "hoptui.viewer.config"),
    "retention": ("hoptui.daemon.storage.retention", "hoptui.daemon.retention"),
    "messages": ("hoptui.protocol.messages", "hoptui.wire.messages"),
    "devices": ("hoptui.domain.devices", "hoptui.wire.devices"),
    "tuning": ("hoptui.domain.tuning", "hoptui.wire.tuning"),
    "readings": ("hoptui.presentation.readings", "hoptui.viewer.meanings"),
    "database": ("hoptui.recording.database",),
}
"""A name used by the generators, and the modules that may hold it: the first one that exists is used."""

RENAMED: dict[str, str] = {}
"""Modules that the glossary names by their new path, and the path to try while the new one does not exist."""


def load(name: str) -> Any:
    """The module of a name in `MODULES`.

    Raises:
        ModuleNotFoundError: none of its paths exists.
    """
    return _first(*MODULES[name])


def resolve(path: str) -> Any:
    """The class or function of a dotted path such as `hoptui.sdk.run.Run`.

    Raises:
        ModuleNotFoundError, AttributeError: there is no such module, or nothing of that name in it.
    """
    module, _, name = path.rpartition(".")
    return getattr(_first(module, *filter(None, [RENAMED.get(module)])), name)


def _first(*paths: str) -> Any:
    for path in paths[:-1]:
        try:
            return import_module(path)
        except ModuleNotFoundError as error:
            if error.name is None or not path.startswith(error.name):
                raise
    return import_module(paths[-1])
