"""A PPO of a hundred lines that does the same work, in a separate process. It is the
reference for `hoptui train ppo`.

The script takes a file for its results (a line of JSON each) and the part of its time to measure for; NS
(environments), MB (minibatch), VARS (variants), LEARN (whether it also learns until an evaluation returns
475) and PHASE (a file it may write to) are in its environment.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import Bench
from benchmarks.training import last_line, spawn

VARIANT, QUICK_VARIANT = "compile+graph", "eager"


def _results(node: Bench, path: str, *, quick: bool, part: float, **environment: str) -> list[dict[str, Any]]:
    results = Path(node.base) / f"anchor-{'-'.join(environment.values())}.jsonl"
    child = spawn(
        node,
        [sys.executable, path, str(results), f"{0.01 if quick else part:g}"],
        VARS=QUICK_VARIANT if quick else VARIANT,
        PHASE=str(Path(node.base) / "phase"),
        CUDA_VISIBLE_DEVICES="" if quick else "0",
        **environment,
    )
    last_line(child, f"the anchor {path}")
    found: list[dict[str, Any]] = [json.loads(line) for line in results.read_text().splitlines()]
    for line in found:
        if "error" in line:
            raise RuntimeError(f"the anchor {path}: {line['error']}")
    return found


def speed(node: Bench, path: str, envs: str, minibatch: str, *, quick: bool) -> dict[str, Any]:
    """Its environment steps a second: median, 5 % and 95 % over blocks of at least 50 ms."""
    full = _results(node, path, quick=quick, part=1.0, NS=envs, MB=minibatch, LEARN="0")[-1]["full"]
    rates = {"median": round(full["med"]), "p5": round(full["p5"]), "p95": round(full["p95"])}
    return {"variant": QUICK_VARIANT if quick else VARIANT, **rates}


def learning(node: Bench, path: str, envs: str, minibatch: str, *, quick: bool) -> dict[str, Any]:
    """Its seconds of training, its iterations and what it returned then: until 475, or as long as it
    tries."""
    found = _results(node, path, quick=quick, part=0.05, NS=envs, MB=minibatch, LEARN="1")
    curves = [line["curve"] for line in found if "learn" in line]
    if not curves:
        raise RuntimeError(f"the anchor {path} did not learn")
    iterations, seconds, returned = curves[-1][-1]
    return {"training_s": seconds, "iterations": iterations, "evaluation_return": returned}
