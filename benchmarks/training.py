"""Training runs as benchmarks see them: started by the command line, read back from hoptui's recording of
them.

A rate is the work of a window over the time between its boundaries, so it holds everything that an iteration
costs. The first tenth of the iterations is left out (compilation, clocks that rise), the rest is cut into
five windows; figures are their median and spread. How long a start took, compilation included, stands beside
it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.measure import Bench, report, spread, until
from hoptui.domain.columns import Columns, concatenate
from hoptui.node.addresses import addresses
from hoptui.recording import Recording

WINDOWS = 5
WARM_UP = 0.1
"""The part of the iterations that is left out at the beginning."""
SEED = 0
LIMIT_S = 540.0
TRAINER = ("-m", "hoptui_trainer")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")
NOT_REACHED = 1
"""Exit status of a run that did not reach what was asked of it."""
ASIDE = ("phase/evaluation", "phase/checkpoint")
"""What an iteration also did, and what is no part of its rate."""
READINGS = (
    "busy",
    "sm_active",
    "tensor_active",
    "dram_active",
    "power_w",
    "sm_clock_mhz",
    "memory_used_bytes",
)
"""What a GPU shows of a load; None where it cannot be read."""


class Iteration(NamedTuple):
    """One iteration: monotonic seconds at its end, how long it took, the work in it, time it spent evaluating
    and saving."""

    end_s: float
    seconds: float
    work: float
    aside_s: float


@dataclass(frozen=True)
class Trained:
    """A run that has ended: what it printed and exited with, its start, its iterations, what its GPUs
    showed."""

    arguments: tuple[str, ...]
    result: Mapping[str, Any]
    exit_status: int
    begun_s: float
    iterations: Sequence[Iteration]
    gpus: Sequence[Columns]

    @property
    def steady(self) -> Sequence[Iteration]:
        """The iterations that count."""
        return self.iterations[math.ceil(WARM_UP * len(self.iterations)) :]

    def rates(self) -> list[float]:
        """Work a second in each window; fewer windows where there are fewer iterations."""
        counted = self.steady
        count = min(WINDOWS, len(counted))
        edges = [round(i * len(counted) / count) for i in range(count + 1)]
        windows = [counted[start:end] for start, end in itertools.pairwise(edges)]
        return [sum(i.work for i in w) / sum(i.seconds - i.aside_s for i in w) for w in windows]

    def figures(self) -> dict[str, Any]:
        """What is written down of it."""
        steady = statistics.median(i.seconds for i in self.steady)
        warm_up = self.iterations[: len(self.iterations) - len(self.steady)]
        return {
            "command": " ".join(self.arguments),
            "rate": spread(self.rates(), 1),
            "iteration_s": spread([i.seconds for i in self.steady], 5),
            "start_s": round(self.iterations[0].end_s - self.begun_s, 2),
            "warm_up_s": round(sum(i.seconds - steady for i in warm_up), 2),
            "gpus": [self._shown(columns) for columns in self.gpus],
            "result": self.result,
        }

    def _shown(self, columns: Columns) -> dict[str, float | None]:
        first, last = (round(1e9 * i.end_s) for i in (self.steady[0], self.steady[-1]))
        kept = [i for i, t in enumerate(columns.times()) if first <= t <= last]
        return {name: _median(columns, name, kept) for name in READINGS}


def _median(columns: Columns, name: str, kept: Sequence[int]) -> float | None:
    if name not in columns.names:
        return None
    values = columns.column(name)
    known = [values[i] for i in kept if values[i] == values[i]]
    return round(statistics.median(known), 2) if known else None


def spawn(node: Bench, command: Sequence[str], **environment: str) -> subprocess.Popen[str]:
    """Start a program on this node whose errors can be read; it ends with the node."""
    child = subprocess.Popen(
        command,
        env=node.environment | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    node.children.append(child)
    return child


def last_line(child: subprocess.Popen[str], what: str, good: Sequence[int] = (0,)) -> str:
    """The last line that a program prints, once it has ended.

    Raises:
        RuntimeError: it failed; the text is what it said.
    """
    try:
        out, error = child.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{what}: not done within {LIMIT_S:g} s") from None
    lines = out.strip().splitlines()
    if child.returncode not in good or not lines:
        raise RuntimeError(f"{what}: exit status {child.returncode}\n{error[-2000:]}")
    return lines[-1]


class Started(NamedTuple):
    """A run that goes on: its process, its name in hoptui, when it was started, how."""

    child: subprocess.Popen[str]
    name: str
    begun_s: float
    arguments: tuple[str, ...]


def start(
    node: Bench, arguments: Sequence[str], *, ranks: int = 1, seed: int = SEED, name: str = ""
) -> Started:
    """Start `hoptui_trainer` with these arguments, by torchrun if there are several ranks."""
    name = name or f"bench-{time.monotonic_ns()}"
    launcher = (*TORCHRUN, "--nproc-per-node", str(ranks)) if ranks > 1 else ()
    command = [
        *(sys.executable, *launcher, *TRAINER, *arguments),
        *("--json", "--seed", str(seed), "--name", name),
    ]
    with node.session() as session:  # a daemon that is up already: the first rows count too
        session.fetch(state=0)
    return Started(spawn(node, command), name, time.monotonic(), tuple(arguments))


def ended(node: Bench, run: Started, work: str) -> Trained:
    """Wait until a run has ended, and read what is recorded of it. `work` is the metric that counts its
    units.

    Raises:
        RuntimeError: it failed; the text is what it said.
    """
    result = json.loads(last_line(run.child, " ".join(run.arguments), good=(0, NOT_REACHED)))
    its_id = node.run(run.name).run
    path = addresses().recording(its_id)

    def whole() -> Trained | None:
        with Recording.open(path) as recording:
            rows = _columns(recording, f"run/{its_id}")
            gpus = [
                _columns(recording, source) for source in recording.sources() if source.startswith("gpu/")
            ]
        iterations = _iterations(rows, work)
        if len(iterations) < result["iterations"]:
            return None
        return Trained(run.arguments, result, run.child.returncode, run.begun_s, iterations, gpus)

    found: Trained = until(whole, 20, "the recording of the run")
    return found


def trained(node: Bench, arguments: Sequence[str], work: str, *, ranks: int = 1, seed: int = SEED) -> Trained:
    """`start` and `ended` in one."""
    return ended(node, start(node, arguments, ranks=ranks, seed=seed), work)


def _iterations(rows: Columns, work: str) -> list[Iteration]:
    found = []
    for t, _, values in rows.rows():
        if "iteration_s" in values:
            aside = sum(values.get(name, 0.0) for name in ASIDE)
            found.append(Iteration(t / 1e9, values["iteration_s"], values.get(work, 0.0), aside))
    return found


def _columns(recording: Recording, source: str) -> Columns:
    return concatenate(source, list(recording.rows(source)))


class Options(NamedTuple):
    """Options of a trainer's benchmark: `quick` only tries the mechanics on a CPU, `anchor` is its script."""

    quick: bool
    anchor: str | None

    @property
    def device(self) -> tuple[str, ...]:
        return ("--device", "cpu", "--threads", "1") if self.quick else ("--device", "cuda")


def options(arguments: Sequence[str]) -> Options:
    """The options of a benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--quick", action="store_true", help="try the mechanics on a CPU in seconds; keeps no result"
    )
    parser.add_argument("--anchor", help="path of a PPO script to compare with")
    found = parser.parse_args(list(arguments))
    return Options(found.quick, found.anchor)


def finish(name: str, given: Options, figures: dict[str, Any]) -> dict[str, Any]:
    """Report the figures; of a quick try they are printed and not kept, because they say nothing of speed."""
    if not given.quick:
        return report(name, figures)
    result = {"benchmark": name, "quick": True, **figures}
    print(json.dumps(result), flush=True)
    return result


def reached(figures: Mapping[str, Mapping[str, Any]], targets: Mapping[str, float]) -> dict[str, bool]:
    """For each target, in words, whether the median rate of the case reached it."""
    return {
        f"{case}: at least {least:,.0f}/s": figures[case]["rate"]["median"] >= least
        for case, least in targets.items()
    }


def gpus() -> int:
    """GPUs of this machine, without a CUDA context in this process."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip()])
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return len(listed.strip().splitlines())
