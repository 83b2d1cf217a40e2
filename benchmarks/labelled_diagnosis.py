"""Verdicts for training loops of known limits, as people write them: right, sure, named line, and how soon.

`python -m benchmarks.labelled_diagnosis --lot test [--cpu] [--lanes N] [--only NAME…] [--watched-s S]`.
Each load runs for so many seconds after its first row. Its verdict is the one told then. Of several GPUs,
each lane has its own. The loads of several ranks run afterwards, and have a GPU for each rank. With four
processors or more a lane, the next load of a lane imports its packages while one is measured.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import IO, Any, NamedTuple, get_args

import psutil

from benchmarks.labelled.catalogue import LabelledLoad, Lot, all_loads, lot_of
from benchmarks.measure import Bench, bench, in_lanes, newer_state, report, tell
from benchmarks.training import TORCHRUN, gpus
from hoptui.client.session import Session
from hoptui.domain.diagnosis import Diagnosis
from hoptui.presentation.diagnosis import SURE, advice_text, evidence

WATCHED_S = 24.0
START_S = 90.0
"""The longest time until the first row."""
AHEAD = 4
"""Processors of a lane, from which on its next load imports its packages while one is measured."""
THREADS = "1"
"""Of a load, so that several may run at a time."""
BINS = (0.0, 0.5, 0.7, 0.9, 1.01)
"""Limits of the confidences that are counted together."""
HOST_SIDE = frozenset(("data-bound", "env-bound", "host-bound", "save-bound", "transfer-bound", "straggler"))
"""Verdicts whose line is to be named."""
LOTS: tuple[Lot, ...] = get_args(Lot)
RIGHT = {"gpu": 0.95, "cpu": 0.9}
LINES = 0.95
FIRST_S = 15.0


def watch(
    session: Session, load: LabelledLoad, child: subprocess.Popen[bytes], watched_s: float
) -> dict[str, Any]:
    """Follow a run for some seconds from its first row on, and return what was told of it."""
    name, state, known = f"labelled-{load.name}", 0, ""
    began, first_row, told = time.monotonic(), math.nan, None
    first_right, verdicts = math.nan, Counter[str]()
    while child.poll() is None and time.monotonic() - began < START_S + watched_s:
        delta = newer_state(session, state, wait_s=0.5)
        state, now = delta.state, time.monotonic()
        vital = delta.vitals.get(known)
        if vital is not None and vital.last_t and math.isnan(first_row):
            first_row = now - (delta.now - vital.last_t) / 1e9
        if delta.node is not None:
            run = next((r for r in reversed(delta.node.runs) if r.name == name and not r.exit_reason), None)
            known = run.run if run is not None else known
            if run is not None and run.diagnosis is not None:
                told = run.diagnosis
                verdicts[told.verdict] = max(verdicts[told.verdict], round(100 * told.confidence))
                if told.verdict in right_of(load) and math.isnan(first_right):
                    first_right = now
        if now - first_row > watched_s:
            break
    sampled = [each.samples for each in session.stacks(known, watched_s)] if known else []
    return {
        "told": told,
        "verdicts": verdicts,
        "first_right_s": first_right - first_row,
        "samples": sum(sum(each.counts) for each in sampled),
        "sampler_cost": max((each.cost for each in sampled), default=0.0),
    }


def right_of(load: LabelledLoad) -> tuple[str, ...]:
    """Return the right verdicts on this machine."""
    return load.gpu if device() == "cuda" else load.cpu


def device() -> str:
    """Return the device that loads use."""
    return os.environ.get("HOPTUI_LABELLED_DEVICE", "cuda")


class Program(NamedTuple):
    """The process of a load, and the file of its errors."""

    process: subprocess.Popen[bytes]
    errors: IO[str]


class Programs:
    """Starts the loads of a lane in their order. The next one may import its packages meanwhile.

    Its GPUs have to be known then: a package may initialize CUDA, which reads `CUDA_VISIBLE_DEVICES` once.
    """

    def __init__(self, node: Bench, loads: Iterable[LabelledLoad], lane: int, *, ahead: bool = False) -> None:
        self._lane, self._ahead = lane, ahead
        self._environment = node.environment | {"OMP_NUM_THREADS": THREADS}
        self._line = deque(loads)
        self._importing: Program | None = None
        self._files = ExitStack()

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *_: object) -> None:
        if self._importing is not None:
            _end(self._importing.process)
        self._files.close()

    @contextmanager
    def next(self) -> Iterator[tuple[LabelledLoad, subprocess.Popen[bytes]]]:
        """Start the next load, and end it afterwards. If it ended by itself, its last errors are printed."""
        load = self._line.popleft()
        process, errors = self._importing or self._begin(load)
        following = self._line[0] if self._ahead and self._line else None
        self._importing = self._begin(following) if following is not None and following.ranks == 1 else None
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin as begin:
                begin.write(b"begin\n")
            yield load, process
        finally:
            ended = process.poll()
            _end(process)
        if ended is not None:
            errors.seek(0)
            last = errors.read()[-1500:]
            print(f"{load.name} ended by itself with exit status {ended}:\n{last}", file=sys.stderr)

    def _begin(self, load: LabelledLoad) -> Program:
        launcher = (*TORCHRUN, "--nproc-per-node", str(load.ranks)) if load.ranks > 1 else ()
        errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - `_files` closes it
        self._files.push(errors)
        process = subprocess.Popen(
            [sys.executable, *launcher, "-m", "benchmarks.labelled", load.name, device()],
            env=self._environment | {"CUDA_VISIBLE_DEVICES": visible_gpus(load, self._lane)},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        return Program(process, errors)


def visible_gpus(load: LabelledLoad, lane: int) -> str:
    """Return the value of `CUDA_VISIBLE_DEVICES` for a load: a GPU for each rank, other ones in each lane."""
    if device() != "cuda":
        return ""
    return ",".join(str(load.ranks * lane + rank) for rank in range(load.ranks))


def measure_all(
    node: Bench, chosen: Sequence[LabelledLoad], lanes: int, watched_s: float
) -> dict[str, dict[str, Any]]:
    """Run loads, those of as many ranks together, and return what each came to, by its name."""
    found: dict[str, dict[str, Any]] = {}
    for ranks, group in itertools.groupby(
        sorted(chosen, key=lambda load: load.ranks), lambda load: load.ranks
    ):
        loads = list(group)
        if device() == "cuda" and ranks > gpus():
            tell("left out", {"loads": [load.name for load in loads], "GPUs": ranks})
            continue
        together = min(len(loads), max(1, lanes // ranks))
        ahead = len(os.sched_getaffinity(0)) >= AHEAD * together
        parts = [loads[first::together] for first in range(together)]
        for part in in_lanes(partial(measure_part, node, watched_s, ahead), parts, together):
            found |= part
    return found


def measure_part(
    node: Bench, watched_s: float, ahead: bool, loads: Sequence[LabelledLoad], lane: int
) -> dict[str, dict[str, Any]]:
    """Run loads one after the other, and return what each came to, by its name."""
    found: dict[str, dict[str, Any]] = {}
    with Programs(node, loads, lane, ahead=ahead) as programs:
        for _ in loads:
            with programs.next() as (load, child), node.session() as session:
                seen = watch(session, load, child, watched_s)
                ended = child.poll()
            found[load.name] = figures_of(load, seen) | {"ended": ended}
    return found


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a program and all that it has started."""
    tree = [child.pid]
    with suppress(psutil.NoSuchProcess):
        tree += [each.pid for each in psutil.Process(child.pid).children(recursive=True)]
    for pid in tree:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()
    child.wait(20)


