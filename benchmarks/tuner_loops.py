"""The tuner on real loops that nobody prepared for it (`benchmarks.loops`), against an exhaustive grid.

As in `tuner_grid`: the tuner starts from bad values, then every combination is set and measured, and at the
end both are measured in turns. The budget is the usual one. The work of an iteration is compared too: the
tuner may not change it, unless it is allowed to turn what is learned.

Loops are measured at the same time, each in a process of its own with as many GPUs as it has ranks. A line
of JSON is printed for each loop and seed as soon as it is known. A loop that is not done after `--most-s` is
ended; what it has come to is reported.

The grid of a loop is measured once, in the run of the first seed. With `--apart` each seed has a process and
GPUs of its own, and the others wait for that grid after their tuner. With `--grids` the best points are read
from a JSON file, by loop and machine, and added to it: so a call with `--seed 1` can use the grid of seed 0.

`python -m benchmarks.tuner_loops [--lot development test] [--loops gpt] [--seed 0 1 2] [--apart]
[--grids FILE] [--cpu] [--lanes N] [--most-s S]`
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.coarse_grid import coarse_to_fine
from benchmarks.grid_file import GridFile, machine_name
from benchmarks.live import Live
from benchmarks.loops.catalogue import CPU, CUDA, LoopCase
from benchmarks.measure import Bench, bench, report, tell
from benchmarks.training import TORCHRUN, Started, gpus, spawn
from benchmarks.tuner_grid import against, fastest, found_after, grid, tried
from hoptui.client.session import Session
from hoptui.domain.tuning import Limits
from hoptui.presentation import sentences

TUNE_S, TUNE_SHARE = 360.0, 0.6
"""How long the tuner may take at most, and that as a share of the time of its loop."""
MOST_S = 540.0
END_S = 40.0
"""A process that was asked to end is killed after so long."""
PHOTOGRAPHS, SIDE = 512, 400
SHORT = ("seed", "ratio", "speed_up", "found", "best", "slow", "trials", "took_s", "end")
"""What the line of a loop and seed tells."""


def live(node: Bench, session: Session, case: LoopCase, arguments: Sequence[str], seed: int) -> Live:
    """Return a run of a loop with the values that it has at its start."""
    name = f"loop-{time.monotonic_ns()}"
    launcher = (*TORCHRUN, "--nproc-per-node", str(case.ranks)) if case.ranks > 1 else ()
    loop = ("-m", f"benchmarks.loops.{case.module or case.name}", "--name", name, "--seed", str(seed))
    session.fetch(state=0)
    begun = time.monotonic()
    child = spawn(node, [sys.executable, *launcher, *loop, *case.arguments, *arguments])
    return Live(node, session, Started(child, name, begun, ()), case.work)


def measured(
    case: LoopCase, arguments: Sequence[str], seed: int, grids: GridFile, tune_s: float
) -> Iterator[dict[str, Any]]:
    """Yield parts of the figures: the start, what the tuner has come to, the grid, and both in turns.

    The tuner has `tune_s` seconds. The grid is measured where its best point is not in `grids`.
    """
    with bench() as node, node.session() as session:
        run = live(node, session, case, arguments, seed)
        slow = run.rate(after_s=case.after_s)
        yield {"slow": round(slow, 1)}
        work = run.work()
        since = time.monotonic_ns()
        began = time.monotonic()
        state = run.tuned(Limits(learning=case.learning), tune_s)
        values = {name: value for name, value in run.values().items() if name in case.grid}
        yield {
            "found": values,
            "took_s": round(time.monotonic() - began, 1),
            "trained": run.trained(since),
            "says": sentences.standing(state),
            "spent_s": round(state.spent * state.lived_s, 1),
            "trials": len(state.tried),
            "found_after": found_after(state),
            "frozen": state.frozen,
            "tried": tried(state),
            "out_of_memory": run.out_of_memory(since),
            "same_work": run.work() == work,
        }
        best = grids.best(case.name)
        if best is None:
            points = coarse_to_fine(run, case) if case.slow_grid else grid(run, case)
            best = fastest(points, case)
            grids.put(case.name, points, best, len(case.points()))
            yield {"points": points, "grid_of": len(case.points()), "best": best}
        turns = against(run, case, values, best)
        speed_up = round(turns["rate"]["median"] / slow, 2)
        yield {"best": best, **turns, "speed_up": speed_up, "end": run.end()["ending"]}


def measure(
    case: LoopCase,
    arguments: Sequence[str],
    seeds: Sequence[int],
    devices: Sequence[str],
    tune_s: float,
    told: connection.Connection,
    grids: GridFile,
) -> None:
    """Measure a loop in this process, on these GPUs alone, and send what is known of each seed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the node of the run is cleared away
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    for seed in seeds:
        found: dict[str, Any] = {"seed": seed}
        try:
            for part in measured(case, arguments, seed, grids, tune_s):
                found |= tell(f"{case.name}, seed {seed}", part)
                told.send(found)
        except (RuntimeError, TimeoutError) as error:  # the run was lost
            told.send(found | {"ratio": 0.0, "end": str(error)})
    told.close()


