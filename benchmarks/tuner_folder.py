"""The tuner on a run that trains on images from files, simulated: readers, the host's launches and the GPU
work at the same time.

The diagnosis and the tuner are the real ones. An iteration takes as long as the slowest of the three, which
none of them knows, and where two of them are about as slow no single knob brings much. The times are those of
ViT-B/16 on an H100 (docs/internals/benchmark_log.md).

`python -m benchmarks.tuner_folder [--seeds 60]`: the share of the best of the grid's throughput that the
tuner comes to, and what it does in an hour from values that leave nothing to gain.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from benchmarks.live import HELD_S
from benchmarks.measure import report, tell
from benchmarks.tuner_grid import CASES, LEAST_RATIO, MOST_TRIALS, TUNE_S, found_after
from benchmarks.tuner_simulated import GB, HOUR, SECOND, Steered, knob
from hoptui.daemon.diagnosis import FEW, LEAST_NS, WINDOW_NS
from hoptui.daemon.tuning import POINTS
from hoptui.diagnosis.verdict import Diagnostician
from hoptui.diagnosis.window import GpuWindow, ObservationWindow
from hoptui.domain.knobs import KnobState
from hoptui.domain.pacing import DEFAULT
from hoptui.domain.tuning import Limits
from hoptui.tuner.effect import WARM_UP
from hoptui.tuner.observation import MemoryReading, Observation
from hoptui.tuner.tuner import Tuner
from hoptui_trainer.vision.images import CHUNK

STEP_S, IMAGE_S = 0.0052, 0.0002577
"""An iteration on the GPU and each of its images, seconds: 38.2 ms for 128, 71.7 for 256, 137 for 512."""
BASE_GB, IMAGE_GB = 5.0, 0.026
COMPILES_S, CHANGES_S = 22.0, 0.3
"""What a new size costs, and everything else."""
SWAYS_S = 6.0
"""For about so long a process stays as slow as it is: on a node with neighbours one reader brought 1,100 to
2,070 images, second by second."""
WINDOW_S = WINDOW_NS / SECOND
CORES = 16
STEADY, STARTS = 400, 5
"""Iterations per rate, and number of runs."""
BEST = (512, 8)
"""A batch and readers that leave nothing to gain."""


@dataclass(frozen=True)
class Host:
    """What the host adds: `launch` seconds of the trainer an iteration and `chunk` for each chunk, `reads`
    images/s of one reader.

    Each reader slows everything on it by `crowd`; `noise` is how much its speed scatters from iteration to
    iteration, `sways` how much that of each process does over seconds, as others use its cores.
    """

    launch: float = 0.017
    chunk: float = 0.0007
    reads: float = 1450.0
    crowd: float = 0.0
    noise: float = 0.04
    sways: float = 0.0


HOSTS = {
    "at rest": Host(),
    "slow": Host(launch=0.022, chunk=0.0012, crowd=0.02, noise=0.08),
    "noisy": Host(crowd=0.01, noise=0.14),
    "slow readers": Host(reads=800.0, crowd=0.01, noise=0.06),
    "shared": Host(crowd=0.01, noise=0.08, sways=0.15),
    "crowded": Host(crowd=0.02, noise=0.1, sways=0.25),
}


class Core:
    """How much slower than usual a process is on the core where it runs: an Ornstein-Uhlenbeck process, in
    logarithms."""

    def __init__(self, sways: float, chance: random.Random) -> None:
        self._sways, self._chance = sways, chance
        self._at, self._value = 0.0, sways * chance.gauss(0, 1)

    def slowness(self, t: float) -> float:
        """The factor at `t` seconds, which never goes back."""
        kept = math.exp(-max(0.0, t - self._at) / SWAYS_S)
        self._value = kept * self._value + self._sways * math.sqrt(1 - kept * kept) * self._chance.gauss(0, 1)
        self._at = max(self._at, t)
        return math.exp(self._value)


class Iteration(NamedTuple):
    """When it ended, how long it took, how long the GPU waited for images, how long it and its SMs had work;
    seconds."""

    end: float
    took: float
    waited: float
    busy: float
    sm: float


class FolderRun(Steered):
    """A run whose batch is computed at once, seen and steered as the daemon sees and steers one."""

    def __init__(self, host: Host, seed: int, batch_size: int, num_workers: int) -> None:
        super().__init__(
            {
                "batch_size": knob("batch_size", batch_size, 1 << 16, "shape", effect="learning"),
                "num_workers": knob("num_workers", num_workers, 256, "rebuild"),
                "prefetch_factor": knob("prefetch_factor", 4, 64, "rebuild"),
            }
        )
        self._host, self._chance = host, random.Random(seed)
        self._core = Core(host.sways / 2, self._chance)
        self._mood = 0.0  # of the host: how much slower it is than usual, in its own deviations
        self._compiled = {batch_size}
        self._rows: deque[Iteration] = deque(maxlen=2048)
        self._doctor, self._diagnosed = Diagnostician(), 0.0
        self._counts_from = WARM_UP
        self._computed = 0.0  # when the GPU has done the last iteration
        self._start_readers()

    def iterate(self) -> None:
        """The boundary, and one iteration; the host is one ahead of the GPU at most."""
        self._obey()
        self.step += 1
        batch, host = self.value("batch_size"), self._host
        self._mood = 0.8 * self._mood + 0.6 * self._chance.gauss(0, 1)
        before, computed = self.t, self._computed
        ready = before
        for _ in range(math.ceil(batch / CHUNK)):
            ready = max(ready, self._read()) + host.chunk * self._slowness
            self._taken.append(ready)
        launched = ready + host.launch * self._slowness * self._core.slowness(before)
        computes = (STEP_S + IMAGE_S * batch) * math.exp(0.02 * self._chance.gauss(0, 1))
        waited = max(0.0, ready - computed)
        self._computed = max(max(computed, ready) + computes, launched)
        self.t = max(launched, computed)
        took = max(1e-4, self.t - before)
        self._rows.append(Iteration(self.t, took, waited, computes, computes * _sm(batch)))
        self.points.append((self.step, batch / took))
        del self.points[:-POINTS]
        if self.t - self._diagnosed >= DEFAULT.diagnose_s:
            self._diagnosed = self.t
            if (window := self._window()) is not None:
                self._doctor.look(window)

    def observation(self) -> Observation:
        """What the daemon would show of it."""
        used = BASE_GB + IMAGE_GB * self.value("batch_size")
        return Observation(
            t=round(self.t * SECOND), epoch=1, state="live", knobs=tuple(self.knobs.values()),
            points=tuple(self.points), records=tuple(self.records[-32:]),
            memories=(MemoryReading(round(used * GB), 0, 80 * GB),),
            diagnosis=self._doctor.told,
        )  # fmt: skip

    def carry_out(self, knob: KnobState) -> float:
        """A size is compiled once, and readers begin anew."""
        self._counts_from = self.step + WARM_UP
        self._doctor.changed()
        if knob.spec.name != "batch_size":
            self._start_readers()
            return CHANGES_S
        known = knob.value in self._compiled
        self._compiled.add(self.value("batch_size"))
        return CHANGES_S if known else COMPILES_S

    @property
    def _slowness(self) -> float:
        host = self._host
        return math.exp(host.noise * self._mood) * (1 + host.crowd * self.value("num_workers"))

    def _start_readers(self) -> None:
        readers, ahead = self.value("num_workers"), self.value("prefetch_factor")
        self._free = [self.t + CHANGES_S] * readers
        self._taken = deque([self.t + CHANGES_S] * (readers * ahead), maxlen=readers * ahead)
        self._cores = [Core(self._host.sways, self._chance) for _ in range(readers)]
        self._next = 0

    def _read(self) -> float:
        """When the next chunk is there: its reader has read the one before, and the place of one is free that
        was taken."""
        reader = self._next % len(self._free)
        self._next += 1
        core = self._cores[reader].slowness(self.t)
        took = CHUNK / self._host.reads * core * self._slowness * math.exp(0.15 * self._chance.gauss(0, 1))
        self._free[reader] = max(self._free[reader], self._taken[0]) + took
        return self._free[reader]

    def _window(self) -> ObservationWindow | None:
        """What the daemon would look at: from some iterations after the last change on."""
        counted = min(len(self._rows), self.step - self._counts_from)
        rows = (
            [row for row in list(self._rows)[-counted:] if row.end > self.t - WINDOW_S] if counted > 0 else []
        )
        seconds = sum(row.took for row in rows)
        if len(rows) < FEW or seconds * SECOND < LEAST_NS:
            return None
        data = sum(row.waited for row in rows) / seconds
        sm = min(1.0, sum(row.sm for row in rows) / seconds)
        # Between two kernels of an iteration hardly anything is idle, however small they are.
        busy = max(sum(row.busy for row in rows) / seconds, 0.97 * (1 - data))
        capped = sm > 0.7
        gpu = GpuWindow(
            index=0, rows=20, busy=min(1.0, busy), sm=sm, tensor=0.48 * sm, fp32=0.1, dram=0.55 * sm,
            power_w=700 * min(1, 0.2 + sm), power_limit_w=700.0, clock_mhz=1840.0 if capped else 1980.0,
            clock_max_mhz=1980.0, capped=float(capped), hot=0.0, braked=0.0, memory=0.1, upload=6e8,
            upload_limit=64e9,
        )  # fmt: skip
        return ObservationWindow(
            t=round(self.t * SECOND), seconds=seconds, iterations=len(rows),
            phases={"data": data, "gradient": 0.96 * (1 - data)}, gpus=(gpu,),
            knobs=tuple(self.knobs.values()), cpus=CORES,
            host_cpu=0.1 + 0.8 * self.value("num_workers") / CORES,
        )  # fmt: skip


def _sm(batch: int) -> float:
    """The share of the GPU's own time in which its SMs have work: 0.89 with 128 images, 0.927 with 256, 0.948
    with 512."""
    return max(0.3, 1 - 0.111 * math.pow(128 / batch, 0.55))


def rate(host: Host, batch_size: int, num_workers: int, prefetch_factor: int = 4) -> float:
    """Images a second of these values, the median of some runs."""
    rates = []
    for seed in range(STARTS):
        run = FolderRun(host, seed, batch_size, num_workers)
        run.turn("prefetch_factor", prefetch_factor)
        for _ in range(WARM_UP):
            run.iterate()
        began = run.t
        for _ in range(STEADY):
            run.iterate()
        rates.append(STEADY * batch_size / (run.t - began))
    return median(rates)


def tuned(host: Host, seed: int) -> tuple[FolderRun, Tuner]:
    """A run from the grid's slow values, with the tuner on it until it has nothing more to try or its time is
    over."""
    case = CASES["vision"]
    run = FolderRun(host, seed, int(case.slow["batch_size"]), int(case.slow["num_workers"]))
    tuner = Tuner(Limits(learning=case.learning, budget=1.0), 0, "bench")
    run.tuned_by(tuner, since=WINDOW_S, until=WINDOW_S + TUNE_S, held_s=HELD_S)
    back = tuner.stop(round(run.t * SECOND))
    for name, value in back.targets.items() if back else ():
        run.turn(name, value)
    return run, tuner


def against(host: Host, seeds: Sequence[int]) -> dict[str, Any]:
    """Return the tuner's result on a host, as a share of the best of the grid."""
    best = max(rate(host, int(p["batch_size"]), int(p["num_workers"])) for p in CASES["vision"].points())
    shares, trials, found = [], [], []
    for seed in seeds:
        run, tuner = tuned(host, seed)
        values = {name: run.value(name) for name in run.knobs}
        shares.append(rate(host, **values) / best)
        trials.append(len(tuner.state.tried))
        found.append(found_after(tuner.state))
    return {
        "median": round(median(shares), 3),
        "least": round(min(shares), 3),
        "met": sum(share >= LEAST_RATIO for share in shares) / len(shares),
        "trials": median(trials),
        "most_trials": max(trials),
        "found_after": max(found),
    }


