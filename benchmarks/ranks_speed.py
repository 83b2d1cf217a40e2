"""R5: two GPUs against one, the same work for each GPU: PPO with a transformer of 100M parameters, a 124M language model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.measure import bench
from benchmarks.training import finish, gpus, options, trained

RANKS = 2
PPO = ("ppo", "--env", "CartPole-v1", "--evaluate-every", "0")
Case = tuple[str, tuple[str, ...], str, int]
CASES: dict[str, Case] = {
    "PPO, 100M transformer": (
        "env_steps",
        (*PPO, "--policy", "h100-after", "--context", "32", "--num-envs", "2048", "--rollout-len", "128", "--epochs", "1",
         "--iterations", "20"),
        "--minibatch-size",
        32_768,
    ),
    "LM, 124M": (
        "tokens",
        ("lm", "--preset", "124m", "--evaluate-every", "0", "--micro-batch", "32", "--iterations", "40"),
        "--batch-tokens",
        262_144,
    ),
}  # fmt: skip
"""The unit, the command, and the option that grows with the GPUs, for one of them."""
QUICK: dict[str, Case] = {
    "vision, tiny": (
        "samples",
        ("vision", "--preset", "tiny", "--data", "synthetic", "--evaluate-every", "0", "--iterations", "150",
         "--micro-batch", "32"),
        "--batch-size",
        8,
    )
}  # fmt: skip
PASS, STRETCH = 1.9, 1.97


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    given = options(arguments)
    if not given.quick and gpus() < RANKS:
        print(f"ranks_speed: it needs {RANKS} GPUs, and there are {gpus()}", file=sys.stderr)
        return {"met": {}}
    figures: dict[str, Any] = {}
    with bench() as node:
        for name, (work, case, option, amount) in (QUICK if given.quick else CASES).items():
            rates = {}
            for ranks in (1, RANKS):
                command = (*case, option, str(ranks * amount), *given.device)
                rates[ranks] = trained(node, command, work, ranks=ranks).figures()
            ratio = rates[RANKS]["rate"]["median"] / rates[1]["rate"]["median"]
            figures[name] = {"ratio": round(ratio, 3), "one": rates[1], "two": rates[RANKS]}
    met: dict[str, bool] = {}
    stretch: dict[str, bool] = {}
    if not given.quick:
        for words, least in ((met, PASS), (stretch, STRETCH)):
            words |= {f"{name}: at least {least} ×": case["ratio"] >= least for name, case in figures.items()}
    return finish("ranks_speed", given, {"cases": figures, "met": met, "stretch": stretch})


if __name__ == "__main__":
    main(sys.argv[1:])