class Lane:
    """A loop that is being measured in a process of its own, and what is known of its seeds.

    A loop on GPUs has them alone.
    """

    def __init__(
        self,
        case: LoopCase,
        arguments: Sequence[str],
        seeds: Sequence[int],
        devices: list[str],
        most_s: float,
        grids: GridFile,
    ) -> None:
        self.case, self.seeds, self.devices = case, seeds, devices
        self.runs: dict[int, dict[str, Any]] = {}
        self.until = time.monotonic() + most_s
        context = get_context("spawn")
        self.told, telling = context.Pipe(duplex=False)
        visible = devices if "cuda" in arguments else []
        given = case, arguments, seeds, visible, min(TUNE_S, TUNE_SHARE * most_s), telling, grids
        self._process = context.Process(target=measure, args=given)
        self._process.start()
        telling.close()

    def read(self) -> bool:
        """Read what has been measured, and print what is final. Return whether the loop goes on."""
        with suppress(EOFError):
            while self.told.poll():
                found = self.told.recv()
                self.runs[found["seed"]] = found
                if "end" in found:
                    self._print(found)
            return True
        return False

    def end(self, why: str = "") -> None:
        """Wait for the process, which is asked to end for this reason if there is one.

        The seed in progress is then reported as far as it was measured.
        """
        if why:
            self._process.terminate()
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.read()
        self.told.close()
        started = [self.runs.setdefault(seed, {"seed": seed}) for seed in self.seeds[: len(self.runs) + 1]]
        for found in started:
            if "end" not in found:
                found["end"] = why or "its process ended"
                self._print(found)

    def _print(self, found: dict[str, Any]) -> None:
        short = {name: found[name] for name in SHORT if name in found}
        print(json.dumps({"loop": self.case.name} | short), flush=True)


class Job(NamedTuple):
    """A loop and the seeds that one process measures. With `waits`, another process measures its grid."""

    case: LoopCase
    seeds: tuple[int, ...]
    waits: bool = False


def jobs_of(cases: Sequence[LoopCase], seeds: Sequence[int], *, apart: bool) -> list[Job]:
    """Return what the processes have to do, those that measure grids first."""
    if not apart:
        return [Job(case, tuple(seeds)) for case in cases]
    return [Job(case, (seed,), waits=i > 0) for i, seed in enumerate(seeds) for case in cases]


