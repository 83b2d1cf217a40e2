"""Runs that are simulated for the tuner: a formula for the time and the memory of an iteration, with all that
makes it hard.

Noise as correlated as iterations are (AR(1) of 0.5), a spike of three times in a hundred, a drift of ±3 % in
five minutes, five slow iterations after each change, and memory peaks with heavy tails. A run obeys commands
at the next iteration, as runs do, and gives way to half where memory runs out, which costs 20 s. Its memory
is read as the daemon reads it: too late, too high.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, replace

from msgspec import structs

from hoptui.domain.diagnosis import Advice, Diagnosis
from hoptui.domain.facts import fact
from hoptui.domain.knobs import Cost, Effect, KnobSpec, KnobState, KnobValue
from hoptui.protocol.messages import CommandRecord, Origin
from hoptui.tuner.change_points import ChangePointDetector
from hoptui.tuner.observation import MemoryReading, Observation, Proposal
from hoptui.tuner.tuner import Tuner

SECOND = 1_000_000_000
GB = 1_000_000_000
CAPACITY = 80.0
"""Memory of the GPU, GB, as are all sizes of memory here."""
OOM_S = 20.0
ARRIVAL_S = 10.0
"""A neighbour takes its memory over so long: it has to be read and copied."""
DRIFT_S = 300.0
SHOWN = 200
HOUR = 3600.0
WINDOW_S = 3.0
"""The daemon takes the most that is held in so long for what is held now."""


@dataclass(frozen=True)
class Load:
    """A run's formula: a micro-batch of m takes `fixed` + `each` × m seconds and `base` + `per` × m GB.

    `input_rate` is what its readers deliver (samples/s; with `workers`, each of them), `thrash` how much
    slower it is in the last quarter of the memory, `batch` the samples of an iteration (0: one micro-batch).
    `neighbour` takes 35 GB in the second quarter.
    """

    start: int = 8
    fixed: float = 0.08
    each: float = 0.001
    base: float = 20.0
    per: float = 0.3
    input_rate: float = math.inf
    thrash: float = 0.0
    noise: float = 0.04
    batch: int = 0
    workers: int = 0
    neighbour: bool = False
    seconds: float = 1800.0
    slower_from: float = math.inf
    slower: float = 1.0
    tail: float = 0.02

    def diagnosis(self, micro: int, workers: int) -> Diagnosis | None:
        """What the daemon would say of it: nothing, unless it waits for its readers."""
        computed = micro / (self.fixed + self.each * micro)
        return DATA_BOUND if self.workers and self.input_rate * workers < computed else None

    def likelihood(self, micro: int, t: float) -> float:
        """How likely an iteration is to run out of memory: that |t| of four degrees of freedom is beyond what
        is free.
        """
        free = CAPACITY - self.taken(t)
        x = (free / (self.base + self.per * micro) - 1) / self.tail
        if x <= 0:
            return 1.0
        u = 1 + x * x / 4
        return 1 - 0.75 * x / math.sqrt(u) * (1 - x * x / (12 * u))

    def taken(self, t: float) -> float:
        """What others hold at `t`."""
        begins, ends = 0.25 * self.seconds, 0.5 * self.seconds
        if not self.neighbour or not begins < t < ends:
            return 0.0
        return 35.0 * min(1.0, (t - begins) / ARRIVAL_S)

    def iteration(self, micro: int, workers: int, t: float) -> tuple[float, int]:
        """Seconds and samples of an iteration, without noise."""
        pieces = max(1, self.batch // micro) if self.batch else 1
        samples = pieces * micro
        rate = self.input_rate * (workers if self.workers else 1)
        seconds = max(pieces * (self.fixed + self.each * micro), samples / rate)
        filled = (self.base + self.per * micro) / CAPACITY
        if self.thrash and filled > 0.75:
            seconds *= 1 + self.thrash * (filled - 0.75)
        return seconds * (self.slower if t >= self.slower_from else 1.0), samples


DATA_BOUND = Diagnosis(
    verdict="data-bound",
    confidence=0.9,
    facts=(fact("phase.share", phase="data", share=0.7),),
    advice=(Advice(knob="num_workers", direction="up"),),
)
LOADS = {
    "memory-limited": Load(),
    "early plateau": Load(fixed=0.02, each=0.002, input_rate=300, per=0.1),
    "interior peak": Load(fixed=0.06, each=0.0012, per=0.25, thrash=2.5),
    "too large at first": Load(start=192, fixed=0.06, each=0.0012, per=0.25, thrash=2.5, tail=0.01),
    "noisy": Load(noise=0.15),
    "neighbour": Load(neighbour=True),
    "micro-batch × pieces": Load(batch=512, seconds=7200.0),
    "workers": Load(start=64, fixed=0.02, each=0.0005, input_rate=100, workers=2, tail=0.01),
}
STEADY = {
    "steady, on a plateau": Load(start=32, fixed=0.02, each=0.002, input_rate=300, per=0.1, seconds=HOUR),
    "steady, at the limit of memory": Load(start=128, tail=0.005, seconds=HOUR),
}


def peak_excess(chance: random.Random) -> float:
    """Return |t| with 4 degrees of freedom: how far a peak of memory lies above the usual."""
    return abs(chance.gauss(0, 1)) / math.sqrt(chance.gammavariate(2, 0.5))


class Steered:
    """A run that obeys commands at its next boundary: `t` seconds and `step` iterations old, its `points` and
    their `durations` as in an observation.
    """

    def __init__(self, knobs: dict[str, KnobState]) -> None:
        self.knobs = knobs
        self.t = 0.0
        self.step = self.changes = 0
        self.points: list[tuple[int, float]] = []
        self.durations: list[tuple[int, float]] = []
        self.records: list[CommandRecord] = []

    def value(self, name: str) -> int:
        value = self.knobs[name].value if name in self.knobs else 0
        assert isinstance(value, int)
        return value

    def send(self, proposal: Proposal) -> dict[str, str]:
        """Commands made of a proposal, which the next boundary carries out."""
        ids = {}
        for change in proposal.changes:
            ids[change.knob] = f"c{len(self.records)}"
            self.records.append(
                CommandRecord(
                    id=ids[change.knob], run="r", epoch=1, verb="set", knob=change.knob, wanted=change.value,
                    before=change.before, stage="scheduled", origin=Origin(kind="tuner"),
                    purpose=proposal.why, t=round(self.t * SECOND),
                )
            )  # fmt: skip
        self.changes += 1
        return ids

    def turn(self, name: str, value: KnobValue) -> int:
        """The knob has a value; its version."""
        knob = self.knobs[name]
        self.knobs[name] = structs.replace(knob, value=value, version=knob.version + 1)
        return knob.version + 1

    def tuned_by(self, tuner: Tuner, *, until: float, since: float = 0.0, held_s: float = math.inf) -> None:
        """Run on to `until` seconds with the tuner, which looks once a second from `since` on, as in the
        daemon; or until it has had nothing to try for `held_s`.
        """
        detector = ChangePointDetector()
        looked, held = since, math.inf
        while self.t < min(until, held + held_s):
            self.iterate()
            if self.t - looked < 1.0:
                continue
            looked = self.t
            observation = self.observation()
            proposal = tuner.look(replace(observation, shift=detector.look(observation)))
            if proposal is not None:
                tuner.sent(self.send(proposal))
            held = min(held, self.t) if tuner.state.stand == "holding" else math.inf

    def iterate(self) -> None:
        """The boundary, and one iteration."""
        raise NotImplementedError

    def observation(self) -> Observation:
        """What the daemon would show of it."""
        raise NotImplementedError

    def carry_out(self, knob: KnobState) -> float:
        """Apply a knob's new value. Returns the seconds that the run pauses for it."""
        raise NotImplementedError

    def _obey(self) -> None:
        for i, record in enumerate(self.records):
            if record.stage != "scheduled" or record.wanted is None:
                continue
            self.turn(record.knob, record.wanted)
            took = self.carry_out(self.knobs[record.knob])
            self.t += took
            self.knobs[record.knob] = structs.replace(self.knobs[record.knob], took_s=took)
            self.records[i] = structs.replace(
                record,
                stage="applied",
                step=self.step + 1,
                effective=record.wanted,
                version=self.knobs[record.knob].version,
                took_s=took,
            )


