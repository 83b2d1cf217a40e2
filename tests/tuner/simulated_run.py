"""A run for the tuner to drive, without noise and without a clock: what it obeys, refuses or cannot hold is
scripted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import structs

from hoptui.domain.diagnosis import Advice, Diagnosis
from hoptui.domain.facts import Fact, fact, nested
from hoptui.domain.knobs import Cost, Effect, KnobSpec, KnobState, KnobValue
from hoptui.domain.tuning import Change, Limits
from hoptui.protocol.messages import CommandRecord, Origin, Stage
from hoptui.tuner.observation import MemoryReading, Observation, Proposal
from hoptui.tuner.tuner import Tuner

SECOND = 1_000_000_000
GIB = 1 << 30
PRODUCT = "micro_batch × grad_accum"
Values = Mapping[str, KnobValue]


def knob(
    name: str,
    value: KnobValue,
    *,
    effect: Effect = "speed",
    cost: Cost = "shape",
    most: int = 1024,
    **more: Any,
) -> KnobState:
    """A whole number from 1 to `most`, or a choice where `choices` are given."""
    kind: Any = "str" if isinstance(value, str) else "int"
    bounds: dict[str, Any] = {} if kind == "str" else {"min": 1, "max": most, "scale": "log"}
    given: dict[str, Any] = {"kind": kind, "default": value, "effect": effect, "cost": cost, **bounds}
    spec = KnobSpec(name=name, **(given | more))
    return KnobState(spec=spec, value=value)


def pair(micro: int = 8, accum: int = 64) -> tuple[KnobState, KnobState]:
    """A micro-batch and its pieces, whose product stays."""
    return knob("micro_batch", micro, keeps=PRODUCT), knob("grad_accum", accum, keeps=PRODUCT)


def launch_bound(values: Values) -> float:
    """A rate (samples/s) that grows with the micro-batch and levels off near 1000."""
    micro = float(values["micro_batch"])
    return micro / (0.02 + 0.001 * micro)


def level(_: Values) -> float:
    """A rate that no knob changes."""
    return 500.0


def grown(values: Values) -> int:
    """Memory that grows with the micro-batch, in bytes."""
    return round((10 + 0.2 * float(values["micro_batch"])) * GIB)


class Course:
    """A run with `knobs`, `rate` samples/s, `used` bytes of 80 GiB, half a second an iteration.

    `fate` says what becomes of a command, instead of `applied`, `reads` what is read back of a value. Fields
    may be changed between looks.
    """

    def __init__(
        self,
        *knobs: KnobState,
        rate: Callable[[Values], float] = launch_bound,
        used: Callable[[Values], int] | None = grown,
        fate: Callable[[CommandRecord], tuple[Stage, str] | None] = lambda _: None,
        limits: Limits | None = None,
        **more: Any,
    ) -> None:
        self.knobs = {k.spec.name: k for k in knobs or pair()}
        self.rate, self.used, self.fate = rate, used, fate
        self.tuner = Tuner(limits or Limits(), 0, "mara", **more)
        self.seconds = self.others = self.step = 0
        self.epoch = 1
        self.facts: dict[str, Any] = {}
        self.points: list[tuple[int, float]] = []
        self.records: list[CommandRecord] = []
        self.proposals: list[Proposal] = []
        self.obeys = True
        self.reads: Callable[[KnobValue], KnobValue] = lambda value: value

    @property
    def values(self) -> dict[str, KnobValue]:
        return {name: k.value for name, k in self.knobs.items()}

    def observation(self) -> Observation:
        read = (
            () if self.used is None else (MemoryReading(self.used(self.values), self.others * GIB, 80 * GIB),)
        )
        watts = self.facts.get("power_w", 300.0)
        known: dict[str, Any] = {"state": "live", "memories": read, "power_w": watts, "drawn_w": watts}
        return Observation(
            t=self.seconds * SECOND, epoch=self.epoch, knobs=tuple(self.knobs.values()),
            points=tuple(self.points[-200:]), records=tuple(self.records[-32:]), **(known | self.facts),
        )  # fmt: skip

    def look(self, seconds: int = 1, *, every: int = 1) -> Proposal | None:
        """So many seconds, a look and two iterations `every` so many; the last proposal."""
        last = None
        for _ in range(0, seconds, every):
            self.seconds += every
            if self.obeys:
                self._obey()
            if self.facts.get("state", "live") == "live":
                for _ in range(2):
                    self.step += 1
                    self.points.append((self.step, self.rate(self.values)))
            proposal = self.tuner.look(self.observation())
            if proposal is not None:
                self.proposals.append(last := proposal)
                self.tuner.sent({c.knob: self._command(c).id for c in proposal.changes})
        return last

    def until(self, check: Callable[[], object], seconds: int = 600) -> None:
        """Look on until `check` is true."""
        for _ in range(seconds):
            if check():
                return
            self.look()
        raise AssertionError(f"in vain; the tuner reports {self.tuner.state.facts}")

    def rest(self) -> None:
        """Look on until it tries nothing any more."""
        self.look(20)
        self.until(lambda: self.tuner.state.stand == "holding")

    def into_trial(self) -> tuple[Change, ...]:
        """Look on until a trial has been in effect for some iterations."""
        self.until(lambda: (trial := self.tuner.state.trial) is not None and trial.step is not None)
        self.look(2)
        assert self.tuner.state.trial is not None
        return self.tuner.state.trial.changes

    def person(self, name: str, value: KnobValue) -> None:
        """A person sets a knob, at the next boundary."""
        self._command(Change(knob=name, before=self.knobs[name].value, value=value), "person")

    def set(self, name: str, value: KnobValue) -> int:
        """The knob has a value; its version."""
        k = self.knobs[name]
        self.knobs[name] = structs.replace(k, value=value, version=k.version + 1, took_s=0.5)
        return k.version + 1

    def run_out(self, name: str, value: KnobValue) -> None:
        """Memory runs out: the run gives way, and the command that had asked for more is told."""
        version = self.set(name, value)
        i = max(i for i, r in enumerate(self.records) if r.knob == name and r.stage == "applied")
        self.records[i] = structs.replace(
            self.records[i],
            stage="reverted",
            effective=value,
            version=version,
            code="reverted",
            fields={"reason": "out of memory"},
        )

    def _command(self, change: Change, kind: Any = "tuner") -> CommandRecord:
        record = CommandRecord(
            id=f"c{len(self.records)}", run="r", epoch=self.epoch, verb="set", knob=change.knob,
            wanted=change.value, before=change.before, stage="scheduled",
            origin=Origin(kind=kind, user="mara"),
            t=self.seconds * SECOND,
        )  # fmt: skip
        self.records.append(record)
        return record

    def _obey(self) -> None:
        for i, record in enumerate(self.records):
            if record.stage != "scheduled" or record.wanted is None:
                continue
            if fate := self.fate(record):
                stage, code = fate
                self.records[i] = structs.replace(record, stage=stage, code=code)
                continue
            effective = self.reads(record.wanted)
            version = self.set(record.knob, effective)
            self.records[i] = structs.replace(
                record, stage="applied", step=self.step + 1, effective=effective, version=version, took_s=0.5
            )


def results(course: Course) -> list[str]:
    """How its trials ended, oldest first."""
    return [trial.result for trial in course.tuner.state.tried]


def diagnosed(verdict: str, *advice: Advice) -> Diagnosis:
    """A verdict that is sure of itself, with what it advises."""
    return Diagnosis(
        verdict=verdict, confidence=0.9, facts=(fact("gpu.sm_active", share=0.08),), advice=advice
    )


def codes(facts: Iterable[Fact]) -> list[str]:
    """The codes of facts."""
    return [one.code for one in facts]


def within(outer: Fact) -> Fact:
    """The reason that is among the fields of a fact."""
    reason = nested(outer.fields["why"])
    assert reason is not None, outer
    return reason