def on_devices(
    cases: Sequence[LoopCase],
    arguments: dict[str, list[str]],
    seeds: Sequence[int],
    devices: Sequence[str],
    most_s: float,
    *,
    apart: bool = False,
    grids: Path | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Measure loops, each on as many of the devices as it has ranks, and return the runs of each.

    Without a GPU a device is a lane, and every loop takes one. With `apart`, each seed has devices of its
    own. `grids` is a file with the best points that are known, to which those of this call are added.
    """
    waiting, free, lanes = jobs_of(cases, seeds, apart=apart), list(devices), list[Lane]()
    runs: dict[str, list[dict[str, Any]]] = {case.name: [] for case in cases}
    why = "the benchmark was ended"
    with tempfile.TemporaryDirectory(prefix="hoptui-grids-") as folder:
        path = grids or Path(folder) / "grids.json"
        try:
            while waiting or lanes:
                for job in [*waiting]:
                    case = job.case
                    on_gpus = "cuda" in arguments[case.name]
                    wanted = case.ranks if on_gpus else 1
                    if wanted <= len(free):
                        taken, free = free[:wanted], free[wanted:]
                        name = machine_name("cuda" if on_gpus else "cpu")
                        file = GridFile(path, name, most_s if job.waits else 0.0)
                        lanes.append(Lane(case, arguments[case.name], job.seeds, taken, most_s, file))
                        waiting.remove(job)
                connection.wait([lane.told for lane in lanes], timeout=1.0)
                for lane in [*lanes]:
                    late = time.monotonic() >= lane.until
                    if lane.read() and not late:
                        continue
                    lane.end(f"not done after {most_s:g} s" if late else "")
                    lanes.remove(lane)
                    free += lane.devices
                    runs[lane.case.name] += lane.runs.values()
        finally:
            for lane in lanes:
                lane.end(why)
    return {name: sorted(found, key=lambda run: int(run["seed"])) for name, found in runs.items()}


def photographs(folder: Path, count: int = PHOTOGRAPHS, side: int = SIDE) -> Path:
    """Write JPEG files of two classes for an `ImageFolder`. They take as long to read as photographs."""
    import numpy as np
    from PIL import Image

    numbers = np.random.default_rng(0)
    for i in range(count):
        path = folder / str(i % 2) / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(numbers.integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8))
        small.resize((side, side)).save(path, quality=90)
    return folder


def possible(case: LoopCase, devices: float) -> bool:
    """Return whether a loop can run here. Where it cannot, the reason is printed."""
    reason = ""
    if missing := case.missing():
        reason = f"not installed: {', '.join(missing)}"
    elif case.ranks > devices:
        reason = f"it needs {case.ranks} GPUs, and there are {devices}"
    if reason:
        print(f"{case.name} is left out: {reason}", file=sys.stderr, flush=True)
    return not reason


def visible() -> list[str]:
    """Return the names of the GPUs that this process may use."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [*map(str, range(gpus()))] if named is None else [n.strip() for n in named.split(",") if n.strip()]


def command_line(prog: str) -> argparse.ArgumentParser:
    """Return the options of a benchmark that measures several loops at the same time."""
    parser = argparse.ArgumentParser(prog=prog)
    parser.add_argument("--only", "--loops", nargs="*", default=[], help="names of loops")
    parser.add_argument("--seeds", "--seed", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--cpu", action="store_true", help="small loops, one thread each")
    parser.add_argument(
        "--lanes", type=int, default=0, help="loops at a time, or GPUs to use; default: 1 on a CPU, all GPUs"
    )
    parser.add_argument("--most-s", type=float, default=MOST_S, help="for each loop: it is then ended")
    return parser


def devices_of(options: argparse.Namespace) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of the lanes or GPUs to use, and the arguments of a loop on one of them."""
    devices = [*map(str, range(options.lanes or 1))] if options.cpu else visible()
    loop = ("--device", "cpu", "--threads", "1") if options.cpu else ("--device", "cuda")
    return devices[: options.lanes or None], loop


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    parser = command_line("python -m benchmarks.tuner_loops")
    parser.add_argument("--lot", nargs="+", choices=CUDA, default=[*CUDA])
    parser.add_argument("--apart", action="store_true", help="a process and GPUs for each seed")
    parser.add_argument("--grids", type=Path, help="JSON with known grids, to which new ones are added")
    options = parser.parse_args(list(arguments))
    devices, device = devices_of(options)
    room = math.inf if options.cpu else len(devices)
    lots = {
        lot: [
            case
            for case in (CPU if options.cpu else CUDA)[lot]
            if (not options.only or case.name in options.only) and possible(case, room)
        ]
        for lot in options.lot
    }
    cases = sorted((case for lot in lots.values() for case in lot), key=lambda case: -case.ranks)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="hoptui-photographs-") as folder:
        if any(case.photographs for case in cases):
            photographs(Path(folder))
        data = ("--data", folder)
        started = {case.name: [*device, *(data if case.photographs else ())] for case in cases}
        runs = on_devices(
            cases, started, options.seeds, devices, options.most_s, apart=options.apart, grids=options.grids
        )
    figures = {
        case.name: {
            "lot": lot,
            "learning": case.learning,
            "least": min((r["ratio"] for r in runs[case.name] if "ratio" in r), default=None),
            "runs": runs[case.name],
        }
        for lot in options.lot
        for case in lots[lot]
    }
    kind = "cpu" if options.cpu else "cuda"
    return report(f"tuner_loops_{kind}", {"device": kind, "most_s": options.most_s, "loops": figures})


if __name__ == "__main__":
    main(sys.argv[1:])
