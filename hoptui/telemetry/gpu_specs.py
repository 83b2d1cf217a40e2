"""What a GPU could do at most, by its vendor's figures: dense FLOP/s by precision and memory bandwidth.

What NVIDIA prints, in TFLOP/s and TB/s; * with sparsity: the table in the code has half of it. `fp64` is that
of the tensor cores.

| product | fp64 | fp32 | tf32 | bf16, fp16 | fp8, int8 | memory | printed in |
|---|---|---|---|---|---|---|---|
| H100 SXM | 67 | 67 | 989* | 1,979* | 3,958* | 3.35 | H100 datasheet; nvidia.com/en-us/data-center/h100 |
| H100 PCIe | 51 | 51 | 756* | 1,513* | 3,026* | 2.0 | H100 datasheet of 2022 and 2023 |
| H100 NVL | 60 | 60 | 835* | 1,671* | 3,341* | 3.9 | H100 datasheet since 2024, one board |
| H200 SXM | 67 | 67 | 989* | 1,979* | 3,958* | 4.8 | H200 datasheet; nvidia.com/en-us/data-center/h200 |
| H200 NVL | 60 | 60 | 835* | 1,671* | 3,341* | 4.8 | the same |
| A100 | 19.5 | 19.5 | 156 | 312 | –, 624 | 1.555, 1.935, 2.039 | A100 datasheet |
| B200 | 37 | 75 | 2,200* | 4,500* | 9,000* | 7.7 | Blackwell datasheet, a GPU of an HGX B200 |

The datasheets since 2024 have the H100 NVL in place of the PCIe. The A100's memory bandwidths are those of
40 GB, of 80 GB PCIe and of 80 GB SXM.

The SXM's dense bf16 is 989.4 in NVIDIA's H100 whitepaper: 989 stands here, not half of 1,979. Of the B200's
TF32 the datasheet prints two digits: half of its bf16 stands here, as on all the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

UTILIZATION_OF_ACTIVE = 0.95
"""MFU / (tensor active × SM clock / peak clock): 0.94–0.96 for a 124M language model at four batch sizes on
an H100."""


@dataclass(frozen=True)
class Peaks:
    """The vendor's figures of one product, and their source.

    `clock_mhz` is the SM clock at which they hold: FLOP/s ÷ (SMs × FLOP per clock and SM), with 4096 bf16
    FLOP per clock and SM on Hopper and 2048 on Ampere; None where it is not known.
    """

    bandwidth_bytes_per_s: float
    flops: MappingProxyType[str, float]
    clock_mhz: float | None
    source: str


def _flops(**tera: float) -> MappingProxyType[str, float]:
    return MappingProxyType({precision: value * 1e12 for precision, value in tera.items()})


_HOPPER_SXM = _flops(fp64=67, fp32=67, tf32=494.5, bf16=989, fp16=989, fp8=1979, int8=1979)  # 132 SMs
_HOPPER_NVL = _flops(fp64=60, fp32=60, tf32=417.5, bf16=835.5, fp16=835.5, fp8=1670.5, int8=1670.5)  # 132 SMs
_AMPERE = _flops(fp64=19.5, fp32=19.5, tf32=156, bf16=312, fp16=312, int8=624)  # 108 SMs

_H100 = "NVIDIA H100 Tensor Core GPU datasheet"
_H200 = "NVIDIA H200 Tensor Core GPU datasheet"
_A100 = "NVIDIA A100 Tensor Core GPU datasheet"

_A100_SXM_80 = Peaks(2.039e12, _AMPERE, 1410, f"{_A100}, 80GB SXM")
_H100_SXM = Peaks(3.35e12, _HOPPER_SXM, 1829, f"{_H100}, SXM")

_BY_NAME = {
    "H100 80GB HBM3": _H100_SXM,
    "H100 PCIe": Peaks(
        2.0e12,
        _flops(fp64=51, fp32=51, tf32=378, bf16=756.5, fp16=756.5, fp8=1513, int8=1513),  # 114 SMs
        1620,
        f"{_H100}, PCIe",
    ),
    "H100 NVL": Peaks(3.9e12, _HOPPER_NVL, 1545, f"{_H100}, NVL"),
    "H200": Peaks(4.8e12, _HOPPER_SXM, 1829, f"{_H200}, SXM"),
    "H200 NVL": Peaks(4.8e12, _HOPPER_NVL, 1545, f"{_H200}, NVL"),
    "A100-SXM4-40GB": Peaks(1.555e12, _AMPERE, 1410, f"{_A100}, 40GB SXM"),
    "A100-SXM4-80GB": _A100_SXM_80,
    "A100-SXM-80GB": _A100_SXM_80,
    "A100-PCIE-40GB": Peaks(1.555e12, _AMPERE, 1410, f"{_A100}, 40GB PCIe"),
    "A100 80GB PCIe": Peaks(1.935e12, _AMPERE, 1410, f"{_A100}, 80GB PCIe"),
    "B200": Peaks(
        7.7e12,
        _flops(fp64=37, fp32=75, tf32=1125, bf16=2250, fp16=2250, fp8=4500, int8=4500),
        None,  # no clock is published with them
        "NVIDIA Blackwell datasheet, HGX B200",
    ),
}
"""By NVML's name without the vendor's: an "H100 80GB HBM3" is the SXM module."""


def peaks_of(name: str) -> Peaks | None:
    """The figures for a GPU by its NVML name; None for one that is not in the table, and for a MIG
    instance."""
    return _BY_NAME.get(name.removeprefix("NVIDIA "))


def peak_flops(name: str, precision: str) -> float | None:
    """Dense FLOP/s of a GPU, by its NVML or CUDA name, in `fp64`, `fp32`, `tf32`, `bf16`, `fp16` or `fp8`;
    None if unknown."""
    peaks = peaks_of(name)
    return None if peaks is None else peaks.flops.get(precision)


def estimated_mfu(tensor_active: float, sm_clock_mhz: float, peak_clock_mhz: float) -> float:
    """Model FLOPs utilization in % where no FLOPs are known: from how long the tensor cores worked (%), and
    how fast."""
    return round(tensor_active * sm_clock_mhz / peak_clock_mhz * UTILIZATION_OF_ACTIVE, 2)
