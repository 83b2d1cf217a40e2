"""Keep the screens of terminal monitors beside a training run, in three sizes, with their colours.

`python -m benchmarks.terminal_screens FOLDER [--device cpu] [--seconds 20]`. It trains the language model of
`hoptui_trainer`, opens each monitor beside it with the monitor's own defaults, and writes what tmux shows to
`FOLDER/<monitor>_<columns>x<rows>.ansi`. It needs tmux. A monitor is left out if it is not installed or has
ended by then. `python -m screenshots.comparison` draws such files that are in its folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.guides import LM_BEFORE
from benchmarks.measure import Bench, bench, report, tell, until
from benchmarks.training import start
from benchmarks.tuner_guides import endless

SIZES = ((80, 24), (120, 40), (200, 50))
NAME = "lm"
ON_CPU = (
    *("lm", "--preset", "tiny", "--batch-tokens", "2048", "--micro-batch", "4", "--compile", "off"),
    *("--evaluate-every", "0", "--iterations", "1"),
)
MONITORS = {
    "hoptui": (sys.executable, "-m", "hoptui", "attach", NAME),
    "nvitop": (sys.executable, "-m", "nvitop"),
    "nvtop": ("nvtop",),
    "btop": ("btop", "--utf-force"),
}
TRAINED = 30
"""Iterations before the first screen."""


def captured(node: Bench, command: Sequence[str], size: tuple[int, int], seconds: float) -> bytes | None:
    """Return the rows of a screen after so many seconds, with their sequences of colours.

    tmux is the terminal. None: the program has ended by then.
    """
    tmux = ("tmux", "-L", f"screens-{time.monotonic_ns()}", "-f", os.devnull)  # the last one may still end
    home = node.base / "home"  # without settings of the user
    home.mkdir(exist_ok=True)
    environment = node.environment | {"LANG": "C.UTF-8", "HOME": str(home)}
    columns, rows = map(str, size)
    bare = ("start-server", ";", "set", "-g", "status", "off", ";")
    subprocess.run(
        [*tmux, *bare, "new-session", "-d", "-x", columns, "-y", rows, *command], env=environment, check=True
    )
    try:
        time.sleep(seconds)
        taken = subprocess.run(
            [*tmux, "capture-pane", "-e", "-N", "-p"], env=environment, check=False, capture_output=True
        )
    finally:
        subprocess.run([*tmux, "kill-server"], env=environment, check=False, stderr=subprocess.DEVNULL)
    return taken.stdout if not taken.returncode else None


def main(arguments: Sequence[str] = ()) -> int:
    """Keep all screens, and report which."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.terminal_screens", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="+", choices=MONITORS, default=[*MONITORS])
    parser.add_argument("--seconds", type=float, default=20.0, help="that each monitor has for its screen")
    given = parser.parse_args(list(arguments))
    given.folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[str]] = {}
    with bench() as node, node.session() as session:
        command = endless(LM_BEFORE if given.device == "cuda" else ON_CPU, "100000")
        start(node, (*command, "--device", given.device), name=NAME)

        def trained() -> bool:
            return any((vital.step or 0) >= TRAINED for vital in session.fetch().vitals.values())

        until(trained, seconds=240.0, what="the training")
        for name in given.only:
            found[name] = []
            program = MONITORS[name][0]
            for size in SIZES if shutil.which(program) else ():
                screen = captured(node, MONITORS[name], size, given.seconds)
                if screen is None:
                    break
                path = given.folder / f"{name}_{size[0]}x{size[1]}.ansi"
                path.write_bytes(screen)
                found[name].append(path.name)
            tell(name, {"screens": found[name]})
    report("terminal_screens", {"device": given.device, "screens": found})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
