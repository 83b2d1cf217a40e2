"""The tuner on simulated loops that nobody prepared for it: knobs as their authors declare them.

Numeric choices, sizes without a partner, bools, wrong declarations, wrong diagnoses and unknown memory. The
grid has all combinations of values that are safe. A figure tells how fast the values are that the tuner ends
with, as a share of the grid's best, and what it took to get there.

The loops of `DEVELOPMENT` are written by hand; the rules of the tuner were made with them. Those of the test
lot are drawn by a seed: names, kinds, bounds and formulas. The lot `best` has the same loops. They begin with
the best values of the grid and last an hour: the tuner can only lose time.

`python -m benchmarks.tuner_unprepared [--lot test] [--seeds 40] [--loops NAME …] [--seed N]`
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median
from typing import Any, NamedTuple

from msgspec import structs

from benchmarks.measure import report, tell
from benchmarks.tuner_simulated import (
    CAPACITY,
    DRIFT_S,
    GB,
    OOM_S,
    SECOND,
    SHOWN,
    Steered,
    peak_excess,
)
from hoptui.domain.diagnosis import Diagnosis, Verdict
from hoptui.domain.facts import fact
from hoptui.domain.knobs import Cost, Effect, KnobSpec, KnobState, KnobValue
from hoptui.domain.tuning import Limits, written
from hoptui.presentation.tuner_report import regret
from hoptui.tuner.observation import MemoryReading, Observation
from hoptui.tuner.tuner import Tuner

HELD_S = 120.0
"""A tuner that has had nothing to try for so long is done."""
LONGEST_S, HOUR_S = 1800.0, 3600.0
SAFE = 1.05
"""What the grid leaves for the tails of a peak."""
NEAR = 0.95
"""Of the grid's best: the run has arrived."""
LEAST = 0.93
"""Of the grid's best: the target of every loop."""
DECLARED = 2 / 3
"""The share of the drawn loops that declare their optimizer, as adapters and the documented loops do."""
CONTEXT = 0.6
"""GB of a process on a GPU before it has a tensor there."""
FIXED_PARTS = (1 / 2, 2 / 3, 3 / 4, 3 / 4)
"""Parameters and state among parameters, gradients and state: of SGD, with momentum, and twice of Adam."""
REPORTED_S = 10.0
"""A run reads its optimizer so seldom, and a daemon may hear it late."""
Values = Mapping[str, KnobValue]


class Iteration(NamedTuple):
    """What an iteration takes: seconds, samples, and GB of the GPU's memory."""

    seconds: float
    samples: float
    memory: float


@dataclass(frozen=True)
class Loop:
    """A loop: its knobs, each with its grid, and what an iteration takes with given values.

    `verdict` is the daemon's diagnosis by the values. `known` is false where memory cannot be read. `fixed`
    are the GB of parameters and optimizer that a run reports which has declared its optimizer.
    """

    knobs: tuple[KnobState, ...]
    iteration: Callable[[Values], Iteration]
    verdict: Callable[[Values], Verdict] = lambda _: "unknown"
    noise: float = 0.03
    known: bool = True
    tail: float = 0.002
    """How far a peak of memory scatters, as a share of it."""
    fixed: float = 0.0

    def rate(self, values: Values) -> float:
        """Return samples/s."""
        seconds, samples, _ = self.iteration(values)
        return samples / seconds

    def best(self) -> float:
        """Return the highest rate of the grid among the values that are safe and leave learning alone."""
        return self.rate(self.best_values())

    def best_values(self) -> Values:
        """Return the values with that rate."""
        now: Values = {knob.spec.name: knob.value for knob in self.knobs}
        same = self.iteration(now).samples
        found = [now]
        for combination in itertools.product(*map(grid, self.knobs)):
            values = dict(zip(now, combination, strict=True))
            taken = self.iteration(values)
            if taken.memory * SAFE <= CAPACITY and taken.samples == same:
                found.append(values)
        return max(found, key=self.rate)

    def at_best(self) -> Loop:
        """Return the loop with these values at its start."""
        values = self.best_values()
        knobs = (structs.replace(knob, value=values[knob.spec.name]) for knob in self.knobs)
        return replace(self, knobs=tuple(knobs))


