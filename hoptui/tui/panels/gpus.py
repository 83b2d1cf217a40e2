"""What the GPUs do: one in detail, several in a line each, or why there is nothing to read."""

from __future__ import annotations

import math
from typing import NamedTuple

from hoptui.tui.lines import GAP, Line, Span, bar, pack
from hoptui.tui.panels.readings import Gauge, gauges, of, percent, ratio
from hoptui.tui.view import OLD_S, View
from hoptui.viewer import format as text
from hoptui.viewer.format import UNKNOWN
from hoptui.wire.devices import GpuInfo

_ALARMS = {
    0x08: "hardware slowdown",
    0x20: "too hot",
    0x40: "too hot (hardware)",
    0x80: "power brake",
}
_POWER_CAP = 0x04
_ALARM = 12  # cells for what holds the clocks back
_SHORT_GAUGES = (("sm_active", "SM"), ("tensor_active", "tensor"), ("dram_active", "DRAM"))
_CURVES = (
    ("sm_active", "SM", "1"), ("tensor_active", "tensor", "3"), ("dram_active", "DRAM", "4"), ("busy", "busy", "1"),
    ("memory_busy", "memory busy", "3"),
)  # fmt: skip


def readings(view: View, gpu: GpuInfo) -> dict[str, float]:
    """The current readings of a GPU: none at all where they are old or it cannot be read."""
    source = f"gpu/{gpu.uuid}"
    age = view.age_s(source)
    if gpu.reason or age is None or (age > OLD_S and not view.node_stale):
        return {}
    return view.store.latest(source)


def title(gpu: GpuInfo) -> str:
    return f"GPU {gpu.index} · {text.clean(gpu.name, 40)}"


def detail(view: View, gpu: GpuInfo, width: int) -> list[Line]:
    """One GPU: gauges two abreast and the rest in a line; its reason where it cannot be read."""
    if gpu.reason:
        return [(Span("✕ ", "bad"), Span(text.clean(gpu.reason), "warn"))]
    now = readings(view, gpu)
    found = [
        Gauge("busy", ratio(now.get("busy"), 100), percent(now.get("busy")), "1"),
        Gauge("power", ratio(now.get("power_w"), gpu.power_limit_w), _power(now, gpu), "2"),
        Gauge("memory", ratio(now.get("memory_used_bytes"), _total(now, gpu)), _memory(now, gpu), "1"),
        Gauge("clock", ratio(now.get("sm_clock_mhz"), gpu.sm_clock_max_mhz), _clock(now), "1"),
    ]
    found += [
        Gauge(label, ratio(now.get(n), 100), percent(now.get(n))) for n, label in _SHORT_GAUGES if n in now
    ]
    facts: list[Line] = [(Span(_celsius(now.get("temperature_c")), ""),)]
    if "memory_temperature_c" in now:
        facts.append((Span("HBM ", "dim"), Span(_celsius(now["memory_temperature_c"]))))
    if "memory_busy" in now and "dram_active" not in now:
        facts.append((Span("memory busy ", "dim"), Span(percent(now["memory_busy"]))))
    facts += [(span,) for span in _throttle(now)]
    return [*gauges(found, width), *pack(facts, width)[:1]]


def curves(view: View, gpu: GpuInfo) -> list[tuple[str, str, str, float]]:
    """(metric, label, ink, factor to per cent) of what the chart shows, power as a share of its limit."""
    names = view.store.names(f"gpu/{gpu.uuid}")
    measured = [c for c in _CURVES[:3] if c[0] in names] or [c for c in _CURVES[3:] if c[0] in names]
    found = [(name, f"{label} %", ink, 1.0) for name, label, ink in measured]
    if "power_w" in names and gpu.power_limit_w:
        found.append(("power_w", "power %", "2", 100 / gpu.power_limit_w))
    return found


