"""The best points of grids in one JSON file, which the processes of a call share."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.live import Point
from benchmarks.measure import machine

LOOK_S = 0.5


def machine_name(device: str) -> str:
    """Return the name of what a loop runs on: the model of the GPUs, or of the CPU."""
    found = machine()
    gpus = sorted(set(found.get("gpus", ())))
    return ", ".join(gpus) if device == "cuda" and gpus else str(found["cpu"])


@dataclass(frozen=True)
class GridFile:
    """The file at `path`, with the grids of loops on this machine.

    A process waits `waits_s` for a grid that another one measures.
    """

    path: Path
    machine: str
    waits_s: float = 0.0

    def best(self, loop: str) -> Point | None:
        """Return the best point of a loop. None if its grid is not known, also after the wait."""
        until = time.monotonic() + self.waits_s
        while (found := self._grids().get(self._key(loop))) is None and time.monotonic() < until:
            time.sleep(LOOK_S)
        best: Point | None = None if found is None else found["best"]
        return best

    def put(self, loop: str, points: Sequence[Mapping[str, Any]], best: Point, of: int) -> None:
        """Add the measured points of a grid of `of` points."""
        with self._locked():
            grids = self._grids() | {self._key(loop): {"best": best, "of": of, "points": points}}
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps(grids, indent=1, ensure_ascii=False))
            new.replace(self.path)

    def _key(self, loop: str) -> str:
        return f"{loop} on {self.machine}"

    def _grids(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.path.read_text())
        except FileNotFoundError:
            return {}
        return found

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