def grid(knob: KnobState) -> tuple[KnobValue, ...]:
    """Return the values that an exhaustive search would try."""
    spec = knob.spec
    if spec.kind == "bool":
        return (False, True)
    if spec.choices:
        return spec.choices
    low, high = int(spec.min or 1), int(spec.max or 64)
    return tuple(v for v in (2**k for k in range(12)) if low <= v <= high) or (low,)


class UnpreparedRun(Steered):
    """A run of a loop. A peak of memory above that of the GPU ends it: nothing in it catches that."""

    def __init__(self, loop: Loop, seed: int) -> None:
        super().__init__({knob.spec.name: knob for knob in loop.knobs})
        self.loop = loop
        self.lost = False
        self.samples = 0.0
        self._chance = random.Random(seed)
        self._state = self._chance.gauss(0, 1)
        self._slow = 5
        self._held = 0.0
        self._counts: list[tuple[int, float]] = []

    @property
    def values(self) -> dict[str, KnobValue]:
        """What is in effect."""
        return {name: knob.value for name, knob in self.knobs.items()}

    def iterate(self) -> None:
        """The boundary, and one iteration."""
        self._obey()
        taken = self.loop.iteration(self.values)
        self.step += 1
        peak = taken.memory * (1 + self.loop.tail * peak_excess(self._chance))
        if peak > CAPACITY:
            self.lost = True
            self.t += OOM_S
            return
        self._held = peak
        self._state = 0.5 * self._state + math.sqrt(0.75) * self._chance.gauss(0, 1)
        seconds = taken.seconds * math.exp(self.loop.noise * self._state)
        seconds *= 1 + 0.03 * math.sin(2 * math.pi * self.t / DRIFT_S)
        seconds *= 2 if self._slow else 1
        self._slow = max(0, self._slow - 1)
        self.t += seconds
        self.samples += taken.samples
        self.points.append((self.step, taken.samples / seconds))
        self._counts.append((self.step, taken.samples))
        self.durations.append((self.step, seconds))
        del self.points[:-SHOWN], self._counts[:-SHOWN], self.durations[:-SHOWN]

    def observation(self) -> Observation:
        """What the daemon would show of it."""
        fixed = round(self.loop.fixed * GB) if self.t >= REPORTED_S else 0
        memory = MemoryReading(round(self._held * GB), 0, round(CAPACITY * GB), fixed=fixed)
        verdict = self.loop.verdict(self.values)
        return Observation(
            t=round(self.t * SECOND), epoch=1, state="live", knobs=tuple(self.knobs.values()),
            points=tuple(self.points), durations=tuple(self.durations), records=tuple(self.records[-32:]),
            metric="samples/s",
            samples=tuple(self._counts), memories=(memory,) if self.loop.known and self._held else (),
            diagnosis=None if verdict == "unknown" else Diagnosis(
                verdict=verdict, confidence=0.8, facts=(fact("phase.share", phase="step", share=0.7),),
            ),
        )  # fmt: skip

    def carry_out(self, knob: KnobState) -> float:
        self._slow = 5
        return {"rebuild": 12.0, "shape": 0.5}.get(knob.spec.cost, 0.0)


def number(
    name: str, value: int, choices: tuple[int, ...] = (), most: int = 64, effect: Effect = "speed",
    cost: Cost = "free",
) -> KnobState:  # fmt: skip
    """Return a whole number, of some choices or from 1 to `most`."""
    bounds: dict[str, Any] = {"choices": choices} if choices else {"min": 1, "max": most}
    return KnobState(
        spec=KnobSpec(name=name, kind="int", default=value, effect=effect, cost=cost, **bounds), value=value
    )


