"""What the GPUs do: one in detail, several in a line each, or why there is nothing to read."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

from hoptui.tui.lines import GAP, Line, Span, bar, pack
from hoptui.tui.panels import waiting
from hoptui.tui.panels.readings import Gauge, current, fact, gauges, of, percent, ratio
from hoptui.tui.view import View
from hoptui.tui.widgets.line_chart import Wanted
from hoptui.viewer import format as text
from hoptui.viewer import meanings
from hoptui.viewer.format import UNKNOWN
from hoptui.viewer.meanings import Reason, value_text
from hoptui.wire.devices import GpuInfo

WORK = (("sm_active", "SM", "1"), ("tensor_active", "tensor", "3"), ("dram_active", "DRAM", "4"))
PLAIN_WORK = (("busy", "busy", "1"), ("memory_busy", "memory busy", "3"))  # before Hopper
FIGURES = (
    ("busy", "busy %", 7),
    ("sm_active", "SM %", 6),
    ("tensor_active", "tensor %", 9),
    ("dram_active", "DRAM %", 7),
)
CHARTED = 4  # GPUs in one chart: there are four inks
INKS = "1234"
_HIGH, _LOW = 90.0, 60.0  # busy at least, SM active at most: there is something to tell
_SIGNS = {"alarm": ("✕ ", "bad"), "warning": ("⚠ ", "warn"), "info": ("", "")}


def readings(view: View, gpu: GpuInfo) -> dict[str, float]:
    """The current readings of a GPU: none at all where they are old or it cannot be read."""
    return {} if gpu.reason else current(view, f"gpu/{gpu.uuid}")


def trouble(view: View, gpu: GpuInfo) -> str:
    """Why nothing at all is read of a GPU: its own reason, else what is wrong with the sampler; empty where there are readings."""
    if gpu.reason or view.node is None or not view.node.sampler or readings(view, gpu):
        return text.clean(gpu.reason)
    return text.clean(view.node.sampler)


def title(gpu: GpuInfo) -> str:
    """`GPU 0 · NVIDIA H100 80GB HBM3`."""
    return " · ".join(filter(None, (f"GPU {gpu.index}", text.clean(gpu.name, 40), part(gpu))))


def kinds(gpus: tuple[GpuInfo, ...]) -> str:
    """`8 × NVIDIA H100 80GB HBM3`, the kinds one after the other."""
    names = [text.clean(gpu.name, 40) for gpu in gpus if not gpu.parent]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def detail(view: View, gpu: GpuInfo, width: int, most_facts: int = 1) -> list[Line]:
    """One GPU: gauges two abreast and the rest in at most so many lines; its reason where it cannot be read."""
    if why := trouble(view, gpu):
        first, *rest = textwrap.wrap(why, max(20, width - 2))
        return [(Span("✕ ", "bad"), Span(first, "warn")), *((Span(f"  {line}", "warn"),) for line in rest)]
    now = readings(view, gpu)
    left = [(name, label) for name, label, _ in WORK if name in now] or [("memory_busy", "memory busy")]
    work = [
        Gauge(label, ratio(now.get(n), 100), value_text("%", now.get(n)), ink_of(n))
        for n, label in [("busy", "busy"), *left]
    ]
    board = [
        Gauge("power", ratio(now.get("power_w"), gpu.power_limit_w), watts(now, gpu), "2"),
        Gauge("memory", ratio(now.get("memory_used_bytes"), total(now, gpu)), memory(now, gpu), "1"),
        Gauge(
            "clock",
            ratio(now.get("sm_clock_mhz"), gpu.sm_clock_max_mhz),
            value_text("MHz", now.get("sm_clock_mhz")),
            "1",
        ),
    ]
    board += mfu(view)[: max(0, len(work) - len(board))]
    while len(board) < len(work):
        board.append(Gauge("", None, ""))
    paired = [gauge for pair in zip(work, board, strict=False) for gauge in pair] + board[len(work) :]
    return [*gauges(paired, width), *pack(_facts(view, now), width)[:most_facts]]


def _facts(view: View, now: dict[str, float]) -> list[Line]:
    """What holds the clocks back, the temperatures, and what the run's GPUs say together: the most important first."""
    found: list[Line] = [held(reason) for reason in _told(now)]
    hidden = contrast(now)
    found += [(Span(f"▸ {hidden}", "warn"),)] if hidden else []
    found.append((Span(value_text("°C", now.get("temperature_c"))),))
    if "memory_temperature_c" in now:
        found.append((Span("HBM ", "dim"), Span(value_text("°C", now["memory_temperature_c"]))))
    return found + together(view)


