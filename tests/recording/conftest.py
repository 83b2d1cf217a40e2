"""Recordings to write to, and rows to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hoptui.recording import Recording
from hoptui.recording.boots import Boot
from hoptui.wire.columns import Columns, pack

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
