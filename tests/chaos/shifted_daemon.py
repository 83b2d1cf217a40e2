"""A daemon whose wall clock is ahead by the seconds that a file holds: `shifted_daemon.py FILE`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from hoptui.daemon.__main__ import main


def shift_clock(file: Path) -> None:
    """Shift the wall clock of this process. The file may change at any time."""
    real = time.time, time.time_ns
    time.time = lambda: real[0]() + float(file.read_text())
    time.time_ns = lambda: real[1]() + int(float(file.read_text()) * 1e9)


if __name__ == "__main__":
    shift_clock(Path(sys.argv.pop()))
    sys.exit(main())
