"""Changes that are collected first and sent together. Pure: what is staged, and what has changed under it."""

from __future__ import annotations

from typing import NamedTuple

from hoptui.domain.knobs import KnobSpec, KnobState, KnobValue
from hoptui.protocol.messages import RunState


class Seen(NamedTuple):
    """A knob as it was on screen when the person decided: its value, and its version in that epoch of the run."""

    epoch: int
    version: int
    value: KnobValue

    @classmethod
    def of(cls, knob: KnobState, epoch: int) -> Seen:
        return cls(epoch, knob.version, knob.value)

    def overtaken(self, knob: KnobState, epoch: int) -> bool:
        """Whether the knob was changed since. Versions begin anew with an epoch: across a restart the values tell."""
        return knob.value != self.value if epoch != self.epoch else knob.version != self.version


class Staged(NamedTuple):
    """One change that waits: `seen` is the knob as it was on screen when the person decided."""

    spec: KnobSpec
    value: KnobValue
    seen: Seen

    @property
    def before(self) -> KnobValue:
        """The value that would be changed."""
        return self.seen.value

    def overtaken(self, run: RunState | None) -> KnobState | None:
        """The knob of the run as somebody has set it since, None: nobody has."""
        knob = next((k for k in run.knobs if k.spec.name == self.spec.name), None) if run else None
        return knob if run and knob and self.seen.overtaken(knob, run.epoch) else None


class Staging:
    """The staged changes of every run, in the order in which they were added; one a knob."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, Staged]] = {}

    def add(self, run: str, knob: KnobState, value: KnobValue, seen: Seen) -> None:
        """Stage a value; an older one of the same knob is replaced in its place, and what is in effect already is none."""
        if value == knob.value:
            self.remove(run, knob.spec.name)
            return
        self._runs.setdefault(run, {})[knob.spec.name] = Staged(knob.spec, value, seen)

    def remove(self, run: str, knob: str) -> None:
        self._runs.get(run, {}).pop(knob, None)

    def keep(self, run: str, knob: KnobState, epoch: int) -> None:
        """Expect the value that somebody else has set from now on: the staged one is sent over it."""
        staged = self.find(run, knob.spec.name)
        if staged is not None:
            self._runs[run][knob.spec.name] = staged._replace(seen=Seen.of(knob, epoch))

    def find(self, run: str, knob: str) -> Staged | None:
        return self._runs.get(run, {}).get(knob)

    def of(self, run: str) -> list[Staged]:
        """What is staged of a run."""
        return list(self._runs.get(run, {}).values())

    def clear(self, run: str) -> None:
        self._runs.pop(run, None)
