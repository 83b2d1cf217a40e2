"""`make screenshots`: every picture of `shots` and the cast, from the recordings of real runs on an H200 in
`hoptui/examples/`."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from screenshots import cast
from screenshots.picture import Frame, NoFontError, drawn, png, webp
from screenshots.shots import Picture, pictures, shoot

HERE = Path(__file__).parent
CAST = HERE / "cast.webp"


def taken(picture: Picture) -> bytes:
    """A picture's PNG."""
    return png(drawn(asyncio.run(shoot(picture))))


def frame(shown: cast.Shown) -> Frame:
    """A frame of the cast."""
    return Frame(drawn(shown.svg), shown.ms)


def main() -> int:
    """Make all of them, and delete pictures of before that are no longer in the table."""
    os.environ["TZ"] = "UTC"  # of the times on screen
    time.tzset()
    files = {HERE / f"{picture.file}.png": picture for picture in pictures()}
    try:
        with ProcessPoolExecutor() as workers:
            made = workers.map(taken, files.values())
            frames = workers.map(frame, asyncio.run(cast.play()))
            for file, data in zip(files, made, strict=True):
                _write(file, data)
            _write(CAST, webp(list(frames)))
    except NoFontError as error:
        print(error, file=sys.stderr)
        return 1
    for old in set(HERE.glob("*.png")) - set(files):
        old.unlink()
    return 0


def _write(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    print(f"{file.name}  {len(data) / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    sys.exit(main())
