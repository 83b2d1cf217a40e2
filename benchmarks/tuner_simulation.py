"""The tuner on runs that are simulated: how much of the best possible it gets, what it costs, what it breaks.

The tuner is the real one; the runs are those of `benchmarks.tuner_simulated`. The oracle always has the best
of the ladder's values that is safe, and pays nothing. What is `possible` is less: noise costs everybody, and
what is called safe runs out of memory now and then.

`python -m benchmarks.tuner_simulation [--seeds 60]`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from statistics import fmean, median, stdev
from typing import Any

from benchmarks.measure import report
from benchmarks.tuner_simulated import (
    CAPACITY,
    DRIFT_S,
    HOUR,
    LOADS,
    STEADY,
    Load,
    SimulatedRun,
    knob,
)
from hoptui.domain.tuning import Limits
from hoptui.presentation.tuner_report import regret
from hoptui.tuner.change_points import ChangePointDetector
from hoptui.tuner.search.space import notches
from hoptui.tuner.tuner import Tuner

SAFE = 1.12
"""What the oracle leaves for the tails of a peak."""
BORNE = 0.3
"""OOMs a run that are borne."""
SPIKES = 1.02
"""Iterations take so much longer for their spikes: one in a hundred takes three times as long."""
COLUMNS = {
    "of oracle": ("share_of_oracle", ".1%"),
    "±": ("standard_error", ".2%"),
    "p10": ("share_of_oracle_p10", ".1%"),
    "possible": ("possible", ".1%"),
    "untuned": ("untuned", ".1%"),
    "OOMs": ("ooms", ".2f"),
    "expected": ("ooms_expected", ".2f"),
    "at best": ("ooms_at_best", ".2f"),
    "changes": ("changes", ".1f"),
    "spent": ("spent", ".2%"),
    "regret": ("regret", ".2%"),
    "worst": ("regret_worst", ".2%"),
}


def drive(load: Load, seed: int, limits: Limits | None = None) -> tuple[SimulatedRun, Tuner]:
    """A whole run with the tuner on it."""
    run, tuner = SimulatedRun(load, seed), Tuner(limits or Limits(), 0, "bench")
    run.tuned_by(tuner, until=load.seconds)
    return run, tuner


def regret_of_first_hour(run: SimulatedRun, tuner: Tuner) -> float:
    """The work lost to trials in the first hour, as a share of that at the best known setting. Drives the run
    until then."""
    run.tuned_by(tuner, since=run.t, until=HOUR)
    found = regret(tuner.state)
    assert found is not None, "a simulated run reports the durations of its iterations"
    return found.share


def oracle(load: Load) -> float:
    """Samples of the best safe setting at every moment."""
    return sum(_best(load, t)[0] * seconds for t, seconds in _quarters(load))


def _quarters(load: Load) -> Iterator[tuple[float, float]]:
    """Moments that stand for all of a run, and how many seconds each stands for."""
    for begins, ends in ((0.0, 0.25), (0.25, 0.5), (0.5, 1.0)):
        yield (begins + ends) / 2 * load.seconds, (ends - begins) * load.seconds


def _best(load: Load, t: float) -> tuple[float, int]:
    """The highest rate (samples/s) of a safe setting at `t`, and its micro-batch."""
    rates = []
    for m in notches(knob("micro_batch", 1, 1024, "shape").spec):
        fits = (load.base + load.per * m) * SAFE <= CAPACITY - load.taken(t)
        if fits and (not load.batch or load.batch % m == 0):
            seconds, samples = load.iteration(m, 64, t)
            rates.append((samples / seconds, m))
    return max(rates, key=lambda found: (found[0], -found[1]))


def ooms_at_best(load: Load) -> float:
    """OOMs that the oracle's own settings would meet in a run."""
    return sum(_ooms(load, _best(load, t)[1], t) * seconds for t, seconds in _quarters(load))


def possible(load: Load, ooms: float) -> float:
    """The largest share of the oracle's samples with `ooms` OOMs a run, were everything known, and changes
    and OOMs free.

    Of all multiples of eight at every moment, mixed over time as suits best: the best of rate − price × OOMs,
    over all prices.
    """
    best = oracle(load)
    found: list[float] = []
    for price in (0.0, *(10 ** (k / 40) for k in range(80, 281))):
        worth = sum(
            seconds * max(_noisy(load, m, t) - price * _ooms(load, m, t) for m in _sizes(load))
            for t, seconds in _quarters(load)
        )
        found.append(
            worth + price * ooms
        )  # a bound, whatever the price (Lagrange); the least is the tightest
    return min(found) / best


