"""`python -m benchmarks.trainer [NAME …] [--quick] [--anchor PATH]`: what the trainer promises of a GPU, as
one table.

Exit status 1 if a target was missed. Every figure is also in `benchmarks/results/`. With `--quick` only the
mechanics are tried, on a CPU and in seconds.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from benchmarks.measure import machine

ALL = ("ppo_speed", "ppo_learn", "ppo_resize", "lm_speed", "vision_speed", "ranks_speed", "guides")


def main(arguments: Sequence[str]) -> int:
    """Run the benchmarks named, or all."""
    names = [argument for argument in arguments if argument in ALL]
    rest = [argument for argument in arguments if argument not in ALL]
    missed = 0
    lines = []
    for name in names or ALL:
        result = importlib.import_module(f"benchmarks.{name}").main(rest)
        for target, met in result["met"].items():
            missed += not met
            lines.append(f"{'met   ' if met else 'MISSED'}  {name:<13} {target}")
        for target, met in result.get("stretch", {}).items():
            lines.append(f"{'met   ' if met else '–     '}  {name:<13} stretch: {target}")
    on = machine()
    print(f"\n{', '.join(on.get('gpus', ['no GPU']))} · {on['date']} · torch {on.get('torch', '?')}")
    print("\n".join(lines))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
