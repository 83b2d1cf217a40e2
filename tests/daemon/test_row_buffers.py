"""Rows in memory: joined as they come, found as if they were not."""

from __future__ import annotations

from hoptui.daemon.state.row_buffers import JOINED, Ring
from hoptui.domain.columns import Columns, pack


def one(t: int, **values: float) -> Columns:
    return pack("host", [(t, -1, values or {"x": float(t)})])


def filled(rows: int) -> Ring:
    ring = Ring("host")
    for t in range(1, rows + 1):
        ring.append(one(t))
    return ring


def test_single_rows_are_joined() -> None:
    ring = filled(3 * JOINED + 5)
    assert [len(part) for part in ring.parts()] == [JOINED, JOINED, JOINED, 1, 1, 1, 1, 1]
    rows, more = ring.since(0, 10_000)
    assert rows is not None
    assert not more
    assert list(rows.times()) == list(range(1, 3 * JOINED + 6))
    assert list(rows.column("x")) == [float(t) for t in rows.times()]


def test_names_that_come_and_go_are_unknown_in_between() -> None:
    ring = filled(JOINED - 1)
    ring.append(one(JOINED, x=1.0, y=2.0))
    rows = ring.newest(2)
    assert [values for _, _, values in rows.rows()] == [{"x": float(JOINED - 1)}, {"x": 1.0, "y": 2.0}]


def test_rows_after_a_cursor_within_a_joined_part() -> None:
    ring = filled(JOINED + 2)
    rows, more = ring.since(10, 4)
    assert rows is not None
    assert list(rows.times()) == [11, 12, 13, 14]
    assert more
    assert ring.since(JOINED + 2, 4) == (None, False)


def test_what_is_not_newer_is_left_out() -> None:
    ring = filled(5)
    assert len(ring.append(one(5))) == 0
    last = ring.last()
    assert last is not None
    assert list(last.times()) == [5]


def test_the_last_row_has_what_fast_ticks_leave_out_and_nothing_older() -> None:
    ring = Ring("gpu/a")
    for tick in range(12):
        slow = {"busy": float(tick)} if tick % 5 == 0 else {}
        ring.append(pack("gpu/a", [(tick * 100_000_000 + 1, -1, {"power_w": 100.0 + tick, **slow})]))
    last = ring.last()
    assert last is not None
    assert list(last.rows()) == [(1_100_000_001, -1, {"power_w": 111.0, "busy": 10.0})]
    ring.append(pack("gpu/a", [(2_100_000_001, -1, {"power_w": 50.0})]))
    last = ring.last()
    assert last is not None
    assert list(last.rows()) == [(2_100_000_001, -1, {"power_w": 50.0})]


def test_an_excerpt_has_the_names_asked_for_and_is_what_the_whole_says() -> None:
    ring = filled(JOINED + 3)
    ring.append(one(JOINED + 4, y=4.0))
    ring.append(one(JOINED + 5, x=5.0, y=5.0))
    rows = ring.excerpt(("y", "x", "y", "never"), after=JOINED + 2, most=3)
    assert rows.names == ("y", "x")
    assert [(t, values) for t, _, values in rows.rows()] == [
        (JOINED + 3, {"x": float(JOINED + 3)}),
        (JOINED + 4, {"y": 4.0}),
        (JOINED + 5, {"y": 5.0, "x": 5.0}),
    ]
    whole = ring.newest(70)
    same = ring.excerpt(whole.names, most=70)
    assert list(same.rows()) == list(whole.rows())
    assert len(same) == JOINED + 5


def test_an_excerpt_is_of_the_newest_rows_that_are_new_enough() -> None:
    ring = filled(2 * JOINED)
    assert list(ring.excerpt(("x",), most=2).times()) == [2 * JOINED - 1, 2 * JOINED]
    assert list(ring.excerpt(("x",), after=JOINED - 1).times()) == list(range(JOINED, 2 * JOINED + 1))
    assert len(ring.excerpt(("x",), after=2 * JOINED)) == 0
    assert len(Ring("host").excerpt(("x",))) == 0
