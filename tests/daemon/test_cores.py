"""The loads of the cores: the newest row for viewers, nothing in recordings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from hoptui.domain.columns import Columns, pack
from hoptui.domain.devices import CORES
from tests.daemon.quiet_node import SECOND, Keeper, QuietNode


def test_only_the_newest_row_is_kept_and_none_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[str] = []

    def rows(keeper: Keeper, runs: Iterable[str], parts: Sequence[Columns]) -> None:
        recorded.extend(part.source for part in parts)

    monkeypatch.setattr(Keeper, "rows", rows)
    quiet = QuietNode()
    quiet.hello()
    for second in range(1, 4):
        t = quiet.now + second * SECOND
        quiet.node.rows(
            (pack(CORES, [(t, -1, {"0": float(second)})]), pack("host", [(t, -1, {"load_1m": 1.0})]))
        )
    ring = quiet.node.rings.get(CORES)
    assert ring is not None
    (part,) = ring.parts()
    assert part.last() == {"0": 3.0}
    assert CORES in {part.source for part in quiet.node.latest()}
    assert "host" in recorded
    assert CORES not in recorded
