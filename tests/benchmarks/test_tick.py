"""The price list of the readings beside the tick."""

from __future__ import annotations

import pynvml

from benchmarks.tick import prices
from hoptui.telemetry.metrics_table import EACH_SECOND, ENERGY, HEALTH, PCIE
from tests.telemetry.fake_nvml import FakeNvml


def test_each_reading_has_a_price_and_one_that_is_missing_has_none() -> None:
    nvml = FakeNvml()
    nvml.nvmlInit()
    nvml.fail("nvmlDeviceGetOfaUtilization", pynvml.NVML_ERROR_NOT_SUPPORTED)
    found = prices(nvml, nvml.handle(0), pause_s=0.0)
    assert found.keys() == {reading.name for reading in (*EACH_SECOND, *HEALTH, *PCIE, *ENERGY)}
    assert [name for name, price in found.items() if price is None] == ["ofa_busy"]
    assert all(price > 0 for price in found.values() if price is not None)
