"""A series against a plain list: samples, resent rows, seeds of the past, silences and new beginnings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hoptui.domain.columns import LOGGED_NAN, is_known
from hoptui.model import series as module
from hoptui.model.series import Series
from tests.model.test_series import NAN, by_hand, fill, make_buckets, plain

CAPACITY, SLACK = 32, 4
SEEDS = 4
"""A series keeps eight answers about its past."""
values = st.one_of(st.floats(-1e9, 1e9), st.just(NAN), st.just(LOGGED_NAN), st.just(math.inf))
spacings = st.sampled_from((1, 10, 10, 10, 11, 400))


class SeriesMachine(RuleBasedStateMachine):
    """`samples` has what the series was given, oldest first: stamp and value, finite ones only."""

    def __init__(self) -> None:
        super().__init__()
        self._small = mock.patch.multiple(module, CAPACITY=CAPACITY, SLACK=SLACK)
        self._small.start()

    def teardown(self) -> None:
        self._small.stop()

    @initialize(t=st.integers(5_000, 9_000))
    def empty(self, t: int) -> None:
        self.series = Series()
        self.samples: list[tuple[int, float]] = []
        self.t = t
        self.last = NAN
        self.last_t = self.seeds = 0

    def given(self, t: int, value: float) -> None:
        if math.isfinite(value):
            self.samples.append((t, value))
        if is_known(value):
            self.last, self.last_t = value, t

    @rule(steps=st.lists(st.tuples(spacings, values), min_size=1, max_size=12))
    def extend(self, steps: list[tuple[int, float]]) -> None:
        times = []
        for step, value in steps:
            self.t += step
            times.append(self.t)
            self.given(self.t, value)
        fill(self.series, times, [value for _, value in steps])

    @rule(count=st.sampled_from([CAPACITY, 5 * CAPACITY]), seed=st.integers(0, 99))
    def many(self, count: int, seed: int) -> None:
        self.extend([(10, float((seed + 7 * i) % 101)) for i in range(count)])

    @precondition(lambda self: self.samples)
    @rule(count=st.integers(1, 5))
    def resend(self, count: int) -> None:
        before = self.series.version
        again = self.samples[-count:]
        fill(self.series, [t for t, _ in again], [value + 1.0 for _, value in again])
        assert self.series.version == before

    @precondition(lambda self: self.seeds < SEEDS)
    @rule(steps=st.lists(st.tuples(spacings, values), min_size=1, max_size=6))
    def seed(self, steps: list[tuple[int, float]]) -> None:
        """Buckets of the past, of which one is not older than what is there."""
        first = min((t for t, _ in self.samples[:1]), default=self.t)
        older = []
        for step, value in steps:
            first -= step
            older.append((first, value))
        older.reverse()
        times = [t for t, _ in older] + [t for t, _ in self.samples[:1]]
        found = [value for _, value in older] + [NAN for _ in self.samples[:1]]
        self.series.seed(make_buckets(times, found, found), "loss")
        known = [(t, value) for t, value in older if math.isfinite(value)]
        self.seeds += bool(known)
        if known and known[-1][0] > self.last_t:
            self.last_t, self.last = known[-1]
        self.samples[:0] = known

    @rule(seconds=st.sampled_from([1, 10_000_000]))
    def silence(self, seconds: int) -> None:
        self.series.missing(self.t + seconds)
        if not is_known(self.series.last):
            self.last = NAN

    @rule()
    def clear(self) -> None:
        self.series.clear()
        self.samples, self.seeds = [], 0

    @invariant()
    def newest(self) -> None:
        assert self.series.last_t == self.last_t
        if is_known(self.series.last):
            assert is_known(self.last)
            assert (self.series.last == self.last) != math.isnan(self.last)
            assert math.isnan(self.series.last) == math.isnan(self.last)
        else:  # nothing yet, or the source has omitted it for long
            self.last = NAN

    @invariant()
    def windows(self) -> None:
        if not self.samples:
            assert self.series.window(0, self.t, 9).t == []
            return
        start, end = self.samples[0][0], self.samples[-1][0]
        whole = self.series.window(start, end, 7)
        known = [low for low in whole.low if not math.isnan(low)]
        assert (min(known), max(h for h in whole.high if not math.isnan(h))) == self.extremes()
        assert (whole.t == sorted(whole.t), whole.t[-1], len(whole.t) <= 7) == (True, end, True)
        recent = self.samples[-CAPACITY // 4 :][0][0]
        for t0, points in self.looks(start, recent):
            assert plain(self.series.window(t0, end, points)) == by_hand(self.samples, t0, end, points)

    @invariant()
    def bounded(self) -> None:
        levels = self.series._levels
        assert all(len(level.t) < CAPACITY + SLACK for level in levels)
        assert all(level.t == type(level.t)("q", sorted(level.t)) for level in levels)

    def extremes(self) -> tuple[float, float]:
        found = [value for _, value in self.samples]
        return min(found), max(found)

    def looks(self, start: int, recent: int) -> Iterator[tuple[int, int]]:
        """Windows that are exact: the newest samples, and all of them while none was merged."""
        yield recent, 50
        if all(level.whole for level in self.series._levels):
            yield start, 13


SeriesMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=15, deadline=None, derandomize=True
)
TestSeriesMachine = SeriesMachine.TestCase