def together(view: View) -> list[Line]:
    """Memory headroom and idle power of the run's GPUs, where they are known."""
    found = current(view, f"derived/{view.run.run}") if view.run else {}
    told = (("memory_headroom_bytes", "headroom", 9), ("idle_power_w", "idle", 7))
    return [
        fact(label, value_text(meanings.DERIVED[n].unit, found[n]), width)
        for n, label, width in told
        if n in found
    ]


def mfu(view: View) -> list[Gauge]:
    """The run's MFU as it declares it, else the estimate, marked as one; nothing where neither is known."""
    found = current(view, f"derived/{view.run.run}") if view.run else {}
    if "mfu" in found:
        return [Gauge("MFU", found["mfu"] / 100, value_text("%", found["mfu"]), "3")]
    if "mfu_estimated" in found:
        return [
            Gauge(
                "MFU est.", found["mfu_estimated"] / 100, f"≈ {value_text('%', found['mfu_estimated'])}", "3"
            )
        ]
    return []


def contrast(now: dict[str, float]) -> str:
    """Where busy claims what SM active denies: `busy 100 % but SM 26 %`."""
    busy, active = now.get("busy"), now.get("sm_active")
    if busy is None or active is None or busy < _HIGH or active > _LOW:
        return ""
    return f"busy {value_text('%', busy)} but SM {value_text('%', active)}"


def work_curves(view: View, gpus: tuple[GpuInfo, ...]) -> list[Wanted]:
    """What the charts show in per cent: SM, tensor and DRAM of one GPU, SM (else busy) of each of several."""
    if len(gpus) == 1:
        source = f"gpu/{gpus[0].uuid}"
        names = view.store.names(source)
        found = [c for c in WORK if c[0] in names] or [c for c in PLAIN_WORK if c[0] in names]
        return [Wanted(source, name, f"{label} %", ink) for name, label, ink in found]
    name = "sm_active" if any("sm_active" in view.store.names(f"gpu/{g.uuid}") for g in gpus) else "busy"
    return [Wanted(f"gpu/{g.uuid}", name, _called(g), ink) for g, ink in zip(gpus, INKS, strict=False)]


def power_curves(gpus: tuple[GpuInfo, ...], *, share: bool = False) -> list[Wanted]:
    """Watts of each GPU; as a `share` of the limit, in per cent, only of GPUs that have one."""
    if share:
        return [
            Wanted(f"gpu/{g.uuid}", "power_w", "power %", "2", 100 / g.power_limit_w)
            for g in gpus
            if g.power_limit_w
        ]
    inks = INKS if len(gpus) > 1 else "2"
    return [Wanted(f"gpu/{g.uuid}", "power_w", _called(g), ink) for g, ink in zip(gpus, inks, strict=False)]