def switch(name: str, value: bool = False, cost: Cost = "free") -> KnobState:
    """Return a bool."""
    return KnobState(
        spec=KnobSpec(name=name, kind="bool", default=value, effect="speed", cost=cost), value=value
    )


def word(name: str, value: str, choices: tuple[str, ...], cost: Cost = "free") -> KnobState:
    """Return a choice among words."""
    spec = KnobSpec(name=name, kind="str", default=value, choices=choices, effect="speed", cost=cost)
    return KnobState(spec=spec, value=value)


POWERS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Model:
    """A model that computes `batch` samples an iteration in pieces: a piece of m samples takes `launch` +
    `each` × m seconds, and `base` + `per` × m GB."""

    batch: int = 64
    launch: float = 0.02
    each: float = 0.003
    base: float = 8.0
    per: float = 0.9

    def of(self, micro: float, *, launch: float = 1.0, each: float = 1.0, per: float = 1.0) -> Iteration:
        """Return an iteration in pieces of `micro` samples. The others are factors."""
        pieces = math.ceil(self.batch / micro)
        seconds = pieces * (self.launch * launch + self.each * each * micro)
        return Iteration(seconds, self.batch, self.base + self.per * per * micro)


GPT = Model()


def _gpt(values: Values, model: Model = GPT) -> Iteration:
    fused = values.get("compile") is True
    return model.of(_int(values["micro_batch"]), launch=0.4 if fused else 1, each=0.62 if fused else 1)


def _int(value: KnobValue) -> int:
    assert isinstance(value, int)
    return value


def _launches(values: Values) -> Verdict:
    micro = _int(values["micro_batch"])
    return "launch-bound" if GPT.launch > GPT.each * micro else "compute-bound"


def _workers(values: Values) -> Iteration:
    computed = Model(launch=0.01, each=0.002).of(64)
    return computed._replace(seconds=max(computed.seconds, 64 / (90.0 * (_int(values["workers"]) or 0.7))))


def _waits(values: Values) -> Verdict:
    return "data-bound" if _int(values["workers"]) < 5 else "compute-bound"


def _modes(values: Values) -> Iteration:
    each = 0.6 if values["channels_last"] else 1.0
    each *= {"eager": 1.0, "sdpa": 0.8, "flash": 0.7}[str(values["attention"])]
    return Model().of(32, each=each)


def _batch_size(values: Values) -> Iteration:
    size = _int(values["batch_size"])
    return Iteration(0.05 + 0.001 * size, size, 10 + 0.1 * size)


def _pieces(values: Values) -> Iteration:
    return GPT.of(64 / _int(values["pieces"]))


def _mixed(values: Values) -> Iteration:
    """Return an iteration of a loop whose batch size is declared as speed, beside a knob that is."""
    found = _batch_size(values)
    return found._replace(seconds=found.seconds * (0.7 if values["fused"] else 1.0))


def _nothing(values: Values) -> Iteration:
    return Model().of(32)


def _slow(values: Values) -> Iteration:
    """Return an iteration of about a second, beside a size without effect."""
    return Iteration(0.6 if values["fused"] else 1.0, 64, 20.0)


def _checkpointed(values: Values) -> Iteration:
    """Return an iteration of a model that saves memory by computing twice."""
    again = values["checkpointing"] is True
    return Model(base=10, per=2.4).of(_int(values["rows"]), each=1.3 if again else 1, per=0.3 if again else 1)


def _together(values: Values) -> Iteration:
    """Return an iteration in which a way of computing helps large pieces only."""
    rows, fast = _int(values["rows"]), values["fast"] is True
    return Model(launch=0.03).of(rows, launch=1.35 if fast else 1.0, each=0.35 if fast else 1.0)


