"""GPM, Hopper's performance counters without a profiler: how busy the SMs, the tensor cores, the DRAM and the
links are.

A figure is the difference of two samples, averaged over the time between them. On an H100 (driver 580) at 10
Hz a sample costs 160–230 µs and the difference, for all metrics at once, 33 µs. The DRAM counter moves about
ten times a second: windows of 5–50 ms give NaN (with a success code) in half to nearly all cases, 100 ms in
0.4 %.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import struct
from typing import Any

from hoptui.domain.facts import Fact, fact
from hoptui.telemetry.nvml_errors import (
    FATAL,
    FUNCTION_NOT_FOUND,
    NO_PERMISSION,
    REFUSED,
    SECOND_NS,
    UNSUPPORTED,
    backoff,
    fields_of,
)

SHORTEST_NS = SECOND_NS // 20
IN_MIG_MODE = fact("gpm.in_mig_mode")
BEFORE_HOPPER = ("Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada Lovelace", "")

_MIB = 1 << 20
_PERCENT = (1.0, 2)
_BYTES = (float(_MIB), -3)  # nvml.h counts MiB/s; kept to 1 kB/s

METRICS = {
    "sm_active": ("SM_UTIL", *_PERCENT),
    "sm_occupancy": ("SM_OCCUPANCY", *_PERCENT),
    "tensor_active": ("ANY_TENSOR_UTIL", *_PERCENT),
    "tensor_half_active": ("HMMA_TENSOR_UTIL", *_PERCENT),
    "tensor_int_active": ("IMMA_TENSOR_UTIL", *_PERCENT),
    "tensor_double_active": ("DFMA_TENSOR_UTIL", *_PERCENT),
    "dram_active": ("DRAM_BW_UTIL", *_PERCENT),
    "fp64_active": ("FP64_UTIL", *_PERCENT),
    "fp32_active": ("FP32_UTIL", *_PERCENT),
    "fp16_active": ("FP16_UTIL", *_PERCENT),
    "int_active": ("INTEGER_UTIL", *_PERCENT),
    # packet headers are counted too: a copy of 54.4 GB/s reads 58.4 GB/s
    "pcie_rx_bytes_per_s": ("PCIE_RX_PER_SEC", *_BYTES),
    "pcie_tx_bytes_per_s": ("PCIE_TX_PER_SEC", *_BYTES),
    "nvlink_rx_bytes_per_s": ("NVLINK_TOTAL_RX_PER_SEC", *_BYTES),
    "nvlink_tx_bytes_per_s": ("NVLINK_TOTAL_TX_PER_SEC", *_BYTES),
}
"""Our name -> (NVML_GPM_METRIC_…, scale to our unit, digits kept)."""


class GpmQuery:
    """NVML's question for the metrics, kept: filling in its 16 kB anew each tick would cost 48 µs to 1.8 ms.

    One is shared by the GPUs of a process, which are read one after the other.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._struct = nvml.c_nvmlGpmMetricsGet_t()
        self._struct.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._struct.numMetrics = len(METRICS)
        self._reference = ctypes.byref(self._struct)
        self._metrics = []
        for (name, (constant, scale, digits)), entry in zip(
            METRICS.items(), self._struct.metrics, strict=False
        ):
            entry.metricId = getattr(nvml, f"NVML_GPM_METRIC_{constant}")
            self._metrics.append((name, scale, digits))
        self._answers = struct.Struct("=" + _answer_of(nvml.c_nvmlGpmMetric_t) * len(METRICS))
        self._answers_at = nvml.c_nvmlGpmMetricsGet_t.metrics.offset

    def difference(self, before: Any, after: Any) -> dict[str, float]:
        """The metrics of the time between two samples. A metric that fails or is NaN is left out.

        Raises:
            NVMLError: the call failed as a whole.
        """
        self._struct.sample1 = before
        self._struct.sample2 = after
        code = self._nvml.nvmlLib.nvmlGpmMetricsGet(self._reference)
        if code:
            raise self._nvml.NVMLError(code)
        answers = iter(self._answers.unpack_from(self._struct, self._answers_at))
        row = {}
        for (name, scale, digits), failed, value in zip(self._metrics, answers, answers, strict=True):
            if not failed and math.isfinite(value):
                row[name] = round(value * scale, digits)
        return row


