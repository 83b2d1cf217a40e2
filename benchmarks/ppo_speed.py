"""R1, R3, R4: environment steps a second of whole PPO (environments, policy, update) on one GPU.

With `--anchor PATH`, a script of a hundred lines that does the same for R1 runs beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import anchor
from benchmarks.measure import bench, tell
from benchmarks.training import finish, options, reached, trained

PPO = ("ppo", "--env", "CartPole-v1", "--evaluate-every", "0")
R3 = (*PPO, "--policy", "h100-before", "--context", "32", "--num-envs", "2048", "--rollout-len", "128",
      "--minibatch-size", "32768", "--epochs", "2")  # fmt: skip
R4 = (*PPO, "--policy", "h100-after", "--context", "32", "--num-envs", "2048", "--rollout-len", "128",
      "--minibatch-size", "32768")  # fmt: skip
CASES = {
    "R1 16,384 envs": (*PPO, "--preset", "cartpole", "--iterations", "400"),
    "R1 65,536 envs": (*PPO, "--preset", "cartpole", "--num-envs", "65536", "--minibatch-size", "524288",
                       "--iterations", "200"),
    "R3 3M transformer": (*R3, "--iterations", "40"),
    "R4 100M transformer, 1 epoch": (*R4, "--epochs", "1", "--iterations", "20"),
    "R4 100M transformer, 4 epochs": (*R4, "--epochs", "4", "--iterations", "12"),
}  # fmt: skip
QUICK = {"R1 8 envs": (*PPO, "--preset", "tiny", "--iterations", "60")}
TARGETS = {
    "R1 16,384 envs": 20e6,
    "R1 65,536 envs": 38e6,
    "R3 3M transformer": 500e3,
    "R4 100M transformer, 1 epoch": 250e3,
    "R4 100M transformer, 4 epochs": 100e3,
}
STRETCH = {
    "R1 16,384 envs": 30e6,
    "R1 65,536 envs": 60e6,
    "R3 3M transformer": 1e6,
    "R4 100M transformer, 1 epoch": 400e3,
    "R4 100M transformer, 4 epochs": 150e3,
}
ANCHORS = {"R1 16,384 envs": ("16384", "32768"), "R1 65,536 envs": ("65536", "524288")}
"""Environments and minibatch of the anchor that stands beside a case."""
ANCHOR_QUICK = {"R1 8 envs": ("8", "64")}


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    given = options(arguments)
    cases, anchors = (QUICK, ANCHOR_QUICK) if given.quick else (CASES, ANCHORS)
    figures: dict[str, Any] = {}
    with bench() as node:
        for name, case in cases.items():
            figures[name] = tell(name, trained(node, (*case, *given.device), "env_steps").figures())
            if given.anchor and name in anchors:
                beside = anchor.speed(node, given.anchor, *anchors[name], quick=given.quick)
                figures[name]["anchor"] = tell(f"{name}, anchor", beside)
    met, stretch = {}, {}
    if not given.quick:
        met, stretch = reached(figures, TARGETS), reached(figures, STRETCH)
    return finish(
        "ppo_speed", given, {"unit": "env steps/s", "cases": figures, "met": met, "stretch": stretch}
    )


if __name__ == "__main__":
    main(sys.argv[1:])