def _overlapped(values: Values) -> Iteration:
    """Return an iteration in which environments act while the model learns from the data before."""
    learns = Model(per=0.4).of(_int(values["micro_batch"]))
    acts = Model(base=1.0, per=0.1).of(_int(values["num_envs"]))
    return learns._replace(seconds=max(learns.seconds, acts.seconds), memory=learns.memory + acts.memory)


def _noisy_size(values: Values) -> Iteration:
    """Return an iteration of 1 to 3 s, in which each larger size gains less."""
    return Model(batch=256, launch=0.0078, base=6, per=1.7).of(_int(values["block"]))


DEVELOPMENT: Mapping[str, Loop] = {
    "numeric choices and compile": Loop(
        (number("micro_batch", 2, POWERS), switch("compile", cost="rebuild")), _gpt, _launches
    ),
    "the same, diagnosis unknown": Loop(
        (number("micro_batch", 2, POWERS), switch("compile", cost="rebuild")), _gpt
    ),
    "the same, diagnosis wrong": Loop(
        (number("micro_batch", 2, POWERS), switch("compile", cost="rebuild")), _gpt, lambda _: "compute-bound"
    ),
    "choices far apart": Loop((number("micro_batch", 2, (2, 8, 32)),), _gpt, _launches),
    "bounded number": Loop((number("micro_batch", 1, most=64),), _gpt, _launches),
    "workers as choices": Loop((number("workers", 1, (0, 1, 2, 4, 8, 16)),), _workers, _waits),
    "two ways of computing": Loop(
        (switch("channels_last"), word("attention", "eager", ("eager", "sdpa", "flash"))), _modes
    ),
    "batch size declared as speed": Loop((number("batch_size", 16, (8, 16, 32, 64)),), _batch_size),
    "the same beside another knob": Loop(
        (number("batch_size", 16, (8, 16, 32, 64)), switch("fused")), _mixed
    ),
    "knobs without effect": Loop((number("chunk", 4, (1, 2, 4, 8, 16)), switch("pinned")), _nothing),
    "saves memory": Loop((number("rows", 4, POWERS), switch("checkpointing", True)), _checkpointed),
    "helps large pieces only": Loop((number("rows", 2, POWERS), switch("fast")), _together),
    "two sizes that limit each other": Loop(
        (number("micro_batch", 2, POWERS), number("num_envs", 2, POWERS)), _overlapped
    ),
    "slow, noisy, a useless size first": Loop(
        (number("chunk", 4, (1, 2, 4, 8, 16)), switch("fused")), _slow, noise=0.1
    ),
    "slow, noisy, one size": Loop((number("block", 1, most=256),), _noisy_size, noise=0.1),
    "counts pieces": Loop((number("pieces", 32, (1, 2, 4, 8, 16, 32)),), _pieces),
    "counts pieces, begins between": Loop(
        (number("pieces", 16, most=64),), _pieces, lambda _: "compute-bound"
    ),
    "memory unknown": Loop((number("micro_batch", 2, POWERS),), _gpt, _launches, known=False),
    "noisy": Loop(
        (number("micro_batch", 2, POWERS), switch("compile", cost="rebuild")), _gpt, _launches, noise=0.12
    ),
    "at its best": Loop(
        (number("micro_batch", 64, POWERS), switch("compile", True, cost="rebuild")), _gpt, _launches
    ),
}

SIZES = ("piece", "rows", "bsz", "chunk_size", "tile", "microbatch", "n_seq", "block")
SWITCHES = ("fused", "compile", "fast_attn", "use_amp", "graph", "channels_last", "overlap")
LIMITS: tuple[Verdict, ...] = ("unknown", "unknown", "launch-bound", "compute-bound", "host-bound",
                               "memory-bandwidth-bound")  # fmt: skip


