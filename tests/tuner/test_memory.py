"""What a size is expected to take, and what neighbours do."""

from __future__ import annotations

import pytest

from hoptui.tuner.memory import MemoryModel, Neighbours, full
from hoptui.tuner.scene import Memory


def seen(*points: tuple[float, int]) -> MemoryModel:
    model = MemoryModel()
    for size, used in points:
        model.saw(size, used)
    return model


def test_nothing_is_allowed_before_anything_was_seen() -> None:
    assert seen().predicted(8) is None
    assert not seen().allows(8, Memory(10, 0, 100), 0.92)
    assert not seen((8, 10)).allows(8, None, 0.92)


def test_one_size_grows_as_a_whole_and_shrinks_not_at_all() -> None:
    model = seen((8, 40))
    assert model.predicted(16) == 80
    assert model.predicted(4) == 40
    assert not model.fitted


def test_two_sizes_make_a_line() -> None:
    model = seen((8, 40), (16, 50))
    assert model.predicted(32) == pytest.approx(70)
    assert model.predicted(12) == pytest.approx(45)
    assert model.predicted(2) == 40
    assert model.allows(32, Memory(50, 20, 100), 0.92)
    assert not model.allows(32, Memory(50, 25, 100), 0.92)


def test_a_smaller_size_after_a_larger_one_tells_nothing() -> None:
    model = seen((8, 40), (16, 50), (8, 50), (4, 50))
    assert model.predicted(8) == 40


def test_peaks_are_the_greatest_seen_and_never_fall_with_size() -> None:
    assert seen((8, 40), (8, 44), (8, 41)).predicted(8) == 44
    assert seen((8, 40), (16, 39)).predicted(32) == 39


def test_neighbours_are_noticed_when_they_take_and_when_they_give_back() -> None:
    watch = Neighbours()
    assert not watch.freed(Memory(10, 5, 100))
    assert watch.taken(Memory(10, 6, 100)) == 0
    assert not watch.freed(Memory(10, 30, 100))
    assert watch.taken(Memory(10, 30, 100)) == 25
    watch.settle(Memory(10, 30, 100))
    assert watch.taken(Memory(10, 31, 100)) == 0
    assert watch.freed(Memory(10, 5, 100))
    assert not watch.freed(Memory(10, 5, 100))


def test_how_full_it_is() -> None:
    assert full(Memory(30, 20, 100)) == 0.5
    assert full(None) == 0.0
