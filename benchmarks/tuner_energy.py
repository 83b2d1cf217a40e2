"""The tuner with the objective energy on real GPUs, against the energy counter of the driver.

Each loop of `benchmarks.loops` starts from its own values and is tuned for energy. Then the values before and
after are set and measured in turns, in the same run: joules by NVML's counter of each GPU of the run, which
this process reads itself, and the work by the rows of the run. What the tuner reported stands beside it.

One GPU runs `gpt`; two also run `ddp_gpt`, one rank on each. Each loop has the GPUs alone. All loops together
take at most `--most-s`.

    python -m benchmarks.tuner_energy [--only gpt ddp_gpt] [--most-s 520]
    python -m benchmarks.tuner_energy --cpu

Without a GPU, no energy can be measured. `--cpu` measures only how soon the tuner says so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from benchmarks.live import Live, Point
from benchmarks.loops.catalogue import CPU, CUDA, LoopCase
from benchmarks.measure import bench, report, spread, tell, until
from benchmarks.tuner_grid import tried
from benchmarks.tuner_loops import live, visible
from hoptui.domain.tuning import Limits, TunerState
from hoptui.presentation import sentences, tuner_report

LOOPS = ("gpt", "ddp_gpt")
MOST_S = 520.0
END_S = 15.0
"""What stopping a run and removing its node takes."""
TUNE_SHARE = 0.6
"""The part of a loop's time that the tuner has. It needs the rest to measure both values in turns."""
TURNS = 5
SETTLE_S, SETTLE_ITERATIONS, WINDOW_S = 4.0, 6, 8.0
"""A window begins so long, and so many iterations, after a change."""
FEWEST_TURNS = 2


class Reading(NamedTuple):
    """Joules of all GPUs of a run since their drivers began, at `t` (monotonic ns)."""

    t: int
    joules: float


