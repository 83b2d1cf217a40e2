"""`python -m screenshots.comparison [TOOL …]`: the pictures of `docs/comparison.md`.

It trains `train.py` on this machine, and opens each tool beside it in three sizes, with the tool's own
defaults. It needs wandb, pyte, torch and tmux. A tool is left out if it is not installed or draws nothing
here. The pictures of an H200 are drawn from files `*.ansi`, which `benchmarks/terminal_screens.py` kept.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import Bench, bench, until
from benchmarks.terminal_screens import SIZES, captured
from screenshots.comparison.terminal import of_rows, svg
from screenshots.picture import NoFontError, drawn, png

HERE = Path(__file__).parent
WANDB = (sys.executable, "-m", "wandb")
WATCHED_S = 20.0
TRAINED = 300
"""Iterations before the first picture."""
WIDTH = 1200
"""The most pixels across: a picture of a documentation page."""


def tools(wandb: Path) -> dict[str, list[str]]:
    """The commands by the names of their pictures. `wandb` is the folder of its run."""
    return {
        "hoptui": [sys.executable, "-m", "hoptui", "attach", "classifier"],
        "btop": ["btop", "--utf-force"],
        "leet": [*WANDB, "leet", str(wandb)],
        "symon": [*WANDB, "leet", "symon"],
        "nvitop": [sys.executable, "-m", "nvitop"],
    }


def main() -> int:
    """Make all pictures, or those of the tools named on the command line."""
    wanted = sys.argv[1:]
    try:
        for file in sorted(HERE.glob("*.ansi")):
            name, _, size = file.stem.split("_")
            columns, rows = map(int, size.split("x"))
            _write(file.stem, of_rows(file.read_bytes(), columns, rows), name)
        with bench() as node:
            folder = node.base / "home"
            folder.mkdir()
            script = str(shutil.copy(HERE / "train.py", folder))
            node.start([sys.executable, script, str(folder)])
            until(lambda: _step(node) >= TRAINED, seconds=300.0, what="the training")
            for name, command in tools(folder / "wandb").items():
                if wanted and name not in wanted:
                    continue
                if shutil.which(command[0]) is None:
                    print(f"{name}: not installed", file=sys.stderr)
                    continue
                for columns, rows in SIZES:
                    screen = _shown(node, command, columns, rows)
                    if screen is None:
                        print(f"{name}: draws nothing here", file=sys.stderr)
                        break
                    _write(f"{name}_{columns}x{rows}", screen, name)
    except NoFontError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _step(node: Bench) -> int:
    with node.session() as viewer:
        return max((vital.step or 0 for vital in viewer.fetch().vitals.values()), default=0)


def _shown(node: Bench, command: list[str], columns: int, rows: int) -> Any:
    """The screen after a while; None if the tool has ended by then."""
    taken = captured(node, command, (columns, rows), WATCHED_S)
    return of_rows(taken, columns, rows) if taken is not None else None


def _write(file: str, screen: Any, title: str) -> None:
    image = drawn(svg(screen, title))
    if image.width > WIDTH:
        image = image.resize((WIDTH, round(image.height * WIDTH / image.width)))
    data = png(image)
    (HERE / f"{file}.png").write_bytes(data)
    print(f"{file}.png  {len(data) / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    sys.exit(main())
