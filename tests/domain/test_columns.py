"""Rows as columns: nothing is lost, mixed up or invented on the way there and back."""

from __future__ import annotations

import math
import struct
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoptui.domain.columns import LOGGED_NAN, Columns, check, concatenate, is_known, pack

Row = tuple[int, int, dict[str, float]]

known = st.dictionaries(st.sampled_from(["loss", "lr", "é", ""]), st.floats(allow_nan=False), max_size=4)
stamps = st.integers(-(1 << 63), (1 << 63) - 1)


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    times = sorted(draw(st.lists(stamps, max_size=12)))
    return [(t, draw(stamps), draw(known)) for t in times]


def small() -> Columns:
    return pack("host", [(10, 1, {"a": 1.0}), (20, 2, {"b": 2.0}), (30, 3, {"a": 3.0, "b": math.nan})])


@given(histories())
@settings(deadline=None)
def test_rows_come_back_as_they_were(rows: list[Row]) -> None:
    columns = pack("run/r1", rows)
    check(columns)
    assert columns.source == "run/r1"
    assert len(columns) == len(rows)
    assert list(columns.rows()) == rows
    assert list(columns.times()) == [t for t, _, _ in rows]
    assert list(columns.steps()) == [step for _, step, _ in rows]


def test_names_are_in_the_order_of_their_first_row() -> None:
    assert small().names == ("a", "b")
    assert pack("s", []).names == ()


def test_a_value_that_a_row_did_not_have_is_nan() -> None:
    assert [math.isnan(v) for v in small().column("a")] == [False, True, False]
    assert [math.isnan(v) for v in small().column("b")] == [True, False, True]


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(KeyError, match="loss"):
        small().column("loss")


def test_the_newest_known_value_of_each_name() -> None:
    assert small().last() == {"a": 3.0, "b": 2.0}
    assert pack("s", [(1, 1, {"a": math.nan})]).last() == {}


@pytest.mark.skipif(
    sys.byteorder != "little", reason="the wire is little-endian and so is every machine it runs on"
)
def test_the_bytes_are_little_endian_64_bit_numbers() -> None:
    columns = pack("s", [(258, -1, {"a": 1.5})])
    assert columns.t == struct.pack("<q", 258)
    assert columns.step == struct.pack("<q", -1)
    assert columns.values == (struct.pack("<d", 1.5),)


@given(histories(), st.integers(-15, 15), st.none() | st.integers(-15, 15))
@settings(deadline=None)
def test_a_slice_is_that_of_a_list(rows: list[Row], start: int, stop: int | None) -> None:
    found = pack("s", rows).slice(start, stop)
    check(found)
    assert list(found.rows()) == rows[start:stop]


@given(histories(), stamps)
@settings(deadline=None)
def test_after_leaves_the_rows_stamped_later(rows: list[Row], t: int) -> None:
    assert list(pack("s", rows).after(t).rows()) == [row for row in rows if row[0] > t]


def test_after_at_a_stamp_that_is_there() -> None:
    assert [t for t, _, _ in small().after(20).rows()] == [30]
    assert [t for t, _, _ in small().after(19).rows()] == [20, 30]
    assert len(small().after(30)) == 0
    whole = small()
    assert whole.after(9) is whole


@given(histories(), st.integers(0, 12), st.integers(0, 12))
@settings(deadline=None)
def test_pieces_put_together_are_the_whole(rows: list[Row], a: int, b: int) -> None:
    a, b = sorted((a, b))
    whole = concatenate("s", [pack("s", rows[:a]), pack("s", rows[a:b]), pack("s", rows[b:])])
    check(whole)
    assert list(whole.rows()) == rows


def test_nothing_put_together_is_nothing() -> None:
    assert list(concatenate("s", []).rows()) == []
    assert list(concatenate("s", [pack("s", [])]).rows()) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"t": bytes(16)}, "different lengths"),
        ({"step": bytes(16)}, "different lengths"),
        ({"t": bytes(7), "step": bytes(7), "values": (bytes(7),)}, "different lengths"),
        ({"values": ()}, "different lengths"),
        ({"values": (bytes(8), bytes(8))}, "different lengths"),
        ({"values": (bytes(9),)}, "different lengths"),
        ({"names": ()}, "different lengths"),
        ({"names": ("a", "a"), "values": (bytes(8), bytes(8))}, "a name twice"),
    ],
)
def test_columns_that_do_not_fit_together_are_refused(change: dict[str, object], says: str) -> None:
    fields: dict[str, object] = {"names": ("a",), "t": bytes(8), "step": bytes(8), "values": (bytes(8),)}
    check(Columns(source="s", **fields))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=says):
        check(Columns(source="s", **{**fields, **change}))  # type: ignore[arg-type]


def test_stamps_may_stand_still_but_not_fall() -> None:
    check(pack("s", [(1, 1, {}), (1, 2, {}), (2, 3, {})]))
    with pytest.raises(ValueError, match="out of order"):
        check(pack("s", [(1, 1, {}), (3, 2, {}), (2, 3, {})]))


def test_a_nan_that_was_logged_is_a_value() -> None:
    columns = pack(
        "run/r", [(1, 1, {"a": 1.0, "b": 2.0}), (2, 2, {"a": LOGGED_NAN}), (3, 3, {"b": math.nan})]
    )
    assert math.isnan(LOGGED_NAN)
    assert {name: is_known(value) for name, value in columns.last().items()} == {"a": True, "b": True}
    assert math.isnan(columns.last()["a"])
    assert columns.last()["b"] == 2.0
    assert [list(values) for _, _, values in columns.rows()] == [["a", "b"], ["a"], []]
    joined = concatenate("run/r", (columns.slice(0, 1), columns.slice(1)))
    assert is_known(joined.after(1).column("a")[0])
    assert not is_known(joined.column("b")[2])
