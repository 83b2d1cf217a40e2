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
    "hoptui.sdk.daemon_link.DaemonLink": "hoptui.sdk.link.LinkThread",
    "hoptui.sdk.daemon_link": "hoptui.sdk.link",
    "hoptui.sdk.command_inbox.CommandInbox": "hoptui.sdk.desk.Desk",
    "hoptui.sdk.command_inbox": "hoptui.sdk.desk",
    "hoptui.sdk.command_execution": "hoptui.sdk.boundary",
    "hoptui.sdk.metric_values": "hoptui.sdk.values",
    "hoptui.sdk.send_buffer": "hoptui.sdk.outgoing",
    "hoptui.tuner.measurement.change_points.ChangePointDetector": "hoptui.tuner.measurement.change_points.ShiftDetector",
    "hoptui.tuner.observation.Observation": "hoptui.tuner.observation.Scene",
    "hoptui.tuner.search.memory_guard.MemoryGuard": "hoptui.tuner.search.memory_guard.Room",
    "hoptui.tuner.trial.overrides.KnobOverrides": "hoptui.tuner.trial.overrides.People",
    "hoptui.tuner.trial.rollback.Rollback": "hoptui.tuner.trial.rollback.Return",
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
    try:
        return _existing(path)
    except (ModuleNotFoundError, AttributeError):
        for new, old in OLD_NAMES.items():
            if path == new or path.startswith(f"{new}."):
                return _existing(old + path.removeprefix(new))
        raise


def present(path: str) -> str:
    """The path under which a name of the documentation can be found now."""
    module, _, name = path.rpartition(".")
    try:
        exists = hasattr(import_module(module), name)
    except ModuleNotFoundError:
        exists = False
    return path if exists else OLD_NAMES.get(path, path)


def _existing(path: str) -> Any:
    """What a path stands for now: the longest part of it that is a module, and the names in that."""
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