class _Columns(NamedTuple):
    """How wide the parts of a GPU's line are; 0 leaves a part out. `bars` of the first figures get one."""

    name: int
    bars: int
    bar: int
    temperature: int
    clock: int
    held: int
    user: int

    @classmethod
    def of(cls, gpus: tuple[GpuInfo, ...], width: int, *, users: bool) -> _Columns:
        left = max(0, width - 5 - sum(w for _, _, w in FIGURES) - _POWER - _MEMORY)

        def take(*wanted: int) -> int:
            nonlocal left
            found = next((cells for cells in wanted if cells <= left), 0)
            left -= found
            return found

        mixed = len({gpu.name for gpu in gpus}) > 1
        name = take(*((16, 9) if width >= 100 else (9,))) if mixed else 0
        temperature, clock = take(5), take(7)
        held = take(13, 3)
        user = take(16) if users else 0
        bars = next((count for count in (6, 4, 2) if left // count >= 7), 0)
        across = min(16, left // bars - 1) if bars else 0
        left -= bars * (across + 1)
        held += take(*range(min(7, left), 0, -1)) if held > 3 else 0
        return cls(name, bars, across, temperature, clock, held, user + left if user else 0)


_POWER, _MEMORY = 10, 12


def head(gpus: tuple[GpuInfo, ...], width: int, *, users: bool = False) -> Line:
    """What stands over `rows`, with the units."""
    c = _Columns.of(gpus, width, users=users)
    spans = [Span("", width=5), *([Span("GPU", "dim", c.name)] if c.name else [])]
    for i, (_, label, cells) in enumerate(FIGURES):
        spans.append(Span(label, "dim", cells + (c.bar + 1) * (i < min(4, c.bars)), right=True))
    wide = (c.bar + 1) * (c.bars > 4)
    spans += [Span("W", "dim", _POWER + wide, right=True), Span("GiB", "dim", _MEMORY + wide, right=True)]
    spans += [Span("°C", "dim", c.temperature, right=True)] if c.temperature else []
    spans += [Span("MHz", "dim", c.clock, right=True)] if c.clock else []
    spans += [Span("  clocks", "dim", c.held)] if c.held > 3 else []
    return (*spans, Span("  used by", "dim", c.user)) if c.user else tuple(spans)


def rows(
    view: View, gpus: tuple[GpuInfo, ...], width: int, *, users: bool = False, cursor: int = -1
) -> list[Line]:
    """One line a GPU: how busy it is in four ways, power, memory, temperature, clocks and who uses it, as much as fits."""
    columns = _Columns.of(gpus, width, users=users)
    return [_row(view, gpu, columns, chosen=i == cursor) for i, gpu in enumerate(gpus)]


def _row(view: View, gpu: GpuInfo, c: _Columns, *, chosen: bool) -> Line:
    spans = [Span("› " if chosen else "  ", "key"), Span("└" if gpu.parent else str(gpu.index), "dim", 3)]
    if c.name:
        spans.append(Span(_short_name(gpu), "", c.name))
    if why := trouble(view, gpu):
        return (*spans, Span("✕ ", "bad"), Span(why, "warn"))
    now = readings(view, gpu)
    hidden = bool(contrast(now))
    for i, (name, _, cells) in enumerate(FIGURES):
        barred = i < c.bars
        spans += [Span("  "), *bar(ratio(now.get(name), 100), c.bar, ink_of(name))] if barred else []
        ink = "warn" if hidden and name == "sm_active" else "" if name in now else "dim"
        spans.append(Span(_figure(now.get(name)), ink, cells - barred, right=True))
    for value, part, whole, ink, cells in (
        (watts(now, gpu), now.get("power_w"), gpu.power_limit_w, "2", _POWER),
        (memory(now, gpu), now.get("memory_used_bytes"), total(now, gpu), "1", _MEMORY),
    ):
        barred = c.bars > 4
        spans += [Span("  "), *bar(ratio(part, whole), c.bar, ink)] if barred else []
        spans.append(Span(value.rpartition(" ")[0] or value, "", cells - barred, right=True))
    for name, cells in (("temperature_c", c.temperature), ("sm_clock_mhz", c.clock)):
        if cells:
            spans.append(Span(_bare(text.grouped(now.get(name))), "", cells, right=True))
    spans += _held_cell(now, c.held)
    if c.user:
        spans += [Span("  "), Span(users(view, gpu), "dim", c.user - 2)]
    return tuple(spans)


def short(view: View, gpu: GpuInfo, width: int) -> Line:
    """A GPU in one line of a small screen, with its labels, as much as fits."""
    name = f"GPU {gpu.index}"
    if why := trouble(view, gpu):
        return Span(f"{name} ", "dim"), Span("✕ ", "bad"), Span(why, "warn")
    now = readings(view, gpu)
    measured = (
        FIGURES if any(n in now for n, _, _ in WORK) else (*FIGURES[:1], ("memory_busy", "memory busy %", 0))
    )
    chunks = [fact(label.removesuffix(" %"), _figure(now.get(n)), 4) for n, label, _ in measured]
    chunks.append((Span(watts(now, gpu)),))
    chunks.append((Span(memory(now, gpu)),))
    chunks.append((Span(value_text("°C", now.get("temperature_c"))),))
    worst = _told(now)[:1]
    sign = (
        [span for reason in worst for span in held(reason)]
        if width >= 90
        else [Span(_sign(r), _ink(r)) for r in worst]
    )
    room = width - len(name) - 1 - 2  # for the sign
    return (Span(f"{name} ", "dim"), *next(iter(pack(chunks, room, "  ")), ()), GAP, *sign)


def part(gpu: GpuInfo) -> str:
    """What tells a MIG instance from its like: the beginning of its UUID; empty for a whole GPU."""
    return text.clean(gpu.uuid.removeprefix("MIG-")[:4]) if gpu.parent else ""


def absent(view: View, width: int) -> list[Line]:
    """`none` in as many lines as it takes."""
    return [(Span(line, "dim"),) for line in textwrap.wrap(none(view), max(20, width))]


def none(view: View) -> str:
    """Why there are no GPU readings, in one line."""
    node = view.node
    if node is None:
        return waiting.short(view)
    if view.run is not None and node.gpus:
        how = view.hint("view.overview", "shows all")
        return "; ".join(filter(None, ("which GPUs it uses is not known", how)))
    return text.clean(node.gpu_reason or "no GPU was found on this node")


def alarm(view: View) -> str:
    """What is wrong with one of the GPUs now, in one sentence; empty: nothing is."""
    for gpu in view.gpus():
        if gpu.reason:
            return f"GPU {gpu.index} cannot be read: {text.clean(gpu.reason)}"
        for reason in meanings.alarms(readings(view, gpu).get("throttle")):
            return f"GPU {gpu.index}: {reason.word}. {reason.long}"
    return ""


def users(view: View, gpu: GpuInfo) -> str:
    """Whose GPU it is: the runs that live on it, else the people whose processes hold memory of it."""
    node = view.node
    names = [run.name for run in node.runs if gpu.uuid in run.gpus and not run.exit_reason] if node else []
    names = names or [p.user or f"pid {p.pid}" for p in view.store.processes if p.gpu == gpu.uuid]
    return text.clean(", ".join(dict.fromkeys(names)), 60)


def held(reason: Reason) -> Line:
    """`✕ too hot`, `power cap`: an alarm has a sign and an ink of its own."""
    sign, ink = _SIGNS[reason.level]
    return (Span(f"{sign}{reason.word}", ink),)


def watts(now: dict[str, float], gpu: GpuInfo) -> str:
    """`612/700 W`."""
    limit = f"{gpu.power_limit_w:.0f}" if gpu.power_limit_w else UNKNOWN
    return of(value_text("W", now.get("power_w")).removesuffix(" W"), limit, "W")


def total(now: dict[str, float], gpu: GpuInfo) -> float | None:
    """The bytes of memory that a GPU has."""
    return now.get("memory_total_bytes", gpu.memory_total_bytes)


def memory(now: dict[str, float], gpu: GpuInfo) -> str:
    """`58.1/80.0 GiB`."""
    return of(text.gib(now.get("memory_used_bytes")), text.gib(total(now, gpu)), "GiB")


def ink_of(name: str) -> str:
    """The ink of a reading, the same in every bar and chart."""
    return next((ink for n, _, ink in WORK if n == name), "1")


def _told(now: dict[str, float]) -> list[Reason]:
    """What holds the clocks back, without idleness, which the other figures show."""
    return [reason for reason in meanings.reasons(now.get("throttle")) if reason.bit != meanings.IDLE]


def _held_cell(now: dict[str, float], cells: int) -> list[Span]:
    """The first thing that holds the clocks back; the sign alone where there is no room to tell which."""
    found = meanings.reasons(now.get("throttle"))[:1]
    if not cells or not found:
        return [Span("", width=cells)] if cells else []
    if cells <= 3:
        return [Span(f" {_sign(found[0])}", _ink(found[0]), cells)]
    dim = "dim" if found[0].bit == meanings.IDLE else ""
    return [Span("  "), *(Span(s.text, s.ink or dim, cells - 2) for s in held(found[0]))]


def _sign(reason: Reason) -> str:
    return {"alarm": "✕", "warning": "⚠"}.get(reason.level, "·")


def _ink(reason: Reason) -> str:
    return _SIGNS[reason.level][1]


def _called(gpu: GpuInfo) -> str:
    return f"MIG {part(gpu)}" if gpu.parent else f"GPU {gpu.index}"


def _figure(value: float | None) -> str:
    return _bare(percent(value))


def _bare(value: str) -> str:
    return value.removesuffix(" %")


def _short_name(gpu: GpuInfo) -> str:
    name = text.clean(gpu.name.removeprefix("NVIDIA "), 40)
    return f"{name.partition('MIG ')[2]} {part(gpu)}" if gpu.parent else name
