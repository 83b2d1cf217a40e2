"""Windows made of rows: means, shares, and what is left out of them."""

from __future__ import annotations

import math

import pytest
from msgspec import structs

from hoptui.diagnosis.window import WindowIterations, gpu_window, iterations, mean_of
from hoptui.domain.columns import pack
from hoptui.domain.facts import fact
from tests.diagnosis.loads import SECOND, gpu

Row = dict[str, float]


def run(*rows: Row, every_s: float = 1.0) -> WindowIterations | None:
    return iterations(
        pack("run/a", [(int((i + 1) * every_s * SECOND), i, row) for i, row in enumerate(rows)])
    )


def test_phases_are_shares_of_the_iterations_time() -> None:
    found = run(
        {"iteration_s": 1.0, "phase/data": 0.5, "phase/step": 0.5},
        {"iteration_s": 3.0, "phase/step": 2.5},
        {"loss": 0.1},
        every_s=3.0,
    )
    assert found is not None
    assert (found.count, found.aside, found.apart) == (2, 0.0, ())
    assert found.phases == {"data": 0.125, "step": 0.75}
    assert (found.start, found.end) == (2 * SECOND, 6 * SECOND)


def test_iterations_that_did_something_else_are_left_out() -> None:
    plain = {"iteration_s": 1.0, "phase/step": 0.9}
    evaluated = {"iteration_s": 9.0, "phase/step": 0.9, "phase/evaluation": 8.0}
    saved_a_little = {"iteration_s": 1.0, "phase/step": 0.9, "phase/checkpoint": 0.05}
    found = run(plain, plain, evaluated, saved_a_little, every_s=10.0)
    assert found is not None
    assert found.count == 3
    assert found.aside == 0.75
    assert found.phases["step"] == pytest.approx(0.9)
    assert "evaluation" not in found.phases
    assert found.apart == ((21 * SECOND, 30 * SECOND),)


def test_a_run_that_does_nothing_but_evaluate() -> None:
    found = run({"iteration_s": 1.0, "phase/evaluation": 1.0})
    assert found is not None
    assert (found.count, found.aside, found.phases) == (0, 1.0, {})


@pytest.mark.parametrize("row", [{"loss": 1.0}, {"iteration_s": math.nan}, {"iteration_s": 0.0}])
def test_rows_without_an_iteration(row: Row) -> None:
    assert run(row) is None


@pytest.mark.parametrize("seconds", [math.inf, -math.inf, -1.0, 1e308, 1e9])
def test_an_iteration_that_took_as_long_as_none_can_is_none(seconds: float) -> None:
    odd = {"iteration_s": seconds, "phase/evaluation": 1.0}
    assert run(odd) is None
    assert run({"iteration_s": 0.5}, odd, {"iteration_s": 0.5}) == run(
        {"iteration_s": 0.5}, {"loss": 1.0}, {"iteration_s": 0.5}
    )


def test_readings_become_shares_and_means() -> None:
    rows = pack(
        "gpu/GPU-0",
        [
            (SECOND, -1,
             {"busy": 90.0, "sm_active": 40.0, "throttle": 4.0, "memory_used_bytes": 42_760_404_992.0}),
            (2 * SECOND, -1, {"busy": 100.0, "throttle": 0x20}),
            (3 * SECOND, -1, {"busy": 95.0, "sm_active": 20.0, "throttle": 0x84, "sm_clock_mhz": 990.0}),
            (4 * SECOND, -1, {"pcie_rx_bytes_per_s": 32e9}),
        ],
    )  # fmt: skip
    found = gpu_window(gpu(), rows, (), shared=False)
    assert (found.rows, found.memory) == (4, 0.5)
    assert found.busy == pytest.approx(0.95)
    assert found.sm == pytest.approx(0.3), "what is unknown counts for nothing"
    assert found.capped == pytest.approx(2 / 3)
    assert found.hot == found.braked == pytest.approx(1 / 3)
    assert found.clock_lost == 0.5
    assert found.upload / found.upload_limit == 0.5, "generation 5, 16 lanes: 64 GB/s"
    assert math.isnan(found.dram)
    assert math.isnan(found.temperature_c)


def test_pcie_traffic_without_gpm_is_no_evidence() -> None:
    old = structs.replace(gpu(), missing_because={"gpm": fact("gpm.needs_hopper", architecture="Ampere")})
    rows = pack("gpu/GPU-0", [(SECOND, -1, {"busy": 90.0, "pcie_rx_bytes_per_s": 32e9})])
    found = gpu_window(old, rows, (), shared=False)
    assert found.busy == 0.9
    assert math.isnan(found.uploading)


def test_rows_read_while_something_else_was_done_are_left_out() -> None:
    rows = pack("gpu/GPU-0", [(i * SECOND, -1, {"sm_active": 10.0 * i}) for i in range(1, 9)])
    apart = ((int(2.4 * SECOND), int(4.2 * SECOND)), (int(6.8 * SECOND), 7 * SECOND))
    found = gpu_window(gpu(), rows, apart, shared=True)
    assert found.rows == 6, "rows 3 and 4 tell mostly of what was left out, row 7 does not"
    assert found.sm == pytest.approx((10 + 20 + 50 + 60 + 70 + 80) / 600)
    assert found.shared


def test_what_is_missing_is_said() -> None:
    old = gpu(missing_because={"gpm": (ampere := fact("gpm.needs_hopper", architecture="Ampere"))})
    found = gpu_window(old, pack("gpu/GPU-0", [(SECOND, -1, {"busy": 50.0})]), (), shared=False)
    assert (found.busy, found.missing) == (0.5, ampere)
    assert math.isnan(found.sm)
    lost = gpu_window(
        gpu(problem=(gone := fact("gpu.gone", nvml=28, error="Not Found"))), None, (), shared=False
    )
    assert (lost.rows, lost.missing) == (0, gone)
    unread = gpu_window(gpu(), None, (), shared=False)
    assert (unread.rows, unread.missing) == (0, None)


def test_the_mean_of_a_reading() -> None:
    rows = pack("host", [(1, -1, {"cpu_percent": 10.0}), (2, -1, {}), (3, -1, {"cpu_percent": 20.0})])
    assert mean_of(rows, "cpu_percent") == 15.0
    assert math.isnan(mean_of(rows, "nothing"))
    assert math.isnan(mean_of(None, "cpu_percent"))
