"""What is read of a GPU: two tables, one line a reading. A new reading is a new line.

Prices are medians on an H100 (driver 580): everything here costs 1–6 µs unless it says otherwise. Not here, because
they stall the tick: the energy counter (3–9 ms) and the PCIe throughput getter (20 ms).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
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
    """An NVML field value by its constant's name; all fields of a tick are read in one call."""

    constant: str


@dataclass(frozen=True, eq=False)
class Reading:
    """One value of a GPU.

    `every_s` is its cadence: EVERY_TICK, a number of seconds, or ONCE (until it has been had). `sources` are tried in
    order: a later one stands in for an earlier one that has never worked on this GPU. `scale` turns NVML's unit into
    `unit`.
    """

    name: str
    unit: str
    every_s: float
    sources: tuple[Call | Field, ...]
    scale: float = 1


_UTILIZATION = "nvmlDeviceGetUtilizationRates"
_MEMORY = ("nvmlDeviceGetMemoryInfo", ("nvmlMemory_v2",))  # v1 counts the driver's reserve as used
_CLOCK = "nvmlDeviceGetClockInfo"
_MILLI = 1e-3

ROW = (
    Reading("busy", "%", EVERY_TICK, (Call(_UTILIZATION, value=attrgetter("gpu")),)),
    Reading("memory_busy", "%", EVERY_TICK, (Call(_UTILIZATION, value=attrgetter("memory")),)),
    Reading(
        "power_w",
        "W",
        EVERY_TICK,
        # the getter is the average over a second and lags a change of load by as much
        (Field("NVML_FI_DEV_POWER_INSTANT"), Call("nvmlDeviceGetPowerUsage")),
        _MILLI,
    ),
    Reading("power_average_w", "W", EVERY_TICK, (Field("NVML_FI_DEV_POWER_AVERAGE"),), _MILLI),
    Reading("memory_used_bytes", "B", EVERY_TICK, (Call(*_MEMORY, value=attrgetter("used")),)),
    Reading("memory_total_bytes", "B", EVERY_TICK, (Call(*_MEMORY, value=attrgetter("total")),)),
    Reading(
        "temperature_c",
        "°C",
        EVERY_TICK,
        (
            Call("nvmlDeviceGetTemperatureV", ("NVML_TEMPERATURE_GPU",)),
            Call("nvmlDeviceGetTemperature", ("NVML_TEMPERATURE_GPU",)),  # drivers before 570
        ),
    ),
    Reading("memory_temperature_c", "°C", EVERY_TICK, (Field("NVML_FI_DEV_MEMORY_TEMP"),)),
    Reading("sm_clock_mhz", "MHz", EVERY_TICK, (Call(_CLOCK, ("NVML_CLOCK_SM",)),)),
    Reading("memory_clock_mhz", "MHz", EVERY_TICK, (Call(_CLOCK, ("NVML_CLOCK_MEM",)),)),
    Reading(
        "throttle",
        "bit mask",
        EVERY_TICK,
        (
            Call("nvmlDeviceGetCurrentClocksEventReasons"),
            Call("nvmlDeviceGetCurrentClocksThrottleReasons"),  # drivers before 535
        ),
    ),
    # 4.5 ms was reported elsewhere
    Reading("processes", "processes", 1.0, (Call("nvmlDeviceGetComputeRunningProcesses_v3", value=len),)),
)

FACTS = (
    Reading("name", "", ONCE, (Call("nvmlDeviceGetName"),)),
    Reading("architecture", "", ONCE, (Call("nvmlDeviceGetArchitecture"),)),
    Reading("memory_total_bytes", "B", ONCE, (Call(*_MEMORY, value=attrgetter("total")),)),
    # 1.4 ms
    Reading("sm_clock_max_mhz", "MHz", ONCE, (Call("nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_SM",)),)),
    # an administrator may change it under a run
    Reading("power_limit_w", "W", 5.0, (Call("nvmlDeviceGetEnforcedPowerLimit"),), _MILLI),
)

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