class SimulatedRun(Steered):
    """A run that trains by `load`, seen and steered as the daemon sees and steers one."""

    def __init__(self, load: Load, seed: int) -> None:
        both = "micro_batch × grad_accum" if load.batch else ""
        knobs = {"micro_batch": knob("micro_batch", load.start, 1024, "shape", keeps=both)}
        if load.batch:
            knobs["grad_accum"] = knob("grad_accum", load.batch // load.start, 1024, "shape", keeps=both)
        if load.workers:
            knobs["num_workers"] = knob("num_workers", load.workers, 64, "rebuild")
        super().__init__(knobs)
        self.load = load
        self.samples = self.expected_ooms = 0.0
        self.ooms = 0
        self._chance = random.Random(seed)
        self._slow = 5
        self._state = self._chance.gauss(0, 1)
        self._held: deque[tuple[float, float]] = deque()  # when, and GB on the whole GPU

    def iterate(self) -> None:
        """The boundary, and one iteration."""
        self._obey()
        load, micro = self.load, self.value("micro_batch")
        peak = (load.base + load.per * micro) * (1 + load.tail * peak_excess(self._chance))
        free = CAPACITY - load.taken(self.t)
        self.step += 1
        self.expected_ooms += load.likelihood(micro, self.t)
        if peak > free:
            self._run_out(micro)
            return
        held = peak + load.taken(self.t)
        self._state = 0.5 * self._state + math.sqrt(0.75) * self._chance.gauss(0, 1)
        seconds, samples = load.iteration(micro, self.value("num_workers"), self.t)
        seconds *= math.exp(load.noise * self._state) * (1 + 0.03 * math.sin(2 * math.pi * self.t / DRIFT_S))
        seconds *= 3 if self._chance.random() < 0.01 else 1
        seconds *= 2 if self._slow else 1
        self._slow = max(0, self._slow - 1)
        self.t += seconds
        self._held.append((self.t, held))
        self.samples += samples
        self.points.append((self.step, samples / seconds))
        self.durations.append((self.step, seconds))
        del self.points[:-SHOWN], self.durations[:-SHOWN]

    def observation(self) -> Observation:
        """What the daemon would show of it: the most that was held lately, and what others hold as read in
        this second.
        """
        load = self.load
        while self._held and self._held[0][0] < self.t - WINDOW_S:
            self._held.popleft()
        most, others = max((held for _, held in self._held), default=0.0), load.taken(math.floor(self.t))
        memories = (
            (MemoryReading(round((most - others) * GB), round(others * GB), round(CAPACITY * GB)),)
            if most
            else ()
        )
        return Observation(
            t=round(self.t * SECOND), epoch=1, state="live", knobs=tuple(self.knobs.values()),
            points=tuple(self.points), durations=tuple(self.durations), records=tuple(self.records[-32:]),
            memories=memories,
            diagnosis=load.diagnosis(self.value("micro_batch"), self.value("num_workers")),
        )  # fmt: skip

    def carry_out(self, knob: KnobState) -> float:
        self._slow = 5
        return 3.0 if knob.spec.cost == "rebuild" else 0.5

    def _run_out(self, micro: int) -> None:
        """Run out of memory: halve the micro batch from here on, and report it on the command."""
        self.ooms += 1
        self.t += OOM_S
        self._slow = 5
        half = max(1, micro // 2)
        version = self.turn("micro_batch", half)
        if self.load.batch:
            self.turn("grad_accum", self.load.batch // half)
        for i in range(len(self.records) - 1, -1, -1):
            if self.records[i].knob == "micro_batch" and self.records[i].stage == "applied":
                self.records[i] = structs.replace(
                    self.records[i], stage="reverted", effective=half, version=version, reason="out of memory"
                )
                break


def knob(
    name: str, value: int, most: int, cost: Cost, *, keeps: str = "", effect: Effect = "speed"
) -> KnobState:
    spec = KnobSpec(
        name=name,
        kind="int",
        default=value,
        min=1,
        max=most,
        scale="log",
        effect=effect,
        cost=cost,
        keeps=keeps,
    )
    return KnobState(spec=spec, value=value)
