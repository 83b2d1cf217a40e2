"""The modules of the simulation, run as commands in a process where sets have a fixed order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def printed(module: str, *options: str, limit_s: float) -> str:
    """Return what `python -m MODULE` prints. Fail with it if the command fails."""
    done = subprocess.run(
        [sys.executable, "-m", module, *options],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