def _answer_of(metric: Any) -> str:
    """How `struct` reads one metric's return code and value: all of them at once is a third of the price of
    ctypes."""
    code, value, size = metric.nvmlReturn.offset, metric.value.offset, ctypes.sizeof(metric)
    return f"{code}xI{value - code - 4}xd{size - value - 8}x"


class Gpm:
    """GPM of one GPU or MIG instance: the sample before, and what becomes of errors.

    No error is final: in an unprivileged container the driver may start to refuse after minutes. It is asked
    again after 1, 2, 4 … 60 s.

    Args:
        nvml: the module pynvml.
        handle: NVML's handle of the GPU, for an instance that of the GPU that it is a part of.
        query: shared by the GPUs.
        instance: the GPU instance's id, None for a whole GPU.
    """

    def __init__(self, nvml: Any, handle: Any, query: GpmQuery, instance: int | None = None) -> None:
        self._nvml = nvml
        self._handle = handle
        self._query = query
        self._instance = instance
        self._samples: tuple[Any, Any] | None = None
        self._sampled_at: int | None = None
        self._failures = 0
        self._retry_at = 0
        self.architecture = ""
        self.problem: Fact | None = None
        """Why there are no figures, None when there are or will be."""

    def read(self, t: int, late: bool) -> dict[str, float]:
        """The averages since the reading before; nothing at the first, after a late tick, and while it fails.

        Args:
            t: monotonic ns.
            late: the tick before is too long ago for its sample to be of use.

        Raises:
            NVMLError: its value is in LOST or DRIVER_GONE.
        """
        if t < self._retry_at:
            return {}
        try:
            row = self._read(t, late)
        except self._nvml.NVMLError as error:
            if error.value in FATAL:
                raise
            self._sampled_at = None
            self._failures += 1
            self._retry_at = t + backoff(self._failures)
            self.problem = self._problem(error)
            return {}
        if row:
            self.problem, self._failures = None, 0
        return row

    def close(self) -> None:
        """Give the samples back to NVML."""
        for sample in self._samples or ():
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlGpmSampleFree(sample)
        self._samples = None

    def _read(self, t: int, late: bool) -> dict[str, float]:
        if self._samples is None:
            if not self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                raise self._nvml.NVMLError(self._nvml.NVML_ERROR_NOT_SUPPORTED)
            self._samples = (self._nvml.nvmlGpmSampleAlloc(), self._nvml.nvmlGpmSampleAlloc())
        before, after = self._samples
        library = self._nvml.nvmlLib
        if self._instance is None:
            code = library.nvmlGpmSampleGet(self._handle, after)
        else:
            code = library.nvmlGpmMigSampleGet(self._handle, self._instance, after)
        if code:
            raise self._nvml.NVMLError(code)
        self._samples = (after, before)
        seed, self._sampled_at = self._sampled_at, t
        if seed is None or late or t - seed < SHORTEST_NS:
            return {}
        row = self._query.difference(before, after)
        if row:
            row["window_s"] = round((t - seed) / SECOND_NS, 3)
        return row

    def _problem(self, error: Any) -> Fact:
        if error.value == NO_PERMISSION:
            return REFUSED
        if error.value == FUNCTION_NOT_FOUND:
            return fact("gpm.needs_driver")
        if error.value in UNSUPPORTED and self.architecture in BEFORE_HOPPER:
            return fact("gpm.needs_hopper", architecture=self.architecture)
        return Fact("gpm.failed", fields_of(error))