def steady(host: Host, seeds: Sequence[int], learning: Sequence[str]) -> dict[str, Any]:
    """An hour from values that leave nothing to gain: the most changes of a run, and the most of its time
    that trials took."""
    changes, spent = [], []
    for seed in seeds:
        run, tuner = FolderRun(host, seed, *BEST), Tuner(Limits(learning=tuple(learning)), 0, "bench")
        run.tuned_by(tuner, since=WINDOW_S, until=WINDOW_S + HOUR)
        changes.append(run.changes)
        spent.append(tuner.state.spent)
    return {"most_changes": max(changes), "most_spent": round(max(spent), 4)}


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Simulate and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuner_folder")
    parser.add_argument("--seeds", type=int, default=60, help="simulated runs on each host")
    seeds = range(parser.parse_args(list(arguments)).seeds)
    found = {name: tell(name, against(host, seeds)) for name, host in HOSTS.items()}
    few = seeds[: math.ceil(len(seeds) / 15)]
    for name, host in HOSTS.items():
        found[name]["an hour, nothing to gain"] = tell(
            name, {"speed": steady(host, few, ()), "learning": steady(host, few, CASES["vision"].learning)}
        )
    met = {
        f"{name}: found within {MOST_TRIALS} trials": f["found_after"] <= MOST_TRIALS
        for name, f in found.items()
    }
    return report("tuner_folder", {"seeds": len(seeds), "hosts": found, "met": met})


if __name__ == "__main__":
    main(sys.argv[1:])