def drawn(seed: int) -> Loop:
    """Return a loop of the test lot."""
    dice = random.Random(seed)
    size, ways = dice.choice(SIZES), dice.sample(SWITCHES, dice.randint(0, 2))
    batch = 2 ** dice.randint(5, 8)
    model = Model(
        batch=batch,
        launch=math.exp(dice.uniform(math.log(0.002), math.log(0.04))),
        each=math.exp(dice.uniform(math.log(0.0005), math.log(0.005))),
        base=dice.uniform(2, 20),
        per=math.exp(dice.uniform(math.log(0.05), math.log(2.0))),
    )
    step = dice.choice((2, 2, 2, 4))
    choices = tuple(itertools.takewhile(lambda v: v <= batch, (step**k for k in range(9))))
    kind = dice.choice(("choices", "choices", "bounds"))
    start = dice.choice(choices[:2])
    knob = number(size, start, choices) if kind == "choices" else number(size, start, most=batch)
    factors = {way: (dice.uniform(0.4, 1.1), dice.uniform(0.6, 1.1)) for way in ways}
    idle = dice.random() < 0.3
    thrash = dice.choice((0.0, 0.0, 0.3))
    verdict = dice.choice(LIMITS)

    def iteration(values: Values) -> Iteration:
        launch = each = 1.0
        for way, (on_launch, on_each) in factors.items():
            if values[way]:
                launch, each = launch * on_launch, each * on_each
        micro = _int(values[size])
        each *= 1 + thrash * max(0.0, math.log2(micro * 4 / batch)) if micro * 4 > batch else 1.0
        return model.of(micro, launch=launch, each=each)

    costs: tuple[Cost, ...] = ("free", "rebuild")
    switches = tuple(switch(way, cost=dice.choice(costs)) for way in ways)
    extra = (number("verbosity", 2, (1, 2, 4)),) if idle else ()
    noise = dice.choice((0.02, 0.05, 0.1))
    knobs, fixed = (knob, *switches, *extra), _reported(seed, model.base)
    return Loop(knobs, iteration, lambda _: verdict, noise=noise, fixed=fixed)


def _reported(seed: int, base: float) -> float:
    """Return the GB of parameters and optimizer that a drawn loop reports, of the `base` that do not grow.

    Gradients and the context do not grow either, nor do up to 40 % of other tensors, such as buffers, frozen
    layers and averaged parameters. They are not reported.
    """
    dice = random.Random(f"optimizer {seed}")
    declared, part, others = dice.random() < DECLARED, dice.choice(FIXED_PARTS), dice.uniform(0.0, 0.4)
    return max(0.0, base - CONTEXT) * (1 - others) * part if declared else 0.0


def drive(loop: Loop, seed: int, limits: Limits | None = None) -> dict[str, Any]:
    """Tune a run until the tuner has nothing left to try, or half an hour is over."""
    run, tuner = UnpreparedRun(loop, seed), Tuner(limits or Limits(), 0, "bench")
    best, before = loop.best(), loop.rate(run.values)
    arrived, since, held = math.inf, 0.0, math.inf
    while run.t < LONGEST_S and run.t - held < HELD_S and not run.lost:
        run.tuned_by(tuner, until=run.t + 5.0, since=since)
        since = run.t
        now = loop.rate(run.values)
        arrived = min(arrived, run.t) if now >= NEAR * best else math.inf
        held = min(held, run.t) if tuner.state.stand == "holding" else math.inf
    tried = tuner.state.tried
    same = loop.iteration(run.values).samples == loop.iteration(_start(loop)).samples
    arrived = math.inf if run.lost else arrived
    return {
        "share": loop.rate(run.values) / best if same and not run.lost else 0.0,
        "before": before / best,
        "minutes": arrived / 60,
        "trials": len(tried),
        "lost": run.lost,
        "learning": not same,
        "spent_s": tuner.state.spent * tuner.state.lived_s,
        "values": run.values,
        "why": [str(f.fields.get("why", f.code)) for f in tuner.state.facts],
        "tried": [f"{written(t.changes)} {t.result}" for t in tried],
    }


