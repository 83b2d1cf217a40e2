"""The shared x axis of the chart screen: modes, zoom, pan, crosshair."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hoptui.tui.charts.grid import Extent, Timeline

FIRST, NEWEST = 1_000, 11_000
THERE = Extent(FIRST, NEWEST, NEWEST)


def later(ns: int) -> Extent:
    return Extent(FIRST, NEWEST + ns, NEWEST + ns)


def test_live_follows_and_frozen_stands_still() -> None:
    line = Timeline(100, 10)
    assert (line.mode, line.edges(THERE)) == ("live", (10_900, 11_000))
    assert line.edges(later(5)) == (10_905, 11_005)
    line.freeze(THERE)
    assert (line.mode, line.edges(later(500))) == ("frozen", (10_900, 11_000))
    line.freeze(later(500))
    assert (line.mode, line.edges(later(500))) == ("live", (11_400, 11_500))


def test_all_history_grows_with_the_run() -> None:
    line = Timeline(100, 10)
    line.all()
    assert (line.mode, line.edges(THERE)) == ("all", (FIRST, NEWEST))
    assert line.edges(later(50)) == (FIRST, NEWEST + 50)
    line.freeze(THERE)
    assert (line.mode, line.edges(later(50))) == ("frozen", (FIRST, NEWEST))


def test_zooming_out_ends_at_everything_and_in_at_the_least() -> None:
    line = Timeline(100, 10)
    for _ in range(10):
        line.zoom(2, THERE)
    assert line.mode == "all"
    for _ in range(20):
        line.zoom(0.5, THERE)
    assert (line.mode, line.edges(THERE)) == ("live", (10_990, 11_000))


def test_zoom_keeps_the_crosshair_where_it_is_on_screen() -> None:
    line = Timeline(1_000, 10)
    line.cross = 10_200
    line.zoom(0.5, THERE)
    assert (line.mode, line.edges(THERE)) == ("frozen", (10_100, 10_600))
    line.zoom(0.5, THERE, at=10_600)
    assert line.edges(THERE) == (10_350, 10_600)


def test_panning_stops_at_the_first_and_is_live_at_the_newest() -> None:
    line = Timeline(1_000, 10)
    line.pan(-0.5, THERE)
    assert (line.mode, line.edges(THERE)) == ("frozen", (9_500, 10_500))
    line.pan(-100, THERE)
    assert line.edges(THERE) == (1_000, 2_000)
    line.pan(100, THERE)
    assert line.mode == "live"


def test_the_crosshair_appears_at_the_end_and_takes_the_view_along() -> None:
    line = Timeline(1_000, 10)
    line.move_cross(0.1, THERE)
    assert line.cross == NEWEST
    line.move_cross(-0.9, THERE)
    assert (line.cross, line.mode) == (10_100, "live")
    line.move_cross(-0.2, THERE)
    assert (line.cross, line.mode, line.edges(THERE)) == (9_900, "frozen", (9_900, 10_900))
    line.move_cross(5, THERE)
    assert (line.cross, line.mode) == (NEWEST, "live")


def test_another_axis_shows_the_same_part() -> None:
    line = Timeline(1_000, 10)
    line.pan(-1, THERE)
    line.cross = 9_600
    line.remap(lambda x: x * 2, THERE, least=4)
    assert (line.cross, line.edges(Extent(2 * FIRST, 2 * NEWEST, 2 * NEWEST))) == (19_200, (18_000, 20_000))
    line.remap(lambda x: None, THERE, least=4)
    assert line.cross is None
    assert line.mode == "all"


def test_a_longer_run_beside_is_seen_to_its_end_and_live_is_where_this_one_is() -> None:
    there = Extent(0, 1_000, 5_000)
    line = Timeline(100, 10)
    assert line.edges(there) == (900, 1_000)
    line.pan(2, there)
    assert (line.mode, line.edges(there)) == ("frozen", (1_100, 1_200))
    line.all()
    assert line.edges(there) == (0, 5_000)
    line.zoom(0.5, there)  # around this run's newest
    assert line.edges(there) == (500, 3_000)
    line.pan(100, there)
    assert (line.mode, line.edges(there)) == ("frozen", (2_500, 5_000))


moves = st.tuples(st.sampled_from(["zoom", "pan", "cross", "freeze", "all", "live"]), st.floats(-3, 3))


@given(st.lists(moves, max_size=30), st.integers(0, 10_000), st.integers(1, 10_000), st.integers(0, 500))
def test_it_never_leaves_what_there_is(
    found: list[tuple[str, float]], first: int, length: int, beyond: int
) -> None:
    line, there = Timeline(500, 10), Extent(first, first + length, first + length + beyond)
    for name, by in found:
        match name:
            case "zoom":
                line.zoom(2**by, there)
            case "pan":
                line.pan(by, there)
            case "cross":
                line.move_cross(by, there)
            case "freeze":
                line.freeze(there)
            case "all":
                line.all()
            case "live":
                line.live()
        x0, x1 = line.edges(there)
        assert x1 - x0 >= 10
        assert x1 <= there.last
        assert line.cross is None or line.cross <= there.last


def test_a_run_that_has_just_begun_fills_more_than_half_of_what_is_seen() -> None:
    line = Timeline(10_000, 10)
    young = Extent(1_000, 2_300, 2_300)
    assert (line.mode, line.edges(young)) == ("live", (-200, 2_300))
    assert line.edges(Extent(1_000, 3_600, 3_600)) == (-1_400, 3_600)
    line.pan(-0.5, young)
    assert line.mode == "live"  # all of it is in sight
    assert line.edges(later(0)) == (1_000, 11_000)  # and it goes on to what it is meant to show
    assert Timeline(10_000, 10).edges(Extent(0, 20, 20)) == (-605, 20)  # no less than a sixteenth
    assert Timeline(10_000, 10).edges(Extent(0, 10, 10)) == (-9_990, 10)  # nothing is known yet
