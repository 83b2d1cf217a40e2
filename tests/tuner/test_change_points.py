"""Changes that nobody asked for: found soon, told with their cause, and not seen where there are none."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from hoptui.domain.facts import Fact, fact
from hoptui.tuner.change_points import ChangePointDetector
from hoptui.tuner.observation import ChangePoint, MemoryReading, Observation
from tests.tuner.simulated_run import GIB, SECOND, knob
from tests.tuner.test_waiting_runs import reading

CALM: dict[str, Any] = {
    "memories": (MemoryReading(20 * GIB, 2 * GIB, 80 * GIB),),
    "host_busy": 0.3,
    "others_busy": 0.05,
}


class Watched:
    """A run of 1000 samples/s, looked at every five iterations."""

    def __init__(self, seed: int = 1, noise: float = 0.04) -> None:
        self.detector = ChangePointDetector()
        self.observation = Observation(t=0, epoch=1, state="live", knobs=(knob("micro_batch", 8),), **CALM)
        self._chance = random.Random(seed)
        self._noise, self._state, self._step = noise, 0.0, 0
        self._points: list[tuple[int, float]] = []

    def run(
        self, iterations: int, rate: float = 1000.0, *, drift: float = 0.0, **facts: Any
    ) -> ChangePoint | None:
        """So many iterations at a rate; the first shift that is noticed in them."""
        self.observation = replace(self.observation, **facts)
        for i in range(iterations):
            self._step += 1
            self._state = 0.5 * self._state + math.sqrt(0.75) * self._chance.gauss(0, 1)
            spike = 1 / 3 if self._chance.random() < 0.01 else 1.0
            slow = 1 + drift * math.sin(2 * math.pi * i / 1500)
            if (
                shift := self._iterate(rate * slow * math.exp(self._noise * self._state) * spike)
            ) is not None:
                return shift
        return None

    def feed(self, rates: list[float]) -> ChangePoint | None:
        """Iterations at these rates; the first shift that is noticed in them."""
        for rate in rates:
            self._step += 1
            if (shift := self._iterate(rate)) is not None:
                return shift
        return None

    def _iterate(self, rate: float) -> ChangePoint | None:
        self._points.append((self._step, rate))
        if self._step % 5:
            return None
        self.observation = replace(
            self.observation, t=self.observation.t + SECOND, points=tuple(self._points[-200:])
        )
        return self.detector.look(self.observation)


@pytest.mark.parametrize("seed", range(5))
def test_a_drop_by_fifteen_percent_is_noticed_within_sixty_iterations(seed: int) -> None:
    watched = Watched(seed)
    assert watched.run(300) is None
    shift = watched.run(60, 850.0)
    assert shift is not None
    assert shift.after / shift.before == pytest.approx(0.85, abs=0.05)
    assert 290 <= shift.step <= 345
    assert shift.cause == fact("shift.no_cause")


def test_a_rise_is_noticed_too_and_the_new_level_is_the_level_then() -> None:
    watched = Watched()
    watched.run(300)
    shift = watched.run(60, 1200.0)
    assert shift is not None
    assert shift.after > shift.before
    assert watched.run(500, 1200.0) is None


@pytest.mark.parametrize("seed", range(3))
def test_drift_noise_and_spikes_are_no_shift(seed: int) -> None:
    assert Watched(seed).run(10_000, drift=0.03) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [((8, 0.05), (8, 0.4)), ((8, 0.4), (8, 1.2)), ((8, 0.4), (8, 0.1)), ((1, 0.4), (1, 0.8))],
)
def test_a_disk_that_slows_down_is_noticed_though_most_iterations_wait_for_nothing(
    before: tuple[int, float], after: tuple[int, float]
) -> None:
    watched = Watched()
    assert watched.feed(reading(*before, 1_000)) is None
    shift = watched.feed(reading(*after, 200))
    assert shift is not None
    old, new = (min(workers / seconds, 100.0) for workers, seconds in (before, after))
    assert shift.after / shift.before == pytest.approx(new / old, rel=0.15)
    assert 995 <= shift.step <= 1_050
    assert watched.feed(reading(*after, 1_000)) is None


@pytest.mark.parametrize("workers", [2, 3, 8, 14])
def test_waits_in_turn_are_no_shift(workers: int) -> None:
    assert Watched().feed(reading(workers, 0.4, 20_000)) is None


@pytest.mark.parametrize("rate", [300.0, 3000.0])
def test_a_block_that_is_all_spikes_is_no_shift(rate: float) -> None:
    watched = Watched(noise=0.0)
    watched.run(300)
    assert watched.run(5, rate) is None
    assert watched.run(200) is None


@pytest.mark.parametrize(
    ("facts", "cause", "end"),
    [
        (
            {"throttled": "thermal slowdown"},
            fact("shift.throttled", reason="thermal slowdown"),
            fact("shift.not_throttled"),
        ),
        (
            {"memories": (MemoryReading(20 * GIB, 37 * GIB, 80 * GIB),)},
            fact("shift.memory_taken", size_bytes=35 * GIB),
            fact("shift.memory_freed", size_bytes=35 * GIB),
        ),
        (
            {"host_busy": 0.95},
            fact("shift.host_busier", before=0.3, share=0.95),
            fact("shift.host_calmer", before=0.95, share=0.3),
        ),
        (
            {"others_busy": 0.65},
            fact("shift.others_busier", before=0.05, share=0.65),
            fact("shift.others_calmer", before=0.65, share=0.05),
        ),
        ({"others_busy": 0.15, "host_busy": 0.45}, fact("shift.no_cause"), fact("shift.no_cause")),
        (
            {"others_busy": 0.15, "host_busy": 0.95},
            fact("shift.others_busier", before=0.05, share=0.15),
            fact("shift.others_calmer", before=0.15, share=0.05),
        ),
    ],
)
def test_what_changed_beside_it_is_the_likely_cause(facts: dict[str, Any], cause: Fact, end: Fact) -> None:
    watched = Watched()
    watched.run(300)
    shift = watched.run(60, 800.0, **facts)
    assert shift is not None
    assert shift.cause == cause
    assert watched.run(200, 800.0, **facts) is None
    back = watched.run(60, 1000.0, **(CALM | {"throttled": ""}))
    assert back is not None
    assert back.cause == end


def test_of_many_short_iterations_only_what_lasts_is_a_shift_and_its_cause_is_seen() -> None:
    detector, step = ChangePointDetector(), 0
    observation = Observation(t=0, epoch=1, state="live", knobs=(knob("micro_batch", 8),), **CALM)
    found = []
    for look in range(24):
        beside = look >= 16
        slow = (
            range(100, 200) if look in (10, 16) else range(200) if beside else ()
        )  # half of a look is not much
        points = tuple((step + i, 600.0 if i in slow else 1000.0) for i in range(200))
        step += 200
        others = 0.5 if beside else 0.05
        observation = replace(observation, t=look * SECOND, points=points, others_busy=others, host_busy=1.0)
        found.append(detector.look(observation))
    (shift,) = filter(None, found)
    assert 16 * 200 <= shift.step <= 17 * 200
    assert shift.cause == fact("shift.others_busier", before=0.05, share=0.5)


def test_where_no_cause_is_seen_a_host_without_a_core_to_spare_is_told() -> None:
    watched = Watched()
    watched.run(300, host_busy=0.97)
    shift = watched.run(60, 800.0, host_busy=0.99)
    assert shift is not None
    assert shift.cause == fact("shift.no_cause_busy", share=0.99)


def test_a_turned_knob_is_a_new_beginning() -> None:
    watched = Watched()
    watched.run(300)
    assert watched.run(300, 500.0, knobs=(knob("micro_batch", 4),)) is None
    assert watched.run(60, 400.0) is not None


def test_a_restart_is_a_new_beginning_and_nan_is_nothing() -> None:
    watched = Watched()
    watched.run(300)
    assert watched.run(300, 500.0, epoch=2) is None
    assert watched.run(100, math.nan) is None
    assert watched.run(60, 400.0) is not None
