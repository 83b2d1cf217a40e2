"""`python -m screenshots.report_page`: pictures of a report of a recorded run, as Chromium shows it.

`make screenshots` does not make them: they need Chromium.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from PIL import Image

HERE = Path(__file__).parent
RECORDING = HERE.parent / "hoptui" / "examples" / "lm-h200.hoptui"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
LIMIT_S = 120
WAITED_MS = 5000
"""Virtual time that Chromium gives the page to draw its charts."""
COLORS = 64


class Page(NamedTuple):
    """A picture: its file, and its width and height in pixels."""

    file: str
    width: int
    height: int


PAGES = (Page("report.png", 1200, 1460), Page("report_narrow.png", 400, 1460))


def taken(page: Page, report: Path, chromium: str) -> bytes:
    """Return the beginning of a report as PNG."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.png"
        command = [
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/profile",
            f"--window-size={page.width},{page.height}",
            f"--virtual-time-budget={WAITED_MS}",
            f"--screenshot={file}",
            report.as_uri(),
        ]
        subprocess.run(command, check=True, timeout=LIMIT_S, capture_output=True)
        with Image.open(file) as image:
            small = image.convert("RGB").quantize(COLORS)
    data = io.BytesIO()
    small.save(data, "PNG", optimize=True)
    return data.getvalue()


def main() -> int:
    """Make the pictures. Return 1 without Chromium."""
    chromium = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if chromium is None:
        print("Chromium was not found", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.html"
        command = [sys.executable, "-m", "hoptui", "report", str(RECORDING), "-o", str(report)]
        subprocess.run(command, check=True, timeout=LIMIT_S, env=os.environ | {"TZ": "UTC"})
        for page in PAGES:
            data = taken(page, report, chromium)
            (HERE / "report" / page.file).write_bytes(data)
            print(f"{page.file}  {len(data) / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
