"""Planted defects in samplers, targets, the tuner, and knobs that need a new process."""

from __future__ import annotations

from typing import Any

from hoptui.daemon import archive, sampler_supervisor, tuning
from hoptui.daemon.handlers import samplers, targets, tuners
from hoptui.daemon.state import command_log
from hoptui.domain.devices import Sample
from hoptui.recording import recording
from hoptui.sdk import knobs, process
from hoptui.tuner import overrides
from tests.simulation.defects import Patch, defect, nothing


@defect("a trial that a killed daemon has left is not undone", "tune", "work", "kill daemon")
def _not_undone() -> list[Patch]:
    return [(module, "unfinished", lambda state: None) for module in (tuning, tuners)]


@defect("a trial begins before it is on disk", "tune", "work", "kill in trial")
def _trial_in_memory() -> list[Patch]:
    return [(archive.Archive, "keep", lambda self, run: lambda: True)]


@defect("the tuner sets what a user has set", "tune", "set batch")
def _tuner_ignores_users() -> list[Patch]:
    return [(overrides.KnobOverrides, "choose", nothing), (command_log.Book, "_hold", nothing)]


@defect("a sampler that died is not replaced", "kill sampler")
def _no_successor() -> list[Patch]:
    def never(self: Any, now: float) -> None:
        self._next_start = now + 1e9

    return [(sampler_supervisor.Sampler, "_again", never)]


@defect("the first readings of a sampler are lost", "kill sampler")
def _lost_readings() -> list[Patch]:
    settled = sampler_supervisor.Sampler._settled

    def late(self: Any, child: Any, said: Any) -> Any:
        found = settled(self, child, said)
        if any(isinstance(message, Sample) for message in found) and not hasattr(child, "began"):
            child.began = True
            return [message for message in found if not isinstance(message, Sample)]
        return found

    return [(sampler_supervisor.Sampler, "_settled", late)]


@defect("readings are written twice")
def _readings_twice() -> list[Patch]:
    sample, newest = samplers.SamplerDesk._sample, recording.Recording._newest_stored

    def twice(self: Any, parts: Any) -> None:
        sample(self, parts)
        live = [run.id for run in self._node.registry.live()]
        self._node.archive.rows(live, [part for part in parts if part.source.startswith("gpu/")])

    def none(self: Any, source: str) -> int:
        return 0 if source.startswith("gpu/") else newest(self, source)

    return [(samplers.SamplerDesk, "_sample", twice), (recording.Recording, "_newest_stored", none)]


@defect("a target is judged on stale readings", "target")
def _stale_judgement() -> list[Patch]:
    judge, first = vars(targets)["judge"], dict[Any, Any]()

    def once(target: Any, *rest: Any) -> Any:
        found = judge(target, *rest)
        return first.setdefault(target, found) if found.mean is not None else found

    return [(targets, "judge", once)]


@defect("targets are not there for the next daemon", "target and kill")
def _forgotten_targets() -> list[Patch]:
    return [(targets.TargetDesk, "_publish", lambda self, run: self._node.touch())]


@defect("a knob is told as applied before the new process", "set width")
def _no_new_process() -> list[Patch]:
    return [(knobs.LiveKnob, "awaits_restart", property(lambda self: False))]


@defect("what a restart was for is not told", "set width")
def _lost_handover() -> list[Patch]:
    return [(process, "take_handover", lambda *_: None)]
