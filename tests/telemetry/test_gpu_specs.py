"""The vendors' figures, and which GPU they are for."""

from __future__ import annotations

import pytest

from hoptui.telemetry.gpu_specs import estimated_mfu, peaks_of


@pytest.mark.parametrize(
    ("name", "bandwidth", "bf16", "clock"),
    [
        ("NVIDIA H100 80GB HBM3", 3.35e12, 989e12, 1829),
        ("NVIDIA H100 PCIe", 2.0e12, 756.5e12, 1620),
        ("NVIDIA H100 NVL", 3.9e12, 835.5e12, 1545),
        ("NVIDIA H200", 4.8e12, 989e12, 1829),
        ("NVIDIA H200 NVL", 4.8e12, 835.5e12, 1545),
        ("NVIDIA A100-SXM4-40GB", 1.555e12, 312e12, 1410),
        ("A100-SXM4-80GB", 2.039e12, 312e12, 1410),
        ("NVIDIA A100 80GB PCIe", 1.935e12, 312e12, 1410),
        ("NVIDIA B200", 7.7e12, 2250e12, None),
    ],
)
def test_each_product_has_its_own_figures(
    name: str, bandwidth: float, bf16: float, clock: float | None
) -> None:
    peaks = peaks_of(name)
    assert peaks is not None
    assert (peaks.bandwidth_bytes_per_s, peaks.flops["bf16"], peaks.clock_mhz) == (bandwidth, bf16, clock)
    assert "datasheet" in peaks.source
    assert peaks.flops["fp64"] <= peaks.flops["fp32"] < peaks.flops["tf32"] < peaks.flops["fp16"]


@pytest.mark.parametrize(
    ("name", "sms", "per_clock"),
    [
        ("H100 80GB HBM3", 132, 4096),
        ("H100 PCIe", 114, 4096),
        ("H100 NVL", 132, 4096),
        ("H200", 132, 4096),
        ("A100-SXM4-80GB", 108, 2048),
    ],
)
def test_the_clock_is_the_one_that_makes_the_figure(name: str, sms: int, per_clock: int) -> None:
    peaks = peaks_of(name)
    assert peaks is not None
    assert peaks.clock_mhz == pytest.approx(peaks.flops["bf16"] / sms / per_clock / 1e6, abs=1)


@pytest.mark.parametrize(
    "name", ["", "NVIDIA GeForce RTX 4090", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H800"]
)
def test_nothing_is_invented(name: str) -> None:
    assert peaks_of(name) is None


def test_mfu_is_estimated_from_the_tensor_cores() -> None:
    assert estimated_mfu(46.7, 1680, 1829) == pytest.approx(40.8, abs=0.1)  # 41.2 % were measured
