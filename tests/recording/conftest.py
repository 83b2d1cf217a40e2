"""Recordings to write to, and rows to write."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hoptui.domain.columns import Columns, pack
from hoptui.recording import Recording
from hoptui.recording.ingest import Boot

SECOND = 1_000_000_000
MakeRows = Callable[..., Columns]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "r1.hoptui"


@pytest.fixture
def boot() -> Boot:
    """An uptime that began at 1 000 000 s of wall time, and is 1 000 s old."""
    return Boot("boot-1", 1_000_000 * SECOND, 1_000 * SECOND)


@pytest.fixture
def recording(path: Path, boot: Boot) -> Iterator[Recording]:
    with Recording.create(path, boot=boot) as recording:
        yield recording


@pytest.fixture
def rows() -> MakeRows:
    """rows(n, first=1, every=SECOND, source="host"): n rows of a rising x and, in every third row, a y."""

    def make(n: int, first: int = 1, every: int = SECOND, source: str = "host") -> Columns:
        return pack(
            source,
            [
                (i * every, i, {"x": float(i), "y": -0.5 * i} if i % 3 == 0 else {"x": float(i)})
                for i in range(first, first + n)
            ],
        )

    return make


@pytest.fixture
def long_rows() -> MakeRows:
    """long_rows(n, first=1, source="gpu/GPU-1"): n rows, one a second, of noise with two decimals (unknown in
    every seventh row) and of a rising counter."""

    def make(n: int, first: int = 1, source: str = "gpu/GPU-1") -> Columns:
        noise = random.Random(first)
        watts = array("d", [round(noise.gauss(600, 9), 2) for _ in range(n)])
        watts[::7] = array("d", [math.nan]) * len(watts[::7])
        return Columns(
            source=source,
            names=("power_w", "total"),
            t=array("q", range(first * SECOND, (first + n) * SECOND, SECOND)).tobytes(),
            step=array("q", range(first, first + n)).tobytes(),
            values=(watts.tobytes(), array("d", range(first, first + n)).tobytes()),
        )

    return make