class EnergyMeter:
    """NVML's energy counters of these GPUs, by UUID.

    Raises:
        RuntimeError: NVML or a counter cannot be read.
    """

    def __init__(self, uuids: Sequence[str]) -> None:
        import pynvml

        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._handles = [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
            self.read()
        except pynvml.NVMLError as error:
            raise RuntimeError(f"the energy counter cannot be read: {error}") from error

    def read(self) -> Reading:
        before = time.monotonic_ns()
        millijoules = sum(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self._handles)
        return Reading((before + time.monotonic_ns()) // 2, millijoules / 1e3)

    def close(self) -> None:
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()


class Window(NamedTuple):
    """One measurement: joules for a unit of work, and units a second."""

    joules: float
    rate: float


def window(run: Live, read: Callable[[], Reading], seconds: float = WINDOW_S) -> Window:
    """Measure the values in effect, once the run has settled."""
    since = time.monotonic_ns()
    until(lambda: run.iterations(since) >= SETTLE_ITERATIONS, 240.0, "iterations after a change")
    time.sleep(max(0.0, SETTLE_S - (time.monotonic_ns() - since) / 1e9))
    begin = read()
    time.sleep(seconds)
    end = read()
    work = run.worked(begin.t, end.t)
    return Window((end.joules - begin.joules) / work, work / ((end.t - begin.t) / 1e9))


def in_turns(
    run: Live, read: Callable[[], Reading], before: Point, after: Point, deadline: float
) -> dict[str, Any]:
    """Measure both values in turns until the deadline (monotonic s), at least twice, at most `TURNS` times.

    A ratio is that of two windows of one turn.
    """
    old, new = list[Window](), list[Window]()
    longest = 0.0
    while len(old) < TURNS and (len(old) < FEWEST_TURNS or time.monotonic() + longest < deadline):
        began = time.monotonic()
        for values, windows in ((before, old), (after, new)):
            if not run.set(values):
                raise RuntimeError(f"the run does not hold {dict(values)}")
            windows.append(window(run, read))
        longest = max(longest, time.monotonic() - began)
    pairs = list(zip(old, new, strict=True))
    return {
        "joules_per_unit": {
            "before": spread([one.joules for one in old], 6),
            "after": spread([one.joules for one in new], 6),
        },
        "throughput": {
            "before": spread([one.rate for one in old], 1),
            "after": spread([one.rate for one in new], 1),
        },
        "energy_saved": spread([1 - b.joules / a.joules for a, b in pairs]),
        "throughput_change": spread([b.rate / a.rate - 1 for a, b in pairs]),
    }


def reported(state: TunerState) -> dict[str, Any]:
    """Return what the tuner has reported."""
    saving, pace = tuner_report.saving(state), tuner_report.throughput(state)
    return {
        "energy": saving._asdict() if saving is not None else None,
        "throughput": pace._asdict() if pace is not None else None,
        "says": sentences.standing(state),
        "trials": tried(state),
    }


def agreement(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return by how much the reported saving and change differ from the medians of the turns.

    `in_interval` is whether the difference is within the reported interval and the spread of the turns
    together.
    """
    both: dict[str, Any] = {}
    energy, pace = found["reported"]["energy"], found["reported"]["throughput"]
    for name, told, key in (("energy_saved", energy, "share"), ("throughput_change", pace, "gain")):
        measured = found.get(name)
        if told is None or measured is None:
            continue
        off = told[key] - measured["median"]
        wide = told["interval"] + (measured["max"] - measured["min"]) / 2
        both[name] = {"difference": round(off, 4), "in_interval": abs(off) <= wide}
    return both


@contextmanager
def using(devices: Sequence[str]) -> Iterator[None]:
    """Let the processes that are started meanwhile use these GPUs alone."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    try:
        yield
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def measured(case: LoopCase, most_s: float) -> dict[str, Any]:
    """Tune a loop for energy and measure it before and after, within `most_s` seconds."""
    deadline = time.monotonic() + most_s - END_S
    found: dict[str, Any] = {"ranks": case.ranks}
    with bench() as node, node.session() as session:
        run = live(node, session, case, ("--device", "cuda"), 0)
        run.rate(after_s=case.after_s)
        gpus = run.state().gpus
        meter = EnergyMeter(gpus)
        try:
            before = run.values()
            tune_s = TUNE_SHARE * (deadline - time.monotonic())
            began = time.monotonic()
            state = run.tuned(Limits(objective="energy"), tune_s)
            values = run.values()
            changed = {name: value for name, value in values.items() if value != before[name]}
            found |= {
                "gpus": len(gpus),
                "tuned_s": round(time.monotonic() - began, 1),
                "before": {name: before[name] for name in changed},
                "after": changed,
                "reported": reported(state),
            }
            tell(case.name, found)
            if changed:
                found |= in_turns(run, meter.read, found["before"], changed, deadline)
                found["agreement"] = agreement(found)
            else:
                found["unchanged"] = spread([window(run, meter.read).joules for _ in range(TURNS)], 6)
            tell(case.name, found)
            found["end"] = run.end()["ending"]
        finally:
            meter.close()
    return found


def refusal(case: LoopCase) -> dict[str, Any]:
    """Return what the tuner says of the energy of a loop on a CPU, and after how many seconds."""
    with bench() as node, node.session() as session:
        run = live(node, session, case, ("--device", "cpu", "--threads", "1"), 0)
        began = time.monotonic()
        answer = session.tune(run.state().run, "start", limits=Limits(objective="energy"))
        took_s = time.monotonic() - began
        text = sentences.refusal(answer)
        return {
            "granted": answer.granted,
            "says": text,
            "took_s": round(took_s, 3),
            "end": run.end()["ending"],
        }


def on_gpus(names: Sequence[str], most_s: float) -> dict[str, Any]:
    """Measure the loops, one after another, each in an equal part of the time that is left."""
    deadline = time.monotonic() + most_s
    devices = visible()
    there = len(devices)
    cases = [case for case in CUDA["development"] if case.name in names]
    loops: dict[str, Any] = {}
    possible = [case for case in cases if case.ranks <= there]
    for case in cases:
        if case not in possible:
            loops[case.name] = {"not_measured": f"it needs {case.ranks} GPUs, and there are {there}"}
    for i, case in enumerate(possible):
        part = (deadline - time.monotonic()) / (len(possible) - i)
        try:
            with using(devices[: case.ranks]):
                loops[case.name] = measured(case, part)
        except (RuntimeError, TimeoutError, statistics.StatisticsError) as error:
            loops[case.name] = tell(case.name, {"not_measured": str(error)})
    return loops


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuner_energy")
    parser.add_argument("--only", nargs="+", choices=LOOPS, default=LOOPS)
    parser.add_argument("--most-s", type=float, default=MOST_S, help="seconds for all loops together")
    parser.add_argument("--cpu", action="store_true", help="measure how soon the tuner says that it cannot")
    options = parser.parse_args(list(arguments))
    if options.cpu:
        case = next(case for case in CPU["development"] if case.name == "gpt")
        return report("tuner_energy_cpu", {"loops": {case.name: refusal(case)}})
    if not visible():
        why = "there is no GPU, so no energy can be measured; --cpu measures how soon the tuner says so"
        print(json.dumps({"benchmark": "tuner_energy", "not_measured": why}), flush=True)
        return {"not_measured": why}
    return report("tuner_energy", {"loops": on_gpus(options.only, options.most_s)})


if __name__ == "__main__":
    sys.exit("not_measured" in main(sys.argv[1:]))
