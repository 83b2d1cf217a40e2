"""`make test-gpu`: what hoptui promises of a GPU node, checked against the real driver, as one table.

Exit status 1 if a target was missed. Every figure is also in `benchmarks/results/`.
"""

from __future__ import annotations

import importlib
import sys

from benchmarks.measure import machine

CHECKS = ("tick", "against_dmon", "gpm_loads", "observer", "sampler_cost")


def main() -> int:
    """Run the checks named on the command line, or all."""
    names = sys.argv[1:] or CHECKS
    missed = 0
    lines = []
    for name in names:
        result = importlib.import_module(f"benchmarks.{name}").main()
        for target, met in result["met"].items():
            missed += not met
            lines.append(f"{'met   ' if met else 'MISSED'}  {name:<13} {target}")
    on = machine()
    print(
        f"\n{', '.join(on.get('gpus', ['no GPU']))} · {on['date']} · Python {on['python']} · torch "
        f"{on.get('torch', '?')}"
    )
    print("\n".join(lines))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
