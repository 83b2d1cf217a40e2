"""GPU readings by phase, on a run with two phases in turn and a GPU that is busy in one of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from hoptui.diagnosis.phase_readings import DRIVER_NS, FEW, KEPT, MOST_PHASES, PATIENCE_NS, PhaseAccount
from hoptui.domain.columns import Columns, pack
from hoptui.domain.phases import PhaseReadings, PhaseSpan

SECOND = 1_000_000_000
FAR = 1 << 62
UPDATE_SM, ROLLOUT_SM = 90.0, 10.0


def turns(rollout_s: float, update_s: float, lasts_s: float, begin_s: float = 1.0) -> list[PhaseSpan]:
    """The phases of iterations without a gap."""
    found, at = [], begin_s
    while at < begin_s + lasts_s:
        for path, seconds in (("rollout", rollout_s), ("update", update_s)):
            found.append(PhaseSpan(path=path, start=int(at * SECOND), end=int((at + seconds) * SECOND)))
            at += seconds
    return found


def load(spans: list[PhaseSpan]) -> Callable[[int, int], float]:
    """What a counter shows between two stamps: the mean of the true load."""
    ends = [(span.start, span.end, UPDATE_SM if span.path == "update" else ROLLOUT_SM) for span in spans]

    def mean(start: int, end: int) -> float:
        parts = [(max(0, min(end, b) - max(start, a)), sm) for a, b, sm in ends]
        return sum(part * sm for part, sm in parts) / max(1, sum(part for part, _ in parts))

    return mean


def counters(spans: list[PhaseSpan], every_s: float, phase_s: float = 0.37) -> Columns:
    """Rows of a GPU with performance counters, each a mean since the row before."""
    mean, rows = load(spans), []
    t, end = spans[0].start + int(phase_s * every_s * SECOND), spans[-1].end
    while t <= end:
        before = t - int(every_s * SECOND)
        values = {"sm_active": mean(before, t), "window_s": round(every_s, 3), "busy": 55.0}
        values |= {"power_w": 500.0, "power_average_w": 400.0}
        rows.append((t, -1, values))
        t += int(every_s * SECOND)
    return pack("gpu/GPU-a", rows)


def joined(spans: list[PhaseSpan], *gpus: Columns) -> dict[str, PhaseReadings]:
    account = PhaseAccount()
    account.add(spans, FAR)
    account.join(account.due([FAR], FAR), {f"gpu/{i}": rows for i, rows in enumerate(gpus)})
    return {one.phase: one for one in account.readings}


@pytest.mark.parametrize("every_s", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("phase_s", [0.03, 0.37, 0.71])
def test_phases_ten_times_as_long_as_the_samples_are_known(every_s: float, phase_s: float) -> None:
    spans = turns(10 * every_s, 10 * every_s, 200 * every_s)
    found = joined(spans, counters(spans, every_s, phase_s))
    assert found["update"].readings["sm_active"] == pytest.approx(UPDATE_SM)
    assert found["rollout"].readings["sm_active"] == pytest.approx(ROLLOUT_SM)
    assert found["update"].samples >= 80
    assert found["update"].readings["power_w"] == 500.0
    assert "busy" not in found["update"].readings  # its window is not that of the counters


@pytest.mark.parametrize("longer", [0.1, 0.5, 0.9, 1.0, 1.02, 1.1, 1.5, 2.0])
@pytest.mark.parametrize("phase_s", [0.0, 0.03, 0.37, 0.71])
def test_phases_about_as_long_as_the_samples_are_right_or_unknown(longer: float, phase_s: float) -> None:
    for rollout, update in ((longer, longer), (longer, 0.4), (0.4, longer), (3.3, longer)):
        spans = turns(rollout, update, 300.0)
        for one in joined(spans, counters(spans, 1.0, phase_s)).values():
            truth = UPDATE_SM if one.phase == "update" else ROLLOUT_SM
            assert one.readings["sm_active"] == pytest.approx(truth, abs=0.01), (rollout, update)


def test_phases_of_a_tenth_of_a_sample_are_unknown() -> None:
    for iteration_s in (0.2, 0.21, 0.33):
        spans = turns(iteration_s / 2, iteration_s / 2, 120.0)
        assert joined(spans, counters(spans, 1.0)) == {}


def test_without_counters_the_window_of_the_driver_is_respected() -> None:
    spans = turns(10.0, 10.0, 200.0)
    mean = load(spans)
    end = spans[-1].end // SECOND
    rows = [(t * SECOND, -1, {"busy": mean(t * SECOND - SECOND, t * SECOND)}) for t in range(2, end)]
    found = joined(spans, pack("gpu/GPU-a", rows))
    assert found["update"].readings == {"busy": pytest.approx(UPDATE_SM)}
    spans = turns(1.9, 1.9, 100.0)
    assert DRIVER_NS > 1.9 * SECOND
    assert joined(spans, pack("gpu/GPU-a", rows)) == {}


def test_an_average_of_the_power_needs_a_longer_window() -> None:
    """An older driver has no power of the moment, so nobody tells its average apart."""
    span = PhaseSpan(path="update", start=SECOND, end=21 * SECOND)
    for every_s, known in ((0.5, False), (1.0, True)):
        rows = [
            (int(i * every_s * SECOND), -1, {"sm_active": 50.0, "window_s": every_s, "power_w": 300.0})
            for i in range(60)
        ]
        assert ("power_w" in joined([span], pack("gpu/GPU-a", rows))["update"].readings) is known


def test_a_phase_within_another_has_its_own() -> None:
    outer = PhaseSpan(path="update", start=SECOND, end=41 * SECOND)
    inner = PhaseSpan(path="update/forward", start=SECOND, end=21 * SECOND)
    rows = [(t * SECOND, -1, {"sm_active": 80.0 if t <= 21 else 40.0, "window_s": 1.0}) for t in range(2, 42)]
    found = joined([inner, outer], pack("gpu/GPU-a", rows))
    assert found["update/forward"].readings["sm_active"] == 80.0
    assert 55 < found["update"].readings["sm_active"] < 65


def test_several_gpus_of_a_process_are_averaged() -> None:
    span = PhaseSpan(path="update", start=SECOND, end=21 * SECOND)
    one, other = (
        pack(f"gpu/{sm}", [(t * SECOND, -1, {"sm_active": sm, "window_s": 1.0}) for t in range(30)])
        for sm in (90.0, 50.0)
    )
    assert joined([span], one, other)["update"].readings["sm_active"] == 70.0


def test_few_samples_are_none() -> None:
    span = PhaseSpan(path="update", start=SECOND, end=int((1.9 + FEW) * SECOND))
    rows = [(t * SECOND, -1, {"sm_active": 50.0, "window_s": 1.0}) for t in range(60)]
    assert joined([span], pack("gpu/GPU-a", rows)) == {}
    more = PhaseSpan(path="update", start=SECOND, end=int((3.1 + FEW) * SECOND))
    assert joined([more], pack("gpu/GPU-a", rows))["update"].samples >= FEW


def test_an_unknown_reading_is_left_out() -> None:
    span = PhaseSpan(path="update", start=SECOND, end=21 * SECOND)
    rows = [
        (t * SECOND, -1, {"sm_active": 50.0, "dram_active": math.nan, "window_s": 1.0}) for t in range(30)
    ]
    assert joined([span], pack("gpu/GPU-a", rows))["update"].readings == {"sm_active": 50.0}


def test_a_stretch_waits_for_its_samples_and_counts_once() -> None:
    account = PhaseAccount()
    account.add([PhaseSpan(path="update", start=SECOND, end=21 * SECOND)], FAR)
    assert account.due([20 * SECOND], 21 * SECOND) == []
    assert account.waiting
    assert len(account.due([30 * SECOND, 21 * SECOND], 22 * SECOND)) == 1
    assert not account.waiting
    account.add([PhaseSpan(path="update", start=SECOND, end=21 * SECOND)], FAR)
    assert account.due([], 21 * SECOND) == []
    assert len(account.due([], 21 * SECOND + PATIENCE_NS)) == 1  # no GPU is read any more


def test_another_value_of_a_knob_begins_anew() -> None:
    rows = pack("gpu/a", [(t * SECOND, -1, {"sm_active": 50.0, "window_s": 1.0}) for t in range(60)])
    account = PhaseAccount()
    early, late = (PhaseSpan(path="update", start=t * SECOND, end=(t + 15) * SECOND) for t in (1, 30))
    account.add([early], FAR)
    account.join(account.due([FAR], FAR), {"gpu/a": rows})
    assert account.readings
    account.add([PhaseSpan(path="update", start=17 * SECOND, end=29 * SECOND)], FAR)
    account.clear(20 * SECOND)
    assert account.readings == ()
    assert account.due([FAR], FAR) == []
    account.add([late], FAR)
    account.join(account.due([FAR], FAR), {"gpu/a": rows})
    assert account.readings


def test_nonsense_of_a_run_is_ignored_and_memory_is_bounded() -> None:
    account = PhaseAccount()
    now = 1000 * SECOND
    odd = [(5, 5), (9, 5), (0, SECOND), (-SECOND, SECOND), (SECOND, now + 1)]
    account.add([PhaseSpan(path="update", start=start, end=end) for start, end in odd], now)
    account.add([PhaseSpan(path="x" * 300, start=1, end=SECOND)], now)
    assert not account.waiting
    many = [PhaseSpan(path=f"p{i}", start=SECOND, end=400 * SECOND) for i in range(2 * MOST_PHASES)]
    account.add(many, now)
    rows = [(t * SECOND, -1, {"sm_active": 50.0, "window_s": 1.0}) for t in range(1, 400)]
    account.join(account.due([now], now), {"gpu/a": pack("gpu/a", rows)})
    assert len(account.readings) == MOST_PHASES
    assert {one.samples for one in account.readings} == {KEPT}