def figures_of(load: LabelledLoad, seen: dict[str, Any]) -> dict[str, Any]:
    """Compare what was told with the label."""
    told: Diagnosis | None = seen["told"]
    verdict = told.verdict if told else "none"
    line = named_line(told)
    found = {
        "allowed": right_of(load),
        "late_rank": load.late,
        "verdict": verdict,
        "right": verdict in right_of(load),
        "confidence": told.confidence if told else 0.0,
        "sure_and_wrong": told is not None and verdict not in right_of(load) and told.confidence >= SURE,
        "line": line,
        "line_right": line in load.lines if load.lines and verdict in HOST_SIDE else None,
        "verdicts": dict(seen["verdicts"]),
        "first_right_s": round(seen["first_right_s"], 1) if math.isfinite(seen["first_right_s"]) else None,
        "samples": seen["samples"],
        "sampler_cost": round(seen["sampler_cost"], 5),
        "evidence": evidence(told) if told else [],
        "advice": [advice_text(advice) for advice in told.advice] if told else [],
    }
    shown = (
        "right",
        "verdict",
        "confidence",
        "line_right",
        "first_right_s",
        "samples",
        "evidence",
        "verdicts",
    )
    tell(load.name, {what: found[what] for what in shown})
    return found


def named_line(told: Diagnosis | None) -> tuple[str, int] | None:
    """Return the line that a diagnosis names first."""
    named = (each.fields for each in told.facts if each.code == "line.hot") if told else ()
    return next(((fields["file"], fields["line"]) for fields in named), None)


