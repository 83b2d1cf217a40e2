"""The settings that guides for H100 and H200 call slow, against those they recommend or hoptui chooses: what
a GPU shows.

`python -m benchmarks.guides [--own] [--quick]`. "Before" has the sizes of its guide, in bf16. The language
model and vision are not compiled then. "After" has the guide's own sizes for reinforcement learning. For the
language model and vision it is what hoptui chooses: torch.compile, and a micro-batch by measurement. With
`--own` it is what their guides recommend, for the same models: max-autotune, the guide's micro-batch and
pieces, and for the language model FP8 and checkpointing.

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
LM_BEFORE = PAIRS["LM: micro-batch 8 × 16 → chosen by measurement"][1]
VISION_BEFORE = PAIRS["vision: batch 8 → 1024, micro-batch chosen by measurement"][1]
OWN: dict[str, Pair] = {
    "LM: micro-batch 8 × 16 → the guide's own: 64 × 4, FP8, max-autotune, checkpointing": (
        "tokens",
        LM_BEFORE,
        (
            *("lm", "--preset", "124m", "--evaluate-every", "0", "--micro-batch", "64", "--grad-accum", "4"),
            *("--precision", "fp8", "--compile", "max-autotune", "--checkpointing", "--iterations", "60"),
        ),
    ),
    "vision: batch 8 → the guide's own: 256 × 4, max-autotune": (
        "samples",
        VISION_BEFORE,
        (
            *VISION,
            *("--batch-size", "1024", "--micro-batch", "256", "--compile", "max-autotune"),
            *("--iterations", "60"),
        ),
    ),
}
"""The same with the "after" of the guide itself."""
QUICK: dict[str, Pair] = {
    "vision: batch 2 → 64": (
        "samples",
        ("vision", "--preset", "tiny", "--evaluate-every", "0", "--iterations", "400", "--batch-size", "2"),
        ("vision", "--preset", "tiny", "--evaluate-every", "0", "--iterations", "200", "--batch-size", "64"),
    )
}


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    own = "--own" in arguments
    given = options([word for word in arguments if word != "--own"])
    figures = {}
    with bench() as node:
        for name, (work, before, after) in (QUICK if given.quick else OWN if own else PAIRS).items():
            slow, fast = (trained(node, (*case, *given.device), work).figures() for case in (before, after))
            ratio = fast["rate"]["median"] / slow["rate"]["median"]
            pair = {"unit": f"{work}/s", "before": slow, "after": fast, "ratio": round(ratio, 2)}
            figures[name] = tell(name, pair)
    return finish("guides_own" if own else "guides", given, {"pairs": figures, "met": {}})


if __name__ == "__main__":
    main(sys.argv[1:])
