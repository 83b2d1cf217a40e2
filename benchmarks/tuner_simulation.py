"""The tuner on runs that are simulated: how much of the best possible it gets, what it costs, what it breaks.

The tuner is the real one; a run here is a formula for the time and the memory of an iteration, with noise as correlated as
iterations are (AR(1) of 0.5), a spike of three times in a hundred, a drift of ±3 % in five minutes, five slow iterations
after each change, and memory peaks with heavy tails. It obeys commands at the next iteration, as runs do, and gives way to
half where memory runs out, which costs 20 s. The oracle always has the best of the ladder's values that is safe, and pays nothing.

`python -m benchmarks.tuner_simulation [--seeds 20]`.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from msgspec import structs

from benchmarks.measure import report
from hoptui.tuner.ladder import notches
from hoptui.tuner.scene import Memory, Proposal, Scene
from hoptui.tuner.shift import ShiftDetector
from hoptui.tuner.tuner import Tuner
from hoptui.wire.knobs import KnobSpec, KnobState, KnobValue
from hoptui.wire.messages import CommandRecord, Origin
from hoptui.wire.tuning import Advice, Diagnosis, Limits

SECOND = 1_000_000_000
GB = 1_000_000_000
CAPACITY = 80.0
"""Memory of the GPU, GB, as are all sizes of memory here."""
OOM_S = 20.0
ARRIVAL_S = 10.0
"""A neighbour takes its memory over so long: it has to be read and copied."""
SAFE = 1.12
"""What the oracle leaves for the tails of a peak."""
DRIFT_S = 300.0
SHOWN = 200
HOUR = 3600.0


@dataclass(frozen=True)
class Load:
    """A run's formula: a micro-batch of m takes `fixed` + `each` × m seconds and `base` + `per` × m GB.

    `input_rate` is what its readers deliver (samples/s; with `workers`, each of them), `thrash` how much slower it is in the
    last quarter of the memory, `batch` the samples of an iteration (0: one micro-batch). `neighbour` takes 35 GB in the
    second quarter.
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
    evidence=("waits for data 70 % of the time",),
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


