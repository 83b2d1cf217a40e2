"""Real loads for the tests of diagnosis: `data/loads.json`, which says where it comes from, and windows made
of it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hoptui.diagnosis.window import GpuWindow, ObservationWindow, gpu_window
from hoptui.domain.columns import pack
from hoptui.domain.devices import GpuInfo
from hoptui.domain.knobs import Cost, Effect, KnobSpec, KnobState, KnobValue

SECOND = 1_000_000_000
_READ = json.loads((Path(__file__).parent / "data" / "loads.json").read_text())
H100: dict[str, Any] = _READ["h100"]
H200: dict[str, Any] = _READ["h200"]


def gpu(index: int = 0, **facts: Any) -> GpuInfo:
    """An H100 as the sampler tells of it."""
    known: dict[str, Any] = {
        "memory_total_bytes": 85_520_809_984, "power_limit_w": 700.0, "sm_clock_max_mhz": 1980.0,
        "pcie_generation": 5,
        "pcie_width": 16,
    }  # fmt: skip
    return GpuInfo(uuid=f"GPU-{index}", index=index, name="NVIDIA H100 80GB HBM3", **(known | facts))


def readings(columns: dict[str, list[float | None]], index: int = 0) -> GpuWindow:
    """A GPU's window from columns of one value a second."""
    count = len(next(iter(columns.values())))
    rows = [
        ((i + 1) * SECOND, -1, {name: column[i] for name, column in columns.items() if column[i] is not None})
        for i in range(count)
    ]
    return gpu_window(gpu(index), pack(f"gpu/GPU-{index}", rows), (), shared=False)  # type: ignore[arg-type]


def window(
    load: list[dict[str, list[float | None]]] | None = None,
    *,
    phases: dict[str, float] | None = None,
    knobs: tuple[KnobState, ...] = (),
    world: int = 1,
    **more: Any,
) -> ObservationWindow:
    """Twenty seconds of a run on the GPUs of a load."""
    gpus = tuple(readings(columns, i) for i, columns in enumerate(load or ()))
    given: dict[str, Any] = {
        "t": 1000 * SECOND, "seconds": 20.0, "iterations": 100, "phases": phases or {}, "gpus": gpus,
        "knobs": knobs, "world": world, "cpus": 16, "host_cpu": 0.1,
    }  # fmt: skip
    return ObservationWindow(**(given | more))


def synthetic(**readings: Any) -> GpuWindow:
    """A GPU of which only this is known, from enough rows."""
    known: dict[str, Any] = {"power_w": 300.0, "power_limit_w": 700.0, "clock_mhz": 1980.0,
                             "clock_max_mhz": 1980.0, "capped": 0.0,
                             "hot": 0.0, "braked": 0.0, "memory": 0.1, "upload": 1e6,
                             "upload_limit": 64e9}  # fmt: skip
    return GpuWindow(index=0, rows=20, **(known | readings))


def knob(
    name: str,
    value: KnobValue,
    *,
    least: int | None = 1,
    most: int | None = 1 << 20,
    choices: tuple[KnobValue, ...] = (),
    effect: Effect = "speed",
    cost: Cost = "shape",
    took_s: float | None = None,
) -> KnobState:
    """A knob with this value in effect."""
    kind: Any = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "str"
    bounds = {"min": least, "max": most} if kind == "int" and not choices else {}
    spec = KnobSpec(name=name, kind=kind, default=value, choices=choices, effect=effect, cost=cost, **bounds)  # type: ignore[arg-type]
    return KnobState(spec=spec, value=value, took_s=took_s)


UNKNOWN = math.nan
