"""Verdicts for loads of known limits, through the real daemon: a confusion table, and the time to a verdict.

`python -m benchmarks.diagnosis [--only NAME…] [--quick]`. A load is right if its last verdict
is one of its allowed verdicts, and confidently wrong if another verdict had a confidence of at least 70 %.
`--quick` tries a few on the CPU.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import Bench, bench, newer_state, tell, until
from benchmarks.training import TORCHRUN, TRAINER, Options, finish, gpus, spawn
from hoptui.client.session import Session
from hoptui.domain.diagnosis import Diagnosis, Verdict
from hoptui.presentation.diagnosis import SURE, advice_text, evidence
from hoptui.protocol.messages import NodeState, RunState

STEADY_S = 18.0
"""How long a verdict is watched after it appears: until its window is full."""
LONGEST_S = 150.0
"""The longest time until a load has a verdict, compilation included."""
WRONG = "confidently wrong"
RIGHT = 0.95
"""The share of loads that are to be right."""


class Load(NamedTuple):
    """A load, the verdicts that its nature allows, and the trainer's arguments (none:
    `benchmarks.diagnosis_loads`)."""

    name: str
    allowed: tuple[Verdict, ...]
    arguments: tuple[str, ...] = ()
    ranks: int = 1


PPO = ("ppo", "--env", "CartPole-v1", "--evaluate-every", "0", "--iterations", "10000000")
LM = ("lm", "--preset", "124m", "--evaluate-every", "0", "--iterations", "100000", "--corpus-mb", "8")
LM760 = ("lm", "--preset", "760m", *LM[3:])
VISION = ("vision", "--evaluate-every", "0", "--iterations", "1000000")
SYNTHETIC = (*VISION, "--data", "synthetic")
FOLDER = (*VISION, "--preset", "vit-s", "--micro-batch", "64", "--batch-size", "256", "--data", "{folder}")
LOADS: tuple[Load, ...] = (
    Load("launches", ("launch-bound",)),
    Load("small_training", ("launch-bound",)),
    Load("copy", ("memory-bandwidth-bound",)),
    Load("elementwise", ("memory-bandwidth-bound",)),
    Load("matmul", ("compute-bound",)),
    Load("matmul_tf32", ("compute-bound",)),
    Load("matmul_fp32", ("compute-bound",)),
    Load("gammainc", ("healthy", "compute-bound")),  # FP32 units may be what it fills
    Load("upload", ("data-bound",)),
    Load("data_sleeps", ("data-bound",)),
    Load("data_computes", ("data-bound",)),
    Load("data_a_third", ("data-bound",)),
    Load("waits", ("unknown",)),
    Load("cpu_envs", ("env-bound",)),
    Load("ppo_tiny", ("launch-bound",), (*PPO, "--preset", "tiny")),
    Load("ppo_tiny_eager", ("launch-bound",), (*PPO, "--preset", "tiny", "--compile", "off")),
    Load("ppo_4096_eager", ("launch-bound",),
         (*PPO, "--preset", "cartpole", "--num-envs", "4096", "--compile", "off")),
    Load("ppo_4096", ("launch-bound",), (*PPO, "--preset", "cartpole", "--num-envs", "4096")),
    Load("ppo_16384", ("launch-bound",), (*PPO, "--preset", "cartpole")),
    # its SMs have work 87 % of the time, the memory bus 72 %: docs/internals/benchmark_log.md, R1
    Load("ppo_65536", ("memory-bandwidth-bound",),
         (*PPO, "--preset", "cartpole", "--num-envs", "65536", "--minibatch-size", "524288")),
    Load("ppo_cpu_rollout", ("env-bound",),
         (*PPO, "--num-envs", "1024", "--minibatch-size", "32768", "--epochs", "1",
          "--rollout-device", "cpu")),
    Load("ppo_gymnasium", ("env-bound",),
         ("ppo", "--env", "gymnasium:CartPole-v1", "--evaluate-every", "0", "--iterations",
          "1000000", "--num-envs", "32", "--minibatch-size", "1024", "--epochs", "1")),
    Load("lm_tiny", ("launch-bound",),
         ("lm", "--preset", "tiny", "--evaluate-every", "0", "--iterations", "10000000")),
    # the kernels of a single sequence fill half of the GPU; cut so small in an empty memory, either is true
    Load("lm_micro_batch_1", ("launch-bound", "memory-unused"),
         (*LM, "--batch-tokens", "65536", "--micro-batch", "1")),
    # at the power limit with nearly all of the clock, and cut in pieces in an empty memory
    Load("lm_micro_batch_8", ("memory-unused", "power-limited"),
         (*LM, "--batch-tokens", "131072", "--micro-batch", "8")),
    Load("lm", ("power-limited",), (*LM, "--batch-tokens", "131072")),
    # nothing waits in it, and its tensor cores are not full: which part of the GPU gives way first is not
    # known beforehand
    Load("vit_b", ("power-limited", "memory-bandwidth-bound", "healthy"), (*SYNTHETIC, "--preset", "vit-b")),
    Load("vit_tiny_batch_8", ("launch-bound",), (*SYNTHETIC, "--preset", "tiny", "--batch-size", "8")),
    Load("vit_s_batch_8_eager", ("launch-bound",),
         (*SYNTHETIC, "--preset", "vit-s", "--batch-size", "8", "--compile", "off")),
    Load("folder_no_workers", ("data-bound",), (*FOLDER, "--num-workers", "0")),
    Load("folder_2_workers", ("data-bound",), (*FOLDER, "--num-workers", "2")),
    Load("lm_two_gpus_small", ("communication-bound",),
         (*LM760, "--batch-tokens", "4096", "--micro-batch", "1"), 2),
    Load("lm_two_gpus", ("power-limited",), (*LM, "--batch-tokens", "131072", "--micro-batch", "32"), 2),
)  # fmt: skip
QUICK: tuple[Load, ...] = (
    Load("data_sleeps", ("data-bound",)),
    Load("waits", ("unknown",)),
    Load(
        "lm_tiny",
        ("unknown",),
        ("lm", "--preset", "tiny", "--evaluate-every", "0", "--iterations", "10000000"),
    ),
)


class Seen(NamedTuple):
    """The verdicts on a load: the last one, all with their greatest confidence, seconds to the first."""

    last: Diagnosis | None
    verdicts: dict[str, float]
    first_s: float | None


def watch(session: Session, name: str, child: subprocess.Popen[str]) -> Seen:
    """Follow a run from its first row until its verdict has been watched for long enough."""
    verdicts: dict[str, float] = {}
    state, last = 0, None
    begun = time.monotonic()
    first: float | None = None
    while time.monotonic() - begun < LONGEST_S and child.poll() is None:
        delta = newer_state(session, state, wait_s=0.5)
        state = delta.state
        if delta.node is not None and (run := _live(delta.node, name)) is not None:
            last = run.diagnosis
            if last is not None:
                first = first or time.monotonic()
                verdicts[last.verdict] = max(last.confidence, verdicts.get(last.verdict, 0.0))
        if first is not None and time.monotonic() - first > STEADY_S:
            break
    return Seen(last, verdicts, first - begun if first is not None else None)


def _live(node: NodeState, name: str) -> RunState | None:
    return next((run for run in reversed(node.runs) if run.name == name and not run.exit_reason), None)


@contextmanager
def _started(node: Bench, load: Load, given: Options, folder: Path) -> Iterator[subprocess.Popen[str]]:
    device = "cpu" if given.quick else "cuda"
    if load.arguments:
        launcher = (*TORCHRUN, "--nproc-per-node", str(load.ranks)) if load.ranks > 1 else ()
        arguments = [argument.format(folder=folder) for argument in load.arguments]
        command = [
            sys.executable,
            *launcher,
            *TRAINER,
            *arguments,
            *given.device,
            "--json",
            "--name",
            load.name,
        ]
    else:
        seconds = str(LONGEST_S)
        command = [sys.executable, "-m", "benchmarks.diagnosis_loads", device, seconds, load.name]
    child = spawn(node, command)
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=20)
        child.kill()
        child.wait(20)


def measure(node: Bench, session: Session, load: Load, given: Options, folder: Path) -> dict[str, Any]:
    """Run one load, and compare its verdicts with the allowed ones."""
    with _started(node, load, given, folder) as child:
        with suppress(TimeoutError):
            until(lambda: child.poll() is not None or _trains(session, load.name), LONGEST_S, load.name)
        seen = watch(session, load.name, child)
        ended = child.poll()
        if ended is not None:
            print(f"{load.name} ended by itself with exit status {ended}:\n{_said(child)}", file=sys.stderr)
    verdict = seen.last.verdict if seen.last else "none"
    wrong = [v for v, sure in seen.verdicts.items() if v not in load.allowed and sure >= SURE]
    found = {
        "allowed": load.allowed,
        "verdict": verdict,
        "right": verdict in load.allowed,
        "confidence": seen.last.confidence if seen.last else None,
        "evidence": evidence(seen.last) if seen.last else (),
        "advice": [advice_text(advice) for advice in seen.last.advice] if seen.last else [],
        "told": seen.verdicts,
        WRONG: wrong,
        "first_s": round(seen.first_s, 1) if seen.first_s is not None else None,
        "ended": ended,
    }
    tell(load.name, {what: found[what] for what in ("right", WRONG, "verdict", "confidence", "evidence")})
    return found


def _said(child: subprocess.Popen[str]) -> str:
    """The end of what it said on its way out."""
    assert child.stderr is not None
    return child.stderr.read()[-1500:]


def _trains(session: Session, name: str) -> bool:
    """Whether a row of it is there: before, it may be set up for a minute."""
    delta = session.fetch(state=0, wait_s=0.2)
    run = _live(delta.node, name) if delta.node is not None else None
    return run is not None and run.run in delta.vitals and delta.vitals[run.run].last_t > 0


def pictures(folder: Path, count: int = 256, side: int = 512) -> Path:
    """Two classes of images that take time to read and to make smaller."""
    import numpy as np

    numbers = np.random.default_rng(0)
    for i in range(count):
        path = folder / str(i % 2) / f"{i}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, numbers.integers(0, 256, (side, side, 3), dtype=np.uint8))
    return folder


def table(cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Count the verdicts by the first allowed verdict."""
    found: dict[str, Counter[str]] = {}
    for case in cases.values():
        found.setdefault(case["allowed"][0], Counter())[case["verdict"]] += 1
    return {label: dict(counts) for label, counts in found.items()}


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a few on the CPU; keeps no result")
    parser.add_argument("--only", nargs="+", default=(), help="these loads alone")
    said = parser.parse_args(list(arguments))
    given = Options(said.quick, None)
    loads = QUICK if said.quick else tuple(load for load in LOADS if load.ranks <= gpus())
    if unknown := set(said.only) - {load.name for load in loads}:
        parser.error(f"no such load here: {', '.join(sorted(unknown))}")
    cases = {}
    with bench() as node, node.session() as session:
        folder = node.base / "images"
        if not said.quick and any("{folder}" in load.arguments for load in loads):
            pictures(folder)
        for load in loads:
            if not said.only or load.name in said.only:
                cases[load.name] = measure(node, session, load, given, folder)
    right = sum(case["right"] for case in cases.values())
    confident = [name for name, case in cases.items() if case[WRONG]]
    met = {
        f"at least {RIGHT:.0%} right": right >= RIGHT * len(cases),
        f"none {WRONG}": not confident,
    }
    figures = {
        "right": right,
        "of": len(cases),
        WRONG: confident,
        "table": table(cases),
        "loads": cases,
        "met": met,
    }
    return finish("diagnosis", given, figures)


if __name__ == "__main__":
    main(sys.argv[1:])
