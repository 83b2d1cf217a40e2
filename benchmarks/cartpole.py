"""CartPole-v1 to a deterministic return of 475 on the CPU: seconds of training, three seeds."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from benchmarks.measure import report, tell

SEEDS = (0, 1, 2)


def main() -> None:
    """Measure and report."""
    figures: dict[str, Any] = {}
    for seed in SEEDS:
        command = [
            sys.executable,
            "-m",
            "hoptui_trainer",
            "ppo",
            "--env",
            "CartPole-v1",
            "--name",
            f"seed-{seed}",
        ]
        began = time.monotonic()
        done = subprocess.run(
            [*command, "--seed", str(seed), "--device", "cpu", "--until-return", "475", "--json"],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        one = {
            **json.loads(done.stdout.strip().splitlines()[-1]),
            "passed": done.returncode == 0,
            "wall_s_with_start": round(time.monotonic() - began, 2),
        }
        figures[f"seed {seed}"] = tell(f"seed {seed}", one)
    report("cartpole", {"unit": "seconds of training", "figures": figures})


if __name__ == "__main__":
    main()
