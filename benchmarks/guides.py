"""The settings that guides for H100 and H200 call slow, against those they recommend or hoptui chooses: what
a GPU shows.

Beside the speed: "busy" (what `nvidia-smi` calls utilization), SM and tensor activity, power, memory. Nothing
is to be reached here; the figures say what the settings are worth.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.measure import bench, tell
from benchmarks.training import finish, options, trained

PPO = ("ppo", "--env", "CartPole-v1", "--evaluate-every", "0")
LM = ("lm", "--preset", "124m", "--evaluate-every", "0", "--batch-tokens", "131072")
VISION = ("vision", "--preset", "vit-b", "--data", "synthetic", "--evaluate-every", "0")
Pair = tuple[str, tuple[str, ...], tuple[str, ...]]
PAIRS: dict[str, Pair] = {
    "RL: 4 envs, width 256 → 256 envs, width 1024": (
        "env_steps",
        (*PPO, "--preset", "h100-before", "--iterations", "20"),
        (*PPO, "--preset", "h100-after", "--iterations", "6"),
    ),
    "LM: micro-batch 8 × 16 → chosen by measurement": (
        "tokens",
        (*LM, "--micro-batch", "8", "--compile", "off", "--iterations", "60"),
        (*LM, "--iterations", "120"),
    ),
    "vision: batch 8 → 1024, micro-batch chosen by measurement": (
        "samples",
        (*VISION, "--batch-size", "8", "--compile", "off", "--iterations", "400"),
        (*VISION, "--iterations", "60"),
    ),
}
"""The unit, the command before, the command after."""
QUICK: dict[str, Pair] = {
    "vision: batch 2 → 64": (
        "samples",
        ("vision", "--preset", "tiny", "--evaluate-every", "0", "--iterations", "400", "--batch-size", "2"),
        ("vision", "--preset", "tiny", "--evaluate-every", "0", "--iterations", "200", "--batch-size", "64"),
    )
}


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    given = options(arguments)
    figures = {}
    with bench() as node:
        for name, (work, before, after) in (QUICK if given.quick else PAIRS).items():
            slow, fast = (trained(node, (*case, *given.device), work).figures() for case in (before, after))
            ratio = fast["rate"]["median"] / slow["rate"]["median"]
            pair = {"unit": f"{work}/s", "before": slow, "after": fast, "ratio": round(ratio, 2)}
            figures[name] = tell(name, pair)
    return finish("guides", given, {"pairs": figures, "met": {}})


if __name__ == "__main__":
    main(sys.argv[1:])
