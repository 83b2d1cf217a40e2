"""`hoptui train lm` as a command."""

from __future__ import annotations

import subprocess
import sys

LIMIT_S = 90.0


def test_its_options_are_read_without_torch() -> None:
    script = "import sys, hoptui_trainer.lm.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=LIMIT_S, check=False).returncode == 0
