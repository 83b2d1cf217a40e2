"""A series that is full keeps its memory where it is: hundreds of them that give back and take again leave a
heap of holes."""

from __future__ import annotations

from array import array

from hoptui.model.series import CAPACITY, FACTOR, SLACK, Series

BATCH = 3


def test_a_full_series_takes_new_samples_without_new_memory() -> None:
    series = Series()
    places: list[set[int]] = [set(), set()]
    total = CAPACITY * (FACTOR + 2)
    for start in range(0, total, BATCH):
        t = array("q", range(start, start + BATCH))
        series.extend(t, t, array("d", [float(i) for i in t]))
        levels = series._levels
        assert len(levels[0].t) < CAPACITY + SLACK + BATCH
        if start > CAPACITY * (FACTOR + 1):
            for level, seen in zip(levels, places, strict=False):
                seen.add(level.low.buffer_info()[0])
    assert [len(seen) for seen in places] == [1, 1]
    assert series.window(0, total, 100).t, "and still knows all of its time"
