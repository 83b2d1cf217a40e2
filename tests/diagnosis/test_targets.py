"""When a run trained, and whether its GPUs meet a target meanwhile."""

from __future__ import annotations

import math

import pytest

from hoptui.diagnosis.targets import BACK_NS, Judgement, TrainingTime, judge
from hoptui.domain.columns import Columns, pack
from hoptui.domain.devices import GpuInfo
from hoptui.domain.facts import fact
from hoptui.domain.targets import Target

SECOND = 1_000_000_000
GPU = GpuInfo(uuid="GPU-a", index=0, name="H100", memory_total_bytes=80 * 10**9, power_limit_w=700.0)
OTHER = GpuInfo(uuid="GPU-b", index=1, name="H100", memory_total_bytes=80 * 10**9, power_limit_w=700.0)
BUSY = Target(reading="busy", value=90.0)


def iterations(first_s: float, every_s: float, count: int, **phases: float) -> Columns:
    """So many iterations without a gap; `phases` are seconds of evaluation or checkpoint in each."""
    values = {"iteration_s": every_s} | {f"phase/{name}": spent for name, spent in phases.items()}
    ends = [first_s + every_s * (i + 1) for i in range(count)]
    return pack("run/r", [(round(end * SECOND), i, values) for i, end in enumerate(ends)])


def trained(*rows: Columns) -> TrainingTime:
    found = TrainingTime(0)
    for part in rows:
        found.add(part)
    return found


def sampled(first_s: int, last_s: int, every_s: float = 1.0, **values: float) -> Columns:
    count = round((last_s - first_s) / every_s)
    return pack(
        "gpu/GPU-a", [(round((first_s + every_s * i) * SECOND), -1, values) for i in range(count + 1)]
    )


def seconds(stretches: list[tuple[int, int]]) -> float:
    return sum(end - start for start, end in stretches) / SECOND


@pytest.mark.parametrize("every_s", [0.002, 0.1, 1.0, 7.0, 45.0])
def test_the_newest_half_minute_of_whole_iterations(every_s: float) -> None:
    rows = iterations(0, every_s, round(max(60, 4 * every_s) / every_s))
    stretches = trained(rows).newest()
    # the first five iterations, or those of ten seconds, are left out
    assert 30 <= seconds(stretches) <= 30 + max(2.0, every_s)
    assert stretches[-1][1] == rows.times()[-1]


def test_the_start_of_a_process_is_too_little() -> None:
    assert trained(iterations(0, 1.0, 30)).newest() == []
    assert seconds(trained(iterations(0, 1.0, 35)).newest()) == pytest.approx(30)
    assert trained(iterations(0, 60.0, 1)).newest() == []  # it may have compiled


def test_evaluations_checkpoints_and_what_is_between_iterations_do_not_count() -> None:
    found = trained(
        iterations(0, 1.0, 25),
        iterations(25, 20.0, 1, evaluation=19.0),
        iterations(45, 20.0, 1, checkpoint=5.0),
        iterations(500, 1.0, 20),  # after a long pause
    )
    stretches = found.newest(40)
    assert seconds(stretches) == pytest.approx(40)
    assert all(end <= 25 * SECOND or start >= 500 * SECOND for start, end in stretches)


def test_what_was_long_ago_is_forgotten() -> None:
    found = trained(iterations(0, 1.0, 100), iterations(100 + BACK_NS / SECOND, 1.0, 10))
    assert found.newest() == []


def test_a_row_without_an_iteration_is_no_training() -> None:
    assert trained(pack("run/r", [(i * SECOND, i, {"loss": 1.0}) for i in range(100)])).newest() == []


STRETCHES = [(10 * SECOND, 40 * SECOND)]