def calibration(cases: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Count how often verdicts of similar confidence are right."""
    rows = []
    for low, high in itertools.pairwise(BINS):
        inside = [case for case in cases if low <= case["confidence"] < high and case["verdict"] != "unknown"]
        rows.append(
            {"from": low, "to": min(1.0, high), "told": len(inside), "right": sum(c["right"] for c in inside)}
        )
    return rows


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--lot",
        choices=(*LOTS, "both"),
        default="test",
        help="both: development and test. held-out and held-out-cpu (with --cpu): once, for a published "
        "figure; then it counts as seen",
    )
    parser.add_argument("--cpu", action="store_true", help="without a GPU")
    parser.add_argument("--lanes", type=int, default=0, help="loads at a time; default: one per GPU")
    parser.add_argument("--only", nargs="+", default=())
    parser.add_argument("--watched-s", type=float, default=WATCHED_S, help="seconds from the first row on")
    given = parser.parse_args(list(arguments))
    os.environ["HOPTUI_LABELLED_DEVICE"] = kind = "cpu" if given.cpu else "cuda"
    lots = ("development", "test") if given.lot == "both" else (given.lot,)
    chosen = [
        load
        for name, load in sorted(all_loads().items())
        if right_of(load) and lot_of(name) in lots and (not given.only or name in given.only)
    ]
    for load in [load for load in chosen if load.missing()]:
        tell(load.name, {"left out, as it needs": load.missing()})
        chosen.remove(load)
    with bench() as node, node.session():
        lanes = given.lanes or (1 if given.cpu else gpus())
        cases = measure_all(node, chosen, lanes, given.watched_s)
    named = [case["line_right"] for case in cases.values() if case["line_right"] is not None]
    right = sum(case["right"] for case in cases.values())
    sure = [case for case in cases.values() if case["confidence"] >= 0.9]
    late = [
        name for name, case in cases.items() if case["right"] and not (case["first_right_s"] or 0) <= FIRST_S
    ]
    least = RIGHT["cpu" if given.cpu else "gpu"]
    figures = {
        "device": kind,
        "lot": given.lot,
        "watched_s": given.watched_s,
        "right": right,
        "of": len(cases),
        "sure_and_wrong": [name for name, case in cases.items() if case["sure_and_wrong"]],
        "lines_right": sum(named),
        "lines_of": len(named),
        "late": late,
        "calibration": calibration(cases.values()),
        "met": {
            f"at least {least:.0%} right": right >= least * len(cases),
            "none wrong with confidence of 0.7 or more": not any(c["sure_and_wrong"] for c in cases.values()),
            "at least 90 % of verdicts with 0.9 or more right": sum(c["right"] for c in sure)
            >= 0.9 * len(sure),
            f"the line right in at least {LINES:.0%}": sum(named) >= LINES * len(named),
            f"a right verdict within {FIRST_S:.0f} s of the first row": not late,
        },
        "loads": cases,
    }
    return report(f"labelled_diagnosis_{kind}_{given.lot}", figures)


if __name__ == "__main__":
    main(sys.argv[1:])