@dataclass
class SimulatedRun:
    """A run that trains by `load`, seen and steered as the daemon sees and steers one."""

    load: Load
    seed: int
    t: float = 0.0
    step: int = 0
    samples: float = 0.0
    ooms: int = 0
    changes: int = 0
    points: list[tuple[int, float]] = field(default_factory=list)
    records: list[CommandRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        load = self.load
        self.knobs = {"micro_batch": _knob("micro_batch", load.start, 1024, "shape")}
        if load.batch:
            both = "micro_batch × grad_accum"
            self.knobs = {
                "micro_batch": _knob("micro_batch", load.start, 1024, "shape", keeps=both),
                "grad_accum": _knob("grad_accum", load.batch // load.start, 1024, "shape", keeps=both),
            }
        if load.workers:
            self.knobs["num_workers"] = _knob("num_workers", load.workers, 64, "rebuild")
        self._chance = random.Random(self.seed)
        self._slow = 5
        self._state = self._chance.gauss(0, 1)
        self._peak = 0.0

    def value(self, name: str) -> int:
        value = self.knobs[name].value if name in self.knobs else 0
        assert isinstance(value, int)
        return value

    def iterate(self) -> None:
        """The boundary, and one iteration."""
        self._obey()
        load, micro = self.load, self.value("micro_batch")
        tail = abs(self._chance.gauss(0, 1)) / math.sqrt(
            self._chance.gammavariate(2, 0.5)
        )  # |t| with 4 degrees of freedom
        peak = (load.base + load.per * micro) * (1 + load.tail * tail)
        free = CAPACITY - load.taken(self.t)
        self.step += 1
        if peak > free:
            self._run_out(micro)
            return
        self._peak = max(self._peak, peak)
        self._state = 0.5 * self._state + math.sqrt(0.75) * self._chance.gauss(0, 1)
        seconds, samples = load.iteration(micro, self.value("num_workers"), self.t)
        seconds *= math.exp(load.noise * self._state) * (1 + 0.03 * math.sin(2 * math.pi * self.t / DRIFT_S))
        seconds *= 3 if self._chance.random() < 0.01 else 1
        seconds *= 2 if self._slow else 1
        self._slow = max(0, self._slow - 1)
        self.t += seconds
        self.samples += samples
        self.points.append((self.step, samples / seconds))
        del self.points[:-SHOWN]

    def send(self, proposal: Proposal) -> dict[str, str]:
        """Commands made of a proposal, which the next boundary carries out."""
        ids = {}
        for change in proposal.changes:
            ids[change.knob] = f"c{len(self.records)}"
            self.records.append(
                CommandRecord(
                    id=ids[change.knob], run="r", epoch=1, verb="set", knob=change.knob, wanted=change.value,
                    before=change.before, stage="scheduled", origin=Origin(kind="tuner"), why=proposal.why,
                )
            )  # fmt: skip
        self.changes += 1
        return ids

    def scene(self) -> Scene:
        """What the daemon would show of it."""
        used, self._peak = self._peak, 0.0
        load = self.load
        memory = (
            Memory(round(used * GB), round(load.taken(self.t) * GB), round(CAPACITY * GB)) if used else None
        )
        return Scene(
            t=round(self.t * SECOND), epoch=1, state="live", knobs=tuple(self.knobs.values()), points=tuple(self.points),
            records=tuple(self.records[-32:]), memory=memory, diagnosis=load.diagnosis(self.value("micro_batch"), self.value("num_workers")),
        )  # fmt: skip

    def _obey(self) -> None:
        for i, record in enumerate(self.records):
            if record.stage != "scheduled" or record.wanted is None:
                continue
            took = 3.0 if self.knobs[record.knob].spec.cost == "rebuild" else 0.5
            self.t += took
            version = self._set(record.knob, record.wanted, took)
            self.records[i] = structs.replace(
                record,
                stage="applied",
                step=self.step + 1,
                effective=record.wanted,
                version=version,
                took_s=took,
            )
            self._slow = 5

    def _run_out(self, micro: int) -> None:
        """Memory ran out: half is computed at once from here on, and the command that asked for more is told."""
        self.ooms += 1
        self.t += OOM_S
        self._slow = 5
        half = max(1, micro // 2)
        version = self._set("micro_batch", half)
        if self.load.batch:
            self._set("grad_accum", self.load.batch // half)
        for i in range(len(self.records) - 1, -1, -1):
            if self.records[i].knob == "micro_batch" and self.records[i].stage == "applied":
                self.records[i] = structs.replace(
                    self.records[i], stage="reverted", effective=half, version=version, reason="out of memory"
                )
                break

    def _set(self, name: str, value: KnobValue, took: float | None = None) -> int:
        knob = self.knobs[name]
        took_s = knob.took_s if took is None else took
        self.knobs[name] = structs.replace(knob, value=value, version=knob.version + 1, took_s=took_s)
        return knob.version + 1


def drive(load: Load, seed: int, limits: Limits | None = None) -> tuple[SimulatedRun, Tuner]:
    """A whole run with the tuner on it, which looks once a second, as in the daemon."""
    run = SimulatedRun(load, seed)
    tuner, detector = Tuner(limits or Limits(), 0, "nobody"), ShiftDetector()
    looked = 0.0
    while run.t < load.seconds:
        run.iterate()
        if run.t - looked < 1.0:
            continue
        looked = run.t
        scene = run.scene()
        proposal = tuner.look(replace(scene, shift=detector.look(scene)))
        if proposal is not None:
            tuner.sent(run.send(proposal))
    return run, tuner


def oracle(load: Load) -> float:
    """Samples of the best safe setting at every moment."""
    quarters = ((0.0, 0.25), (0.25, 0.5), (0.5, 1.0))
    return sum(_best(load, (a + b) / 2 * load.seconds)[0] * (b - a) * load.seconds for a, b in quarters)


def _best(load: Load, t: float) -> tuple[float, int]:
    """The highest rate (samples/s) of a safe setting at `t`, and its micro-batch."""
    rates = []
    for m in notches(_knob("micro_batch", 1, 1024, "shape").spec):
        fits = (load.base + load.per * m) * SAFE <= CAPACITY - load.taken(t)
        if fits and (not load.batch or load.batch % m == 0):
            seconds, samples = load.iteration(m, 64, t)
            rates.append((samples / seconds, m))
    return max(rates, key=lambda found: (found[0], -found[1]))


def ooms_at_best(load: Load, seeds: Sequence[int]) -> float:
    """OOMs a run of the best setting, held from the start until the first one: what no tuner that uses it can avoid."""
    found = 0
    for seed in seeds:
        run = SimulatedRun(replace(load, start=_best(load, 0.0)[1], neighbour=False), seed)
        while run.t < load.seconds and not run.ooms:
            run.iterate()
        found += run.ooms
    return found / len(seeds)


def scenario(load: Load, seeds: Sequence[int]) -> dict[str, float]:
    """Means over the seeds: share of the oracle's samples, OOMs (and those of the best setting alone), changes and share of the time that trials cost."""
    runs = [drive(load, seed) for seed in seeds]
    best = oracle(load)
    shares = sorted(run.samples / best for run, _ in runs)
    return {
        "share_of_oracle": round(fmean(shares), 4),
        "share_of_oracle_p10": round(shares[len(shares) // 10], 4),
        "untuned": round(_untuned(load) / best, 4),
        "ooms": round(fmean(run.ooms for run, _ in runs), 3),
        "ooms_at_best": round(ooms_at_best(load, seeds), 3),
        "changes": round(fmean(run.changes for run, _ in runs), 2),
        "most_changes": max(run.changes for run, _ in runs),
        "spent": round(fmean(tuner.state.spent for _, tuner in runs), 4),
    }


def _untuned(load: Load) -> float:
    seconds, samples = load.iteration(load.start, load.workers, 0.0)
    return samples / seconds * load.seconds


def false_alarms(seeds: Sequence[int], hours: float = 24.0, iteration_s: float = 0.5) -> list[int]:
    """Alarms in a day of a run in which nothing happens but noise of 4 % and a drift of ±3 %."""
    load = Load(fixed=iteration_s, each=0.0)
    return [len(_shifts(SimulatedRun(load, seed), ShiftDetector(), hours * HOUR)) for seed in seeds]


def delays(seeds: Sequence[int], drop: float = 0.15) -> list[int | None]:
    """Iterations until a real drop is noticed, each at another point of the drift; None: it was not, in a minute."""
    found: list[int | None] = []
    for seed in seeds:
        begins = 200.0 + DRIFT_S * (seed % 20) / 20
        run = SimulatedRun(Load(fixed=0.2, each=0.0, slower=1 / (1 - drop), slower_from=begins), seed)
        detector = ShiftDetector()
        early, first = _shifts(run, detector, begins), run.step
        noticed = [step - first for step in _shifts(run, detector, begins + 60.0)]
        found.append(noticed[0] if noticed and not early else None)
    return found


def _shifts(run: SimulatedRun, detector: ShiftDetector, seconds: float) -> list[int]:
    """The iterations at which shifts are noticed."""
    found = []
    while run.t < seconds:
        run.iterate()
        if run.step % 5 == 0 and detector.look(run.scene()) is not None:
            found.append(run.step)
    return found


def _knob(name: str, value: int, most: int, cost: Any, keeps: str = "") -> KnobState:
    spec = KnobSpec(
        name=name,
        kind="int",
        default=value,
        min=1,
        max=most,
        scale="log",
        effect="speed",
        cost=cost,
        keeps=keeps,
    )
    return KnobState(spec=spec, value=value)


def main() -> None:
    """Simulate and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="simulated runs of each kind")
    arguments, _ = parser.parse_known_args()
    seeds = range(1000, 1000 + arguments.seeds)
    figures: dict[str, Any] = {}
    print(
        f"{'':32}{'of oracle':>10}{'p10':>8}{'untuned':>9}{'OOMs':>7}{'at best':>9}{'changes':>9}{'spent':>8}"
    )
    for name, load in (LOADS | STEADY).items():
        found = figures[name] = scenario(load, seeds)
        print(
            f"{name:32}{found['share_of_oracle']:>10.1%}{found['share_of_oracle_p10']:>8.1%}{found['untuned']:>9.1%}"
            f"{found['ooms']:>7.2f}{found['ooms_at_best']:>9.2f}{found['changes']:>9.1f}{found['spent']:>8.2%}",
            flush=True,
        )
    days = false_alarms(seeds[:5])
    waits = delays(seeds)
    noticed = sorted(w for w in waits if w is not None)
    figures["false alarms in 24 h"] = {"mean": fmean(days), "most": max(days)}
    figures["a drop by 15 %"] = {
        "noticed": len(noticed) / len(waits),
        "iterations_median": noticed[len(noticed) // 2] if noticed else None,
        "iterations_most": noticed[-1] if noticed else None,
    }
    report("tuner_simulation", {"seeds": arguments.seeds, "figures": figures})


if __name__ == "__main__":
    main()