class _Columns(NamedTuple):
    """How wide the parts of a GPU's line are; 0 leaves a part out."""

    name: int
    bar: int
    power_bar: int
    power: int
    memory_bar: int
    memory: int
    user: int

    @classmethod
    def of(cls, width: int, *, users: bool) -> _Columns:
        wide = width >= 100
        name, power, memory, user = (
            (16 if wide else 0),
            (12 if width >= 60 else 7),
            15,
            (18 if users and wide else 0),
        )
        bars = 3 if wide else 2 if width >= 60 else 1
        fixed = 3 + name + 6 + power + memory + 7 + user + _ALARM + 2 * bars
        each = max(4, min(24, (width - fixed) // bars))
        return cls(name, each, each if bars > 2 else 0, power, each if bars > 1 else 0, memory, user)


def rows(view: View, gpus: tuple[GpuInfo, ...], width: int, *, users: bool = False) -> list[Line]:
    """One line a GPU: bars of busy, power and memory, then the figures, as many as the width holds."""
    columns = _Columns.of(width, users=users)
    return [_row(view, gpu, columns) for gpu in gpus]


def head(width: int, *, users: bool = False) -> Line:
    """What stands over `rows`."""
    c = _Columns.of(width, users=users)
    spans = [Span("", width=3)]
    spans += [Span("GPU", "dim", c.name)] if c.name else []
    spans.append(Span("busy", "dim", c.bar + 6))
    for label, bar_width, value in (("power", c.power_bar, c.power), ("memory", c.memory_bar, c.memory)):
        spans += (
            [Span("  "), Span(label, "dim", bar_width + value)]
            if bar_width
            else [Span(label, "dim", value, right=True)]
        )
    spans.append(Span("temp", "dim", 7, right=True))
    return (*spans, Span("  run", "dim", c.user)) if c.user else tuple(spans)


def _row(view: View, gpu: GpuInfo, c: _Columns) -> Line:
    head = [Span(str(gpu.index), "dim", 3)]
    if c.name:
        head.append(Span(text.clean(gpu.name.removeprefix("NVIDIA "), 40), "", c.name))
    if gpu.reason:
        return (*head, Span("✕ ", "bad"), Span(text.clean(gpu.reason), "warn"))
    now = readings(view, gpu)
    spans = [
        *head,
        *bar(ratio(now.get("busy"), 100), c.bar, "1"),
        Span(percent(now.get("busy")), "", 6, right=True),
    ]
    if c.power_bar:
        spans += [Span("  "), *bar(ratio(now.get("power_w"), gpu.power_limit_w), c.power_bar, "2")]
    spans.append(Span(_power(now, gpu) if c.power > 7 else _watts(now), "", c.power, right=True))
    if c.memory_bar:
        spans += [Span("  "), *bar(ratio(now.get("memory_used_bytes"), _total(now, gpu)), c.memory_bar, "3")]
    spans.append(Span(_memory(now, gpu), "", c.memory, right=True))
    spans.append(Span(_celsius(now.get("temperature_c")), "", 7, right=True))
    if c.user:
        spans += [Span("  "), Span(_users(view, gpu), "dim", c.user - 2)]
    return (*spans, GAP, *_alarm(now, bool(c.name)))


def short(view: View, gpu: GpuInfo, width: int) -> Line:
    """A GPU in one line of a small screen."""
    if gpu.reason:
        return Span(f"GPU {gpu.index} ", "dim"), Span("✕ ", "bad"), Span(text.clean(gpu.reason), "warn")
    now = readings(view, gpu)
    across = max(4, min(16, width - 62))
    return (
        Span(f"GPU {gpu.index}", "dim", 8),
        *bar(ratio(now.get("busy"), 100), across, "1"),
        Span(percent(now.get("busy")), "", 6, right=True),
        Span(" busy", "dim"),
        Span(_power(now, gpu), "", 12, right=True),
        Span(_memory(now, gpu), "", 15, right=True),
        Span(_celsius(now.get("temperature_c")), "", 7, right=True),
        GAP,
        *_alarm(now, width >= 72),
    )


def none(view: View) -> str:
    """Why there are no GPU readings, in one line."""
    node = view.node
    return text.clean(node.gpu_reason or "no GPU was found on this node") if node else ""


def _power(now: dict[str, float], gpu: GpuInfo) -> str:
    limit = f"{gpu.power_limit_w:.0f}" if gpu.power_limit_w else UNKNOWN
    return of(f"{now['power_w']:.0f}", limit, "W") if "power_w" in now else UNKNOWN


def _watts(now: dict[str, float]) -> str:
    return f"{now['power_w']:.0f} W" if "power_w" in now else UNKNOWN


def _total(now: dict[str, float], gpu: GpuInfo) -> float | None:
    return now.get("memory_total_bytes", gpu.memory_total_bytes)


def _memory(now: dict[str, float], gpu: GpuInfo) -> str:
    return of(text.gib(now.get("memory_used_bytes")), text.gib(_total(now, gpu)), "GiB")


def _clock(now: dict[str, float]) -> str:
    return f"{text.grouped(now['sm_clock_mhz'])} MHz" if "sm_clock_mhz" in now else UNKNOWN


def _celsius(value: float | None) -> str:
    return UNKNOWN if value is None or math.isnan(value) else f"{value:.0f} °C"


def _throttle(now: dict[str, float]) -> list[Span]:
    """What holds the clocks back: alarms first; the power cap is normal under full load and only told."""
    bits = int(now.get("throttle", 0))
    alarms = [Span(f"⚠ {word}", "bad") for bit, word in _ALARMS.items() if bits & bit]
    return alarms or ([Span("⚠ power cap", "warn")] if bits & _POWER_CAP else [])


def _alarm(now: dict[str, float], told: bool) -> list[Span]:
    """The first thing that holds the clocks back; the sign alone where there is no room to tell which."""
    return [span if told else Span("⚠", span.ink) for span in _throttle(now)[:1]]


def _users(view: View, gpu: GpuInfo) -> str:
    node = view.node
    names = [run.name for run in node.runs if gpu.uuid in run.gpus and not run.exit_reason] if node else []
    return text.clean(", ".join(names), 40)
