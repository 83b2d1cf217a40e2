"""`python -m benchmarks [NAME …]`: all of them, or some, one after another."""

from __future__ import annotations

import importlib
import sys

ALL = (
    "boundary_cost",
    "log_cost",
    "stack_cost",
    "injection_cost",
    "memory",
    "accept_latency",
    "burst",
    "attach",
    "far",
    "dashboard",
    "chart",
    "chart_truth",
    "replay",
    "recording",
    "stack_recording",
    "report",
    "cartpole",
    "throughput",
    "vision_loading",
    "tuner_simulation",
    "tuner_energy_simulation",
    "tuner_folder",
    "rivals",
    "endurance",
    "monkey_live",
)


def main() -> int:
    """Run the benchmarks named on the command line."""
    names = sys.argv[1:] or ALL
    for name in names:
        if name not in ALL:
            print(f"there is no benchmark {name!r}; there are: {', '.join(ALL)}", file=sys.stderr)
            return 2
    for name in names:
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