def _start(loop: Loop) -> Values:
    return {knob.spec.name: knob.value for knob in loop.knobs}


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of some runs."""
    shares = [one["share"] for one in found]
    minutes = [one["minutes"] for one in found]
    return {
        "share, median": round(median(shares), 3),
        "share, least": round(min(shares), 3),
        "before, median": round(median(one["before"] for one in found), 3),
        "share >= 0.93": sum(share >= LEAST for share in shares),
        "share >= 0.95": sum(share >= NEAR for share in shares),
        "arrived": sum(map(math.isfinite, minutes)),
        "minutes, median": round(median(minutes), 1) if math.isfinite(median(minutes)) else None,
        "trials, mean": round(fmean(one["trials"] for one in found), 1),
        "trials, most": max(one["trials"] for one in found),
        "seconds spent, mean": round(fmean(one["spent_s"] for one in found), 1),
        "lost": sum(one["lost"] for one in found),
        "learning changed": sum(one["learning"] for one in found),
        "runs": len(found),
    }


def development(seeds: range, names: Collection[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the figures of each loop written by hand, or of those with these names."""
    for name, loop in DEVELOPMENT.items():
        if names and name not in names:
            continue
        found = [drive(loop, seed) for seed in seeds]
        figures = summary(found)
        tell(name, figures)
        if figures["share, least"] < NEAR:
            worst = min(found, key=lambda one: one["share"])
            print(f"       {worst['values']} {worst['why']} {worst['tried']}", file=sys.stderr)
        yield name, figures


def test(seeds: range) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the figures of the loops that are drawn."""
    found = [drive(drawn(seed), seed) for seed in seeds]
    yield "all", tell("drawn", summary(found))


def hour(loop: Loop, seed: int) -> dict[str, Any]:
    """Tune a loop that begins at its best for an hour: the share of the time that trials cost, and that of
    the work."""
    run, tuner = UnpreparedRun(loop.at_best(), seed), Tuner(Limits(), 0, "bench")
    run.tuned_by(tuner, until=HOUR_S)
    lost = regret(tuner.state)
    return {
        "spent": tuner.state.spent,
        "regret": lost.share if lost is not None else math.nan,
        "trials": len(tuner.state.tried),
        "share": 0.0 if run.lost else loop.rate(run.values) / loop.best(),
    }


def best(seeds: range) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the figures of loops that are drawn and begin at their best."""
    found = [hour(drawn(seed), seed) for seed in seeds]
    figures = {
        "spent, mean": round(fmean(one["spent"] for one in found), 4),
        "spent, median": round(median(one["spent"] for one in found), 4),
        "spent, most": round(max(one["spent"] for one in found), 4),
        "regret, median": round(median(one["regret"] for one in found), 4),
        "regret, most": round(max(one["regret"] for one in found), 4),
        "trials, mean": round(fmean(one["trials"] for one in found), 2),
        "share at the end, least": round(min(one["share"] for one in found), 3),
        "runs": len(found),
    }
    yield "all", tell("at their best", figures)


LOTS = {"development": development, "test": test, "best": best}


def main() -> None:
    """Simulate and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuner_unprepared")
    parser.add_argument("--lot", choices=LOTS, default="development")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each loop, or loops")
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument("--seed", type=int, help="this seed alone")
    parser.add_argument("--loops", nargs="+", choices=DEVELOPMENT, default=(), help="of the development lot")
    options = parser.parse_args()
    if options.loops and options.lot != "development":
        parser.error("--loops names loops of the development lot")
    seeds = range(options.first, options.first + options.seeds)
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    lot = partial(development, names=options.loops) if options.loops else LOTS[options.lot]
    report("tuner_unprepared", {"lot": options.lot, "seeds": len(seeds), "figures": dict(lot(seeds))})


if __name__ == "__main__":
    main()
