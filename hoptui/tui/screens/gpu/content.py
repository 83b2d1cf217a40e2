"""Every reading of one GPU with its meaning, and a summary of them."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

from hoptui.domain.devices import GpuInfo
from hoptui.model.series import risen_share
from hoptui.presentation import numbers, sentences
from hoptui.presentation.gpu_readings import GPU, alarms, reasons
from hoptui.presentation.numbers import UNKNOWN
from hoptui.presentation.readings import DERIVED, GROUPS, Meaning, value_text
from hoptui.tui.components import gpus
from hoptui.tui.components.figures import current, ratio, spark
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span, bar

SPARK_S = 60.0
HELD_S = 10
"""Over how many seconds the share of time is shown in which power or heat held the clocks down."""
_OWN_PLACE = ("memory_total_bytes", "processes")  # beside the memory used, and the title of the processes
_OF_RUN = {
    "mfu": "mfu_estimated",
    "energy_per_unit_j": "sm_clock_mhz",
}  # derived readings, and the reading that each precedes
_CHARTED = {
    "memory_headroom_bytes": "memory_used_bytes",
    "idle_power_w": "power_w",
    "throttle": "sm_clock_mhz",
    "power_violation_s": "sm_clock_mhz",
    "thermal_violation_s": "sm_clock_mhz",
    "xid": "",
}
_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}  # PCIe, each way
_GROUP, _LABEL, _VALUE, _SHORT = 10, 16, 15, 27


class ReadingRow(NamedTuple):
    """A line of the list. `fraction` is of its maximum, `note` is shown beside the value, `ink` is the
    note's.

    `source` and `metric` are the series that a chart of it shows; `metric` is empty where there is none.
    `limits` is what the board allows, in one sentence, empty if unknown.
    """

    name: str
    meaning: Meaning
    value: str
    fraction: float | None
    note: str
    ink: str
    source: str
    metric: str
    limits: str = ""


def all_of(view: View, gpu: GpuInfo) -> list[ReadingRow]:
    """Every reading of a GPU by group, those of its run among them; an unknown one has the reason."""
    now = _with_computed(gpus.readings(view, gpu), gpu)
    found = []
    for name, meaning in GPU.items():
        found += [_of_run(view, n) for n, before in _OF_RUN.items() if before == name and n in _derived(view)]
        if name not in _OWN_PLACE:
            found.append(_reading(view, gpu, name, meaning, now))
    return sorted(found, key=lambda reading: GROUPS.index(reading.meaning.group))


def rows(view: View, readings: list[ReadingRow], width: int, cursor: int) -> list[Line]:
    """One line per reading: its group once, a bar or its last minute, the value, and a short meaning."""
    short = _SHORT if width >= 72 else 0
    across = max(0, min(24, width - _GROUP - _LABEL - _VALUE - 3 - short))
    shown: list[Line] = []
    for i, one in enumerate(readings):
        group = one.meaning.group if not i or readings[i - 1].meaning.group != one.meaning.group else ""
        known = one.value != UNKNOWN
        who = (
            Span("› " if i == cursor else "  ", "key"),
            Span(group, "dim", _GROUP - 2),
            Span(one.meaning.label, "" if known else "dim", _LABEL),
        )
        if not known and one.ink == "warn":  # no bar: the reason needs the room
            shown.append((*who, Span(one.value, "dim"), Span("  "), Span(one.note, one.ink)))
            continue
        if one.fraction is None and one.metric and one.meaning.unit in ("B/s", "°C"):
            picture: Line = (Span(spark(view, one.source, one.metric, across, SPARK_S), "1"),)
        else:
            picture = bar(one.fraction, across, gpus.ink_of(one.name))
        shown.append((
            *who,
            *picture,
            Span(one.value, "strong" if known else "dim", _VALUE + 1, right=True),
            Span("  "),
            Span(one.note, one.ink),
        ))  # fmt: skip
    return shown


def meaning_lines(reading: ReadingRow, width: int, height: int) -> list[Line]:
    """The chosen reading in full: value, meaning, good values, source; without room, the end is left out."""
    meaning = reading.meaning
    found: list[Line] = [(Span(f"{meaning.label}  ", "strong"), Span(reading.value, "strong"))]
    if reading.ink != "dim":
        found += _wrapped(reading.note, width, reading.ink)
    if reading.limits:
        found += _wrapped(reading.limits, width)
    found += _wrapped(meaning.long, width)
    if meaning.good:
        found += _wrapped(f"Good: {meaning.good}.", width, "good")
    source = _wrapped(f"From {meaning.source}.", width, "dim")
    return [*found[: max(0, height - len(source))], *source][:height]


def verdict(view: View, gpu: GpuInfo) -> Line:
    """A summary of the readings in one sentence. Empty if nothing is unusual."""
    if why := gpus.trouble(view, gpu):
        return Span(" ✕ ", "bad"), Span(f"cannot be read: {why}", "warn")
    now = gpus.readings(view, gpu)
    for reason in alarms(now.get("throttle")):
        return Span(f" ✕ {reason.word}: ", "bad"), Span(reason.long)
    told = _told(now)
    return (Span(" ▸ ", "warn"), Span(told)) if told else ()


def _told(now: dict[str, float]) -> str:
    hidden = gpus.contrast(now)
    active, tensor, dram = now.get("sm_active"), now.get("tensor_active"), now.get("dram_active")
    if hidden and active is not None:
        return f"{hidden}: some kernel always runs, yet {100 - active:.0f} % of the SMs' time has no work"
    if active is None or tensor is None or dram is None or active < 80:
        return ""
    if dram >= 70 and dram > tensor:
        used = f"DRAM {dram:.0f} % of its bandwidth, tensor {tensor:.0f} %"
        return f"SM {active:.0f} % is mostly waiting for memory: {used}"
    if tensor < 5 and now.get("fp32_active", 0.0) >= 30:
        single = f"FP32 {now['fp32_active']:.0f} %"
        return f"SM {active:.0f} % without the tensor cores: {single}; bf16 or TF32 would use them"
    return ""


def facts(gpu: GpuInfo) -> str:
    """What does not change about a GPU, for a border: driver, architecture, peaks."""
    found = [f"driver {numbers.clean(gpu.driver, 20)}"] if gpu.driver else []
    found += [numbers.clean(gpu.architecture, 20)] if gpu.architecture else []
    if "bf16" in gpu.peak_flops:
        found.append(f"{gpu.peak_flops['bf16'] / 1e12:.0f} TFLOP/s bf16")
    if gpu.memory_bandwidth_bytes_per_s:
        found.append(f"{numbers.si(gpu.memory_bandwidth_bytes_per_s)}B/s")
    return " · ".join(found)


def _reading(view: View, gpu: GpuInfo, name: str, meaning: Meaning, now: dict[str, float]) -> ReadingRow:
    value = now.get(name)
    note, ink = meaning.short, "dim"
    shown = value_text(meaning.unit, value)
    fraction = _fraction(name, value, now, gpu)
    missing = next(filter(None, map(gpu.missing_because.get, (*meaning.needs, name))), None)
    if value is None and missing is not None:
        note, ink = sentences.sentence(missing), "warn"
    match name:
        case "power_w":
            shown = gpus.watts(now, gpu)
        case "power_violation_s" | "thermal_violation_s" if value is not None:
            share = risen_share(view.store.series(f"gpu/{gpu.uuid}", name), HELD_S)
            shown = value_text("%", share)
            fraction = ratio(share, 100)
            note = f"of {HELD_S} s; {numbers.duration(value)} so far"
        case "memory_used_bytes":
            shown = gpus.memory(now, gpu)
        case "dram_active" if value is not None and gpu.memory_bandwidth_bytes_per_s:
            shown = f"{shown} {value_text('B/s', value / 100 * gpu.memory_bandwidth_bytes_per_s)}"
        case "mfu_estimated" if value is not None:
            shown = f"≈ {shown}"
        case "throttle" if value is not None:
            found = reasons(value)
            shown = found[0].word if found else "nothing"
            if found:
                note, ink = found[0].long, gpus.held(found[0])[0].ink or "dim"
        case "pcie_rx_bytes_per_s" | "pcie_tx_bytes_per_s" if gpu.pcie_generation and gpu.pcie_width:
            note = f"{note}, gen {gpu.pcie_generation} × {gpu.pcie_width}" if ink == "dim" else note
        case "nvlink_rx_bytes_per_s" | "nvlink_tx_bytes_per_s" if gpu.nvlinks is not None and ink == "dim":
            note = f"{note.partition(',')[0]}, {gpu.nvlinks} links"
        case "xid" if "xid" not in gpu.missing_because:
            shown, note, ink = _last_xid(view, gpu, note)
        case "ecc_uncorrected" | "nvlink_errors" if value:
            ink = "bad"
    metric = _CHARTED.get(name, name)
    if ink == "dim" and (short := _SHORT_LIMITS.get(name)):
        note = _listed(gpu, short) or note
    return ReadingRow(
        name,
        meaning,
        shown,
        fraction,
        note,
        ink,
        f"gpu/{gpu.uuid}",
        metric,
        limits_sentence(gpu, name),
    )


_SHORT_LIMITS = {
    "temperature_c": (("slows at", "temperature_slowdown_c"), ("off at", "temperature_shutdown_c")),
    "memory_temperature_c": (("in operation up to", "memory_temperature_max_c"),),
    "temperature_margin_c": (("slows at", "margin_slowdown_c"), ("off at", "margin_shutdown_c")),
}
"""Limits that stand beside a value, with the word before each."""
_LIMITS = {
    "power_w": (
        ("default", "power_default_w", "W"),
        ("minimum", "power_min_w", "W"),
        ("maximum", "power_max_w", "W"),
    ),
    "temperature_c": (
        ("largest in operation", "temperature_max_c", "°C"),
        ("slows down at", "temperature_slowdown_c", "°C"),
        ("shuts down at", "temperature_shutdown_c", "°C"),
    ),
    "memory_temperature_c": (("largest in operation", "memory_temperature_max_c", "°C"),),
    "temperature_margin_c": (
        ("least in operation", "margin_max_c", "°C"),
        ("slows down at", "margin_slowdown_c", "°C"),
        ("shuts down at", "margin_shutdown_c", "°C"),
        ("least of the memory", "memory_margin_max_c", "°C"),
    ),
}


def limits_sentence(gpu: GpuInfo, name: str) -> str:
    """`Limit: 500 W in force, default 700 W, minimum 200 W, maximum 700 W.`; empty if none is known."""
    found = [
        f"{word} {gpu.limits[key]:g} {unit}" for word, key, unit in _LIMITS.get(name, ()) if key in gpu.limits
    ]
    if found and name == "power_w" and gpu.power_limit_w is not None:
        found.insert(0, f"in force {gpu.power_limit_w:g} W")
    return f"Limits: {', '.join(found)}." if found else ""


def _listed(gpu: GpuInfo, short: tuple[tuple[str, str], ...]) -> str:
    found = [f"{word} {gpu.limits[key]:g}" for word, key in short if key in gpu.limits]
    return f"{', '.join(found)} °C" if found else ""


def _with_computed(now: dict[str, float], gpu: GpuInfo) -> dict[str, float]:
    """The readings and those that follow from them alone."""
    found = dict(now)
    used, total = now.get("memory_used_bytes"), gpus.total(now, gpu)
    if used is not None and total is not None:
        found["memory_headroom_bytes"] = total - used
    if "power_w" in now and "sm_active" in now:
        found["idle_power_w"] = now["power_w"] * (1 - now["sm_active"] / 100)
    return found


def _fraction(name: str, value: float | None, now: dict[str, float], gpu: GpuInfo) -> float | None:
    """A reading as a share of its maximum, None where there is no natural one."""
    match name:
        case "power_w" | "power_average_w" | "idle_power_w":
            return ratio(value, gpu.power_limit_w)
        case "memory_used_bytes" | "memory_headroom_bytes":
            return ratio(value, gpus.total(now, gpu))
        case "sm_clock_mhz":
            return ratio(value, gpu.sm_clock_max_mhz)
        case "pcie_rx_bytes_per_s" | "pcie_tx_bytes_per_s":
            lane = _LANE_BYTES_PER_S.get(gpu.pcie_generation or 0)
            return ratio(value, lane * gpu.pcie_width if lane and gpu.pcie_width else None)
    return ratio(value, 100) if GPU[name].unit == "%" else None


def _last_xid(view: View, gpu: GpuInfo, note: str) -> tuple[str, str, str]:
    source = f"gpu/{gpu.uuid}"
    for event in reversed(view.store.events):
        if event.kind == "xid" and event.source == source:
            return (
                numbers.clock(event.wall),
                sentences.event_text(event),
                "bad" if event.level == "alarm" else "warn",
            )
    return "none seen", note, "dim"


def _derived(view: View) -> dict[str, float]:
    return current(view, f"derived/{view.run.run}") if view.run else {}


def _of_run(view: View, name: str) -> ReadingRow:
    """A reading of the run's GPUs together."""
    value, meaning = _derived(view)[name], DERIVED[name]
    fraction = value / 100 if meaning.unit == "%" else None
    text, source = value_text(meaning.unit, value), f"derived/{view.run.run if view.run else ''}"
    return ReadingRow(name, meaning, text, fraction, "of all the run's GPUs", "dim", source, name)


def _wrapped(told: str, width: int, ink: str = "") -> list[Line]:
    kept = told.replace(" %", "\u00a0%")  # a figure and its sign stay together
    return [(Span(line.replace("\u00a0", " "), ink),) for line in textwrap.wrap(kept, max(8, width))]