def _sizes(load: Load) -> list[int]:
    return [m for m in range(8, 257, 8) if not load.batch or load.batch % m == 0]


def _noisy(load: Load, micro: int, t: float) -> float:
    """Return samples/s with the unavoidable noise and spikes."""
    seconds, samples = load.iteration(micro, 64, t)
    return samples / (seconds * SPIKES * math.exp(load.noise**2 / 2))


def _ooms(load: Load, micro: int, t: float) -> float:
    """OOMs a second."""
    seconds, _ = load.iteration(micro, 64, t)
    return load.likelihood(micro, t) / (seconds * SPIKES * math.exp(load.noise**2 / 2))


def scenario(load: Load, seeds: Sequence[int]) -> dict[str, float]:
    """Means over the seeds: share of the oracle's samples, OOMs, changes and share of the time that trials
    cost.

    `ooms_expected` is what the sizes that were held let expect, which scatters less than what was met;
    `ooms_at_best` the same of the oracle's. `regret` is the median of the first hour.
    """
    runs = [drive(load, seed) for seed in seeds]
    best = oracle(load)
    shares = sorted(run.samples / best for run, _ in runs)
    found = {
        "share_of_oracle": round(fmean(shares), 4),
        "standard_error": round(stdev(shares) / math.sqrt(len(shares)), 4) if len(shares) > 1 else math.nan,
        "share_of_oracle_p10": round(shares[len(shares) // 10], 4),
        "untuned": round(_untuned(load) / best, 4),
        "ooms": round(fmean(run.ooms for run, _ in runs), 3),
        "ooms_expected": round(fmean(run.expected_ooms for run, _ in runs), 3),
        "ooms_at_best": round(ooms_at_best(load), 3),
        "possible": round(possible(load, BORNE), 4),
        "changes": round(fmean(run.changes for run, _ in runs), 2),
        "most_changes": max(run.changes for run, _ in runs),
        "spent": round(fmean(tuner.state.spent for _, tuner in runs), 4),
    }
    regrets = [regret_of_first_hour(run, tuner) for run, tuner in runs]
    return found | {"regret": round(median(regrets), 5), "regret_worst": round(max(regrets), 5)}


def _untuned(load: Load) -> float:
    seconds, samples = load.iteration(load.start, load.workers, 0.0)
    return samples / seconds * load.seconds


def false_alarms(seeds: Sequence[int], hours: float = 24.0, iteration_s: float = 0.5) -> list[int]:
    """Alarms in a day of a run in which nothing happens but noise of 4 % and a drift of ±3 %."""
    load = Load(fixed=iteration_s, each=0.0)
    return [len(_shifts(SimulatedRun(load, seed), ChangePointDetector(), hours * HOUR)) for seed in seeds]


def delays(seeds: Sequence[int], drop: float = 0.15) -> list[int | None]:
    """Iterations until a real drop is noticed, each at another point of the drift; None: it was not, in a
    minute."""
    found: list[int | None] = []
    for seed in seeds:
        begins = 200.0 + DRIFT_S * (seed % 20) / 20
        run = SimulatedRun(Load(fixed=0.2, each=0.0, slower=1 / (1 - drop), slower_from=begins), seed)
        detector = ChangePointDetector()
        early, first = _shifts(run, detector, begins), run.step
        noticed = [step - first for step in _shifts(run, detector, begins + 60.0)]
        found.append(noticed[0] if noticed and not early else None)
    return found


def _shifts(run: SimulatedRun, detector: ChangePointDetector, seconds: float) -> list[int]:
    """The iterations at which shifts are noticed."""
    found = []
    while run.t < seconds:
        run.iterate()
        if run.step % 5 == 0 and detector.look(run.observation()) is not None:
            found.append(run.step)
    return found


def main() -> None:
    """Simulate and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=60, help="simulated runs of each kind")
    arguments, _ = parser.parse_known_args()
    seeds = range(1000, 1000 + arguments.seeds)
    figures: dict[str, Any] = {}
    print(f"{'':32}" + "".join(f"{title:>10}" for title in COLUMNS))
    for name, load in (LOADS | STEADY).items():
        found = figures[name] = scenario(load, seeds)
        print(f"{name:32}" + "".join(f"{found[key]:>10{form}}" for key, form in COLUMNS.values()), flush=True)
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
