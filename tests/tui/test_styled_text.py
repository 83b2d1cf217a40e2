"""Lines of spans: whatever they hold, they fill exactly the width they are laid to."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from hoptui.tui.styled_text import (
    FULL,
    GAP,
    Line,
    Span,
    as_shown,
    bar,
    first_fitting,
    fitted,
    lay,
    pack,
    width_of,
)


def text(line: Line, width: int, *, plain: bool = False) -> str:
    return "".join(piece for piece, _ in lay(line, width, plain=plain))


def test_what_stands_after_the_gap_is_flush_right() -> None:
    assert text((Span("name"), GAP, Span("live")), 12) == "name    live"


def test_a_long_left_part_gives_way_to_the_right() -> None:
    assert text((Span("a-very-long-name"), GAP, Span("live")), 12) == "a-very-…live"


def test_a_long_right_part_is_cut_like_any_other() -> None:
    assert text((Span("ab"), GAP, Span("cdefghijklm")), 8) == "abcdefg…"


@pytest.mark.parametrize(
    ("shown", "width", "left"),
    [
        ("gain +110.8 % ± 42.7", 18, "gain +110.8 % ± …"),
        ("gain +110.8 % ± 42.7", 12, "gain …"),
        ("at 16 384 of them", 7, "at …"),
        ("at 16 384 of them", 9, "at …"),
        ("at 16 384 of them", 11, "at 16 384 …"),
        ("lr 1.0e-6 … 0.1", 8, "lr …"),
        ("160 k…244 k steps/s", 12, "…"),
        ("epoch h100 of it", 9, "epoch h1…"),
        ("訓練 205 x", 7, "訓練 …"),
    ],
)
def test_a_number_that_has_no_room_is_left_out_whole(shown: str, width: int, left: str) -> None:
    assert text((Span(shown),), width).rstrip() == left
    assert text((Span(shown, width=width), Span("|")), 40).startswith(
        left.ljust(width - cell_len(left) + len(left))
    )


def test_a_number_that_just_fits_is_left_out_where_something_follows_it() -> None:
    assert text((Span("at "), Span("498"), Span("  more")), 6).rstrip() == "at …"


def test_the_most_that_fits_is_said() -> None:
    lines: list[Line] = [(Span("abc"), Span("de")), (Span("abc"),), (Span("a"),)]
    assert [first_fitting(lines, width) for width in (5, 4, 2, 0)] == [lines[0], lines[1], lines[2], lines[2]]


def test_columns_are_padded_and_cut() -> None:
    line = (Span("lr", width=4), Span("3.0e-4", width=8, right=True), Span("overlong", width=5))
    assert text(line, 20) == "lr    3.0e-4over…   "


def test_ascii_needs_no_more_cells_where_a_symbol_has_a_blank_beside_it() -> None:
    said = "4 → 8  +6.1 % ± 1.2 ●  1 … 64  ≤ 3"
    assert text((Span(said),), len(said), plain=True) == "4 ->8  +6.1 % +-1.2 *  1...64  <=3"


def test_ascii_widens_before_it_lays_out() -> None:
    assert text((Span("4→8"), GAP, Span("±1.2 ●")), 16, plain=True) == "4->8     +-1.2 *"


def test_wide_characters_count_two_cells() -> None:
    assert text((Span("訓練"), Span("x")), 6) == "訓練x "


@pytest.mark.parametrize(
    ("fraction", "drawn"),
    [
        (0, "────"),
        (0.5, "━━──"),
        (0.6, "━━╸─"),
        (1, "━━━━"),
        (7.0, "━━━━"),
        (-1, "────"),
        (None, "    "),
        (math.nan, "    "),
    ],
)
def test_bars(fraction: float | None, drawn: str) -> None:
    assert text(bar(fraction, 4, "1"), 4) == drawn


def test_packing_breaks_between_chunks_only() -> None:
    chunks: list[Line] = [
        (Span("loss "), Span("0.18")),
        (Span("entropy "), Span("0.4")),
        (Span("kl "), Span("1")),
    ]
    assert [text(line, 24).rstrip() for line in pack(chunks, 24)] == ["loss 0.18   entropy 0.4", "kl 1"]


@pytest.mark.parametrize("plain", [False, True], ids=["braille", "ascii"])
def test_without_colours_each_ink_has_signs_of_its_own_and_no_dot_is_lost(plain: bool) -> None:
    cells = "".join(chr(0x2800 + dots) for dots in range(1, 256))
    inks = ("1", "2", "3", "4", "dim")
    curves, strokes = (
        [as_shown(drawn, ink, plain=plain, colours=False) for ink in inks] for drawn in (cells, FULL)
    )
    assert len(set(curves)) == len(set(strokes)) == len(inks)
    for curve in curves:
        assert len(curve) == len(cells)
        assert not set(curve) & {" ", "\u2800"}
        assert curve.isascii() or not plain
    assert as_shown(cells, "2") == cells  # with colours all are drawn alike


spans = st.builds(
    Span,
    st.text(st.characters(exclude_categories=["C", "M", "Z"]), max_size=12),
    st.sampled_from(["", "2", "dim"]),
    st.integers(-1, 9),
    st.booleans(),
)


@given(st.lists(spans, max_size=8), st.integers(0, 60), st.booleans(), st.booleans())
def test_every_line_fills_its_width(line: list[Span], width: int, plain: bool, colours: bool) -> None:
    laid = lay(line, width, plain=plain, colours=colours)
    assert sum(cell_len(piece) for piece, _ in laid) == width
    if plain:
        assert all(piece.isascii() for piece, _ in laid)
    assert width_of(fitted(line, width, plain=plain)) == width
