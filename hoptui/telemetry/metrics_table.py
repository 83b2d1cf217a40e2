"""What is read of a GPU: tables, one line a reading. A new reading is a new line.

Prices are of one H100 (driver 580) between ticks of 10 Hz, under load: four to forty times what a tight loop
shows, because the driver's code has left the caches. A call that is not priced costs 2–6 µs, the first one of
a tick 30 µs. Nowhere here: the PCIe byte fields, which cost 0.3 ms and wrap every few hundred ms at full
speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any

EVERY_TICK = 0.0
ONCE = math.inf


def _as_it_is(answer: Any) -> Any:
    return answer


@dataclass(frozen=True, eq=False)
class Call:
    """An NVML function by its name in pynvml, its arguments after the handle by their constants' names.

    Readings that share function and arguments share the call; `value` picks theirs from its answer.
    """

    function: str
    arguments: tuple[str, ...] = ()
    value: Callable[[Any], Any] = _as_it_is


@dataclass(frozen=True, eq=False)
class Field:
    """An NVML field value by its constant's name; all fields of a table that are due together are read in one
    call."""

    constant: str


@dataclass(frozen=True, eq=False)
class Reading:
    """One value of a GPU.

    `every_s` is its cadence: EVERY_TICK, a number of seconds, or ONCE (until it has been had). `sources` are
    tried in order: a later one stands in for an earlier one that has never worked on this GPU. `scale` turns
    NVML's unit into `unit`, and `digits` after the point are kept: what is beyond them is noise.
    """

    name: str
    unit: str
    sources: tuple[Call | Field, ...]
    every_s: float = EVERY_TICK
    scale: float = 1
    digits: int = 0


_UTILIZATION = "nvmlDeviceGetUtilizationRates"
_MEMORY = ("nvmlDeviceGetMemoryInfo", ("nvmlMemory_v2",))  # v1 counts the driver's reserve as used
_CLOCK = "nvmlDeviceGetClockInfo"
_STEADY_S = 0.5
"""For what moves slowly or is an average of a second, to keep fast ticks cheap: memory alone costs 65–100 µs,
as much as all others but GPM."""
_MILLI = 1e-3

MEMORY = (
    Reading("memory_used_bytes", "B", (Call(*_MEMORY, value=attrgetter("used")),), _STEADY_S),
    Reading("memory_total_bytes", "B", (Call(*_MEMORY, value=attrgetter("total")),), _STEADY_S),
)
"""All that a MIG instance answers besides GPM."""

ROW = (
    # the driver itself looks no more often than a few times a second
    Reading("busy", "%", (Call(_UTILIZATION, value=attrgetter("gpu")),), _STEADY_S),
    Reading("memory_busy", "%", (Call(_UTILIZATION, value=attrgetter("memory")),), _STEADY_S),
    Reading(
        "power_w",
        "W",
        # the getter is the average over a second and lags a change of load by as much
        (Field("NVML_FI_DEV_POWER_INSTANT"), Call("nvmlDeviceGetPowerUsage")),
        scale=_MILLI,
        digits=2,
    ),
    Reading("power_average_w", "W", (Field("NVML_FI_DEV_POWER_AVERAGE"),), scale=_MILLI, digits=2),
    *MEMORY,
    Reading(
        "temperature_c",
        "°C",
        (
            Call("nvmlDeviceGetTemperatureV", ("NVML_TEMPERATURE_GPU",)),
            Call("nvmlDeviceGetTemperature", ("NVML_TEMPERATURE_GPU",)),  # drivers before 570
        ),
        _STEADY_S,
    ),
    Reading("memory_temperature_c", "°C", (Field("NVML_FI_DEV_MEMORY_TEMP"),), _STEADY_S),
    Reading("sm_clock_mhz", "MHz", (Call(_CLOCK, ("NVML_CLOCK_SM",)),)),
    Reading("memory_clock_mhz", "MHz", (Call(_CLOCK, ("NVML_CLOCK_MEM",)),), _STEADY_S),
    Reading(
        "throttle",
        "bit mask",
        (
            Call("nvmlDeviceGetCurrentClocksEventReasons"),
            Call("nvmlDeviceGetCurrentClocksThrottleReasons"),  # drivers before 535
        ),
    ),
)

HEALTH = (
    Reading("ecc_corrected", "errors", (Field("NVML_FI_DEV_ECC_SBE_VOL_TOTAL"),)),
    Reading("ecc_uncorrected", "errors", (Field("NVML_FI_DEV_ECC_DBE_VOL_TOTAL"),)),
    Reading(
        "remapped_rows",
        "rows",
        (Call("nvmlDeviceGetRemappedRows", value=lambda answer: answer[0] + answer[1]),),
    ),
    Reading("pcie_replays", "replays", (Field("NVML_FI_DEV_PCIE_REPLAY_COUNTER"),)),  # 0.13–0.17 ms
    Reading(
        "protected_memory_used_bytes",
        "B",
        (Call("nvmlDeviceGetConfComputeProtectedMemoryUsage", value=attrgetter("used")),),
    ),
)
"""Read every 5 s, apart from the tick."""

_NANO = 1e-9


def _held_back(name: str, policy: str) -> Reading:
    """The seconds for which a policy has kept the clocks down, as a call and as a field."""
    held = Call("nvmlDeviceGetViolationStatus", (f"NVML_PERF_POLICY_{policy}",), attrgetter("violationTime"))
    return Reading(name, "s", (held, Field(f"NVML_FI_DEV_PERF_POLICY_{policy}")), scale=_NANO, digits=3)


EACH_SECOND = (
    Reading("encoder_busy", "%", (Call("nvmlDeviceGetEncoderUtilization", value=itemgetter(0)),)),
    Reading("decoder_busy", "%", (Call("nvmlDeviceGetDecoderUtilization", value=itemgetter(0)),)),
    Reading("jpeg_busy", "%", (Call("nvmlDeviceGetJpgUtilization", value=itemgetter(0)),)),
    Reading("ofa_busy", "%", (Call("nvmlDeviceGetOfaUtilization", value=itemgetter(0)),)),
    Reading("bar1_used_bytes", "B", (Call("nvmlDeviceGetBAR1MemoryInfo", value=attrgetter("bar1Used")),)),
    Reading("temperature_margin_c", "°C", (Call("nvmlDeviceGetMarginTemperature"),)),
    _held_back("power_violation_s", "POWER"),
    _held_back("thermal_violation_s", "THERMAL"),
)
"""Read every second, apart from the tick."""

_PCIE = "nvmlDeviceGetPcieThroughput"

PCIE = (
    Reading("pcie_rx_bytes_per_s", "B/s", (Call(_PCIE, ("NVML_PCIE_UTIL_RX_BYTES",)),), scale=1e3, digits=-3),
    Reading("pcie_tx_bytes_per_s", "B/s", (Call(_PCIE, ("NVML_PCIE_UTIL_TX_BYTES",)),), scale=1e3, digits=-3),
)
"""Read every 2 s where GPM has no figure, each apart from the tick and from the other: NVML counts for 20 ms
and sleeps meanwhile."""

ENERGY = (
    # 2.8–9.3 ms, up to 18; the field of the same name costs as much
    Reading("energy_j", "J", (Call("nvmlDeviceGetTotalEnergyConsumption"),), scale=_MILLI, digits=3),
)
"""Read every 10 s, apart from the tick."""


def _threshold(name: str, constant: str) -> Reading:
    """A temperature in degrees of the sensor. It is unknown where a driver answers 0 instead of refusing."""
    number = f"NVML_TEMPERATURE_THRESHOLD_{constant}"
    degrees = Call("nvmlDeviceGetTemperatureThreshold", (number,), lambda answer: answer or math.nan)
    return Reading(name, "°C", (degrees,), ONCE)


_CONSTRAINTS = "nvmlDeviceGetPowerManagementLimitConstraints"

LIMITS = (
    Reading(
        "power_default_w",
        "W",
        (Call("nvmlDeviceGetPowerManagementDefaultLimit"),),
        ONCE,
        scale=_MILLI,
        digits=2,
    ),
    Reading("power_min_w", "W", (Call(_CONSTRAINTS, value=itemgetter(0)),), ONCE, scale=_MILLI, digits=2),
    Reading("power_max_w", "W", (Call(_CONSTRAINTS, value=itemgetter(1)),), ONCE, scale=_MILLI, digits=2),
    # newer boards have only the margins below
    _threshold("temperature_slowdown_c", "SLOWDOWN"),
    _threshold("temperature_shutdown_c", "SHUTDOWN"),
    _threshold("temperature_max_c", "GPU_MAX"),
    _threshold("memory_temperature_max_c", "MEM_MAX"),
    # in degrees of `temperature_margin_c`, which falls as the GPU gets hotter
    Reading("margin_slowdown_c", "°C", (Field("NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT"),), ONCE),
    Reading("margin_shutdown_c", "°C", (Field("NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT"),), ONCE),
    Reading("margin_max_c", "°C", (Field("NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT"),), ONCE),
    Reading("memory_margin_max_c", "°C", (Field("NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT"),), ONCE),
)
"""What the board allows: `GpuInfo.limits` by the same names."""

FACTS = (
    Reading("name", "", (Call("nvmlDeviceGetName"),), ONCE),
    Reading("architecture", "", (Call("nvmlDeviceGetArchitecture"),), ONCE),
    Reading("memory_total_bytes", "B", (Call(*_MEMORY, value=attrgetter("total")),), ONCE),
    # 1.4–3.4 ms
    Reading("sm_clock_max_mhz", "MHz", (Call("nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_SM",)),), ONCE),
    # of GPU and slot together; the present ones fall when the GPU idles
    Reading("pcie_generation", "", (Call("nvmlDeviceGetMaxPcieLinkGeneration"),), ONCE),
    Reading("pcie_width", "lanes", (Call("nvmlDeviceGetMaxPcieLinkWidth"),), ONCE),
    Reading("nvlinks", "links", (Field("NVML_FI_DEV_NVLINK_LINK_COUNT"),), ONCE),
    # an administrator may change it under a run
    Reading("power_limit_w", "W", (Call("nvmlDeviceGetEnforcedPowerLimit"),), scale=_MILLI, digits=2),
    *LIMITS,
)
INSTANCE_FACTS = FACTS[:3]

ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
"""NVML_DEVICE_ARCH_* of nvml.h."""
