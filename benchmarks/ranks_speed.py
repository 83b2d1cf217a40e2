"""R5: several GPUs against one, the same work for each: PPO with a transformer of 100M parameters, a 124M
language model.

Two, and four on a machine that has them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.measure import bench, tell
from benchmarks.training import finish, gpus, options, trained

RANKS = (2, 4)
PPO = ("ppo", "--env", "CartPole-v1", "--evaluate-every", "0")
Case = tuple[str, tuple[str, ...], str, int]
CASES: dict[str, Case] = {
    "PPO, 100M transformer": (
        "env_steps",
        (*PPO, "--policy", "h100-after", "--context", "32", "--num-envs", "2048", "--rollout-len", "128",
         "--epochs", "1", "--iterations", "20"),
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
PASS, STRETCH = 0.95, 0.985
"""What each of several GPUs is to reach of one alone: 1.9 × and 1.97 × on two."""


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    given = options(arguments)
    counts = [count for count in RANKS if count <= (RANKS[0] if given.quick else gpus())]
    if not counts:
        print(f"ranks_speed: it needs {RANKS[0]} GPUs, and there are {gpus()}", file=sys.stderr)
        return {"met": {}}
    figures: dict[str, Any] = {}
    met: dict[str, bool] = {}
    stretch: dict[str, bool] = {}
    with bench() as node:
        for name, (work, case, option, amount) in (QUICK if given.quick else CASES).items():
            rates: dict[int, Any] = {}
            for ranks in (1, *counts):
                command = (*case, option, str(ranks * amount), *given.device)
                found = trained(node, command, work, ranks=ranks).figures()
                rates[ranks] = tell(f"{name}, {ranks} GPUs", found)
            alone = rates[1]["rate"]["median"]
            ratios = {ranks: rates[ranks]["rate"]["median"] / alone for ranks in counts}
            figures[name] = {"ratios": {str(r): round(x, 3) for r, x in ratios.items()}, "by_gpus": rates}
            for words, share in () if given.quick else ((met, PASS), (stretch, STRETCH)):
                words |= {
                    f"{name}, {r} GPUs: at least {share * r:g} ×": x >= share * r for r, x in ratios.items()
                }
    return finish("ranks_speed", given, {"cases": figures, "met": met, "stretch": stretch})


if __name__ == "__main__":
    main(sys.argv[1:])