@pytest.mark.parametrize(
    ("target", "standing", "mean"),
    [
        (Target(reading="busy", value=90.0), "missed", 80.0),
        (Target(reading="busy", value=80.0), "met", 80.0),
        (Target(reading="busy", value=79.0, side="most"), "missed", 80.0),
        (Target(reading="power_w", value=0.5, share=True), "met", 0.6),
        (Target(reading="memory_used_bytes", value=0.9, share=True), "missed", 0.5),
        (Target(reading="sm_clock_mhz", value=0.9, share=True), "unknown", None),  # its highest is not known
        (Target(reading="sm_active", value=50.0), "unknown", None),
    ],
)
def test_a_target_is_judged_by_the_mean(target: Target, standing: str, mean: float | None) -> None:
    rows = sampled(8, 42, busy=80.0, power_w=420.0, memory_used_bytes=40e9, sm_clock_mhz=1900.0)
    found = judge(target, STRETCHES, [GPU], {"GPU-a": rows})
    assert found.standing == standing
    assert found.mean == (pytest.approx(mean) if mean is not None else None)


def test_readings_outside_of_training_do_not_count() -> None:
    rows = pack("gpu/GPU-a", [(t * SECOND, -1, {"busy": 95.0 if 10 < t <= 40 else 0.0}) for t in range(60)])
    assert judge(BUSY, STRETCHES, [GPU], {"GPU-a": rows}) == Judgement("met", 95.0, "GPU-a")


def test_a_sample_that_is_mostly_of_something_else_does_not_count() -> None:
    stretches = [(10 * SECOND, 20 * SECOND), (30 * SECOND, 40 * SECOND)]  # an evaluation between them
    rows = [(int(t * 10**8), -1, {"busy": 0.0 if 205 < t <= 305 else 95.0}) for t in range(85, 420, 20)]
    found = judge(BUSY, stretches, [GPU], {"GPU-a": pack("gpu/GPU-a", rows)})
    assert found == Judgement("met", 95.0, "GPU-a")


def test_each_second_counts_the_same_at_any_rate_of_sampling() -> None:
    slow = [(t * SECOND, -1, {"busy": 100.0}) for t in range(9, 26)]
    fast = [(25 * SECOND + i * SECOND // 10, -1, {"busy": 50.0}) for i in range(1, 151)]
    found = judge(BUSY, STRETCHES, [GPU], {"GPU-a": pack("gpu/GPU-a", [*slow, *fast])})
    assert found.mean == pytest.approx(75.0)


def test_what_is_known_for_less_than_half_of_the_time_is_unknown() -> None:
    assert judge(BUSY, STRETCHES, [GPU], {"GPU-a": sampled(30, 40, busy=10.0)}).standing == "unknown"
    assert judge(BUSY, STRETCHES, [GPU], {"GPU-a": None}).standing == "unknown"
    assert judge(BUSY, STRETCHES, [GPU], {"GPU-a": sampled(8, 42, busy=math.nan)}).standing == "unknown"
    assert judge(BUSY, STRETCHES, [], {}).standing == "unknown"
    lost = GpuInfo(uuid="GPU-a", index=0, name="H100", problem=fact("gpu.not_listed"))
    assert judge(BUSY, STRETCHES, [lost], {"GPU-a": sampled(8, 42, busy=99.0)}).standing == "unknown"


def test_the_worst_gpu_decides() -> None:
    both = {"GPU-a": sampled(8, 42, busy=99.0), "GPU-b": sampled(8, 42, busy=40.0)}
    assert judge(BUSY, STRETCHES, [GPU, OTHER], both) == Judgement("missed", 40.0, "GPU-b")
    most = Target(reading="busy", value=50.0, side="most")
    assert judge(most, STRETCHES, [GPU, OTHER], both) == Judgement("missed", 99.0, "GPU-a")


def test_one_that_misses_is_enough_and_otherwise_all_must_be_known() -> None:
    known = {"GPU-a": sampled(8, 42, busy=40.0)}
    assert judge(BUSY, STRETCHES, [GPU, OTHER], known) == Judgement("missed", 40.0, "GPU-a")
    known = {"GPU-a": sampled(8, 42, busy=99.0)}
    assert judge(BUSY, STRETCHES, [GPU, OTHER], known).standing == "unknown"
