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

OLD_NAMES: dict[str, str] = {
    # Names of the documentation, and where the same thing is while the packages have not moved yet.
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
    "hoptui.domain.tuning.Measured": "hoptui.wire.measured.Measured",
    "hoptui.domain": "hoptui.wire",
    "hoptui.protocol": "hoptui.wire",
    "hoptui.node": "hoptui.wire",
    "hoptui.domain.throughput": "hoptui.wire.pace",
    "hoptui.diagnosis": "hoptui.tuner",
    "hoptui.diagnosis.idle_causes": "hoptui.tuner.waiting",
    "hoptui.diagnosis.saturation": "hoptui.tuner.capacity",
    "hoptui.tuner.trial.budget": "hoptui.tuner.budget",
    "hoptui.tuner.search.space": "hoptui.tuner.ladder",
    "hoptui.tuner.search.memory_model": "hoptui.tuner.memory",
    "hoptui.tuner.measurement": "hoptui.tuner",
    "hoptui.tuner.measurement.change_points": "hoptui.tuner.shift",
    "hoptui.tuner.measurement.incumbent": "hoptui.tuner.incumbent",
    "hoptui.telemetry.metrics_table": "hoptui.telemetry.readings",
    "hoptui.client": "hoptui.viewer",
    "hoptui.client.client": "hoptui.viewer.client",
    "hoptui.client.conversation": "hoptui.viewer.protocol",
    "hoptui.model": "hoptui.viewer",
    "hoptui.presentation": "hoptui.viewer",
    "hoptui.presentation.readings": "hoptui.viewer.meanings",
    "hoptui.presentation.diagnosis": "hoptui.viewer.verdicts",
    "hoptui.settings": "hoptui.viewer",
    "hoptui.settings.config": "hoptui.viewer.config",
    "hoptui.daemon.handlers": "hoptui.daemon",
    "hoptui.daemon.state.row_buffers": "hoptui.daemon.rings",
    "hoptui.daemon.state.command_log": "hoptui.daemon.commands",
    "hoptui.daemon.storage.archive": "hoptui.daemon.archive",
    "hoptui.daemon.diagnosis": "hoptui.daemon.diagnosing",
    "hoptui.daemon.state.change_effects": "hoptui.daemon.effects",
    "hoptui.daemon.prometheus.exposition": "hoptui.daemon.exposition",
    "hoptui.tui.frame_clock": "hoptui.tui.frame",
    "hoptui.tui.run_control": "hoptui.tui.steering",
    "hoptui.tui.components": "hoptui.tui.panels",
    "hoptui.tui.charts": "hoptui.tui.widgets",
    "hoptui.cli.commands": "hoptui.cli",
    "hoptui.cli.support.options": "hoptui.cli.options",
    "hoptui_trainer": "trainer",
}


def load(name: str) -> Any:
    """The module of a name in `MODULES`.

    Raises:
        ModuleNotFoundError: none of its paths exists.
    """
    return _first(*MODULES[name])


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


def _first(*paths: str) -> Any:
    for path in paths[:-1]:
        try:
            return import_module(path)
        except ModuleNotFoundError as error:
            if error.name is None or not path.startswith(error.name):
                raise
    return import_module(paths[-1])
