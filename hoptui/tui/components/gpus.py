"""GPUs as lines, curves and a table: readings, names, colours, what limits the clocks. Pure."""

from __future__ import annotations

import math
import textwrap
from typing import NamedTuple

from hoptui.domain.devices import IDLE, GpuInfo, Reason
from hoptui.domain.enumerations import ByValue
from hoptui.presentation import numbers, sentences
from hoptui.presentation.gpu_readings import alarms, reasons
from hoptui.presentation.numbers import UNKNOWN
from hoptui.presentation.readings import DERIVED, value_text
from hoptui.tui.charts.line_chart import ChartSeries
from hoptui.tui.components import figures
from hoptui.tui.components.figures import Gauge, current, fact, gauges, of, ratio, spark_of_share
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import GAP, Line, Span, bar, pack

WORK = (("sm_active", "SM", "1"), ("tensor_active", "tensor", "3"), ("dram_active", "DRAM", "4"))
PLAIN_WORK = (("busy", "busy", "1"), ("memory_busy", "memory busy", "3"))  # before Hopper
FIGURES = (
    ("busy", "busy %", 7),
    ("sm_active", "SM %", 6),
    ("tensor_active", "tensor %", 9),
    ("dram_active", "DRAM %", 7),
)
CHARTED = 4  # GPUs in one chart, a curve each: there are four inks
INKS = "1234"
SPARK_S = 300.0  # of the work of each of many GPUs
_HIGH, _LOW = 90.0, 60.0  # least busy and most SM active for a remark
_SIGNS = ByValue(
    {"alarm": ("✕ ", "bad"), "warning": ("⚠ ", "warn"), "info": ("", "")}, lambda _: ("? ", "warn")
)


def readings(view: View, gpu: GpuInfo) -> dict[str, float]:
    """The current readings of a GPU: none at all where they are old or it cannot be read."""
    return {} if gpu.problem else current(view, f"gpu/{gpu.uuid}")


def trouble(view: View, gpu: GpuInfo) -> str:
    """Why a GPU has no readings at all: its own reason, else the state of the sampler; empty if there are
    readings.
    """
    if gpu.problem or view.node is None or readings(view, gpu):
        return sentences.text_of(gpu.problem)
    return sentences.joined(view.node.sampler_problems)


def title(gpu: GpuInfo) -> str:
    """`GPU 0 · NVIDIA H100 80GB HBM3`."""
    return " · ".join(filter(None, (f"GPU {gpu.index}", numbers.clean(gpu.name, 40), part(gpu))))


def kinds(gpus: tuple[GpuInfo, ...]) -> str:
    """`8 × NVIDIA H100 80GB HBM3`, the kinds one after the other."""
    names = [numbers.clean(gpu.name, 40) for gpu in gpus if not gpu.parent]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


def detail(view: View, gpu: GpuInfo, width: int, most_facts: int = 1) -> list[Line]:
    """One GPU: gauges in two columns, and the rest in at most so many lines; the reason if it fails."""
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
    """What limits the clocks, the temperatures, and the totals of the run's GPUs: most important first."""
    found: list[Line] = [held(reason) for reason in _limits(now)]
    hidden = contrast(now)
    found += [(Span(f"▸ {hidden}", "warn"),)] if hidden else []
    if "temperature_c" in now:
        found.append((Span(value_text("°C", now["temperature_c"])),))
    if "memory_temperature_c" in now:
        found.append((Span("HBM ", "dim"), Span(value_text("°C", now["memory_temperature_c"]))))
    return found + together(view)


def together(view: View) -> list[Line]:
    """Memory headroom and idle power of the run's GPUs, where they are known."""
    found = current(view, f"derived/{view.run.run}") if view.run else {}
    shown = (("memory_headroom_bytes", "headroom", 9), ("idle_power_w", "idle", 7))
    return [
        fact(label, value_text(DERIVED[n].unit, found[n]), width) for n, label, width in shown if n in found
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


def work_curves(view: View, gpus: tuple[GpuInfo, ...]) -> list[ChartSeries]:
    """What the charts show in per cent: SM, tensor and DRAM of one GPU, SM (else busy) of each of several."""
    if len(gpus) == 1:
        source = f"gpu/{gpus[0].uuid}"
        names = view.store.names(source)
        found = [c for c in WORK if c[0] in names] or [c for c in PLAIN_WORK if c[0] in names]
        return [ChartSeries(source, name, f"{label} %", ink) for name, label, ink in found]
    name = _over_time(view, gpus)
    return [ChartSeries(f"gpu/{g.uuid}", name, _called(g), ink) for g, ink in zip(gpus, INKS, strict=False)]


def many_curves(view: View, gpus: tuple[GpuInfo, ...]) -> list[ChartSeries]:
    """Curves of more GPUs than `CHARTED` together, in per cent: mean and least SM active, and power.

    Only for the GPUs of a run, because the daemon computes them; else empty.
    """
    source = f"derived/{view.run.run}" if view.run else ""
    names = view.store.names(source)
    if "sm_active" not in names:
        return []
    found = [
        ChartSeries(source, "sm_active", "SM % mean", "1"),
        ChartSeries(source, "sm_active_least", "least", "3"),
    ]
    limit = sum(gpu.power_limit_w or math.nan for gpu in gpus)
    if "power_w" in names and math.isfinite(limit):
        found.append(ChartSeries(source, "power_w", "power %", "2", 100 / limit))
    return found


def power_curves(gpus: tuple[GpuInfo, ...], *, share: bool = False) -> list[ChartSeries]:
    """Watts of each GPU; as a `share` of the limit, in per cent, only of GPUs that have one."""
    if share:
        return [
            ChartSeries(f"gpu/{g.uuid}", "power_w", "power %", "2", 100 / g.power_limit_w)
            for g in gpus
            if g.power_limit_w
        ]
    inks = INKS if len(gpus) > 1 else "2"
    return [
        ChartSeries(f"gpu/{g.uuid}", "power_w", _called(g), ink) for g, ink in zip(gpus, inks, strict=False)
    ]


def short(view: View, gpu: GpuInfo, width: int) -> Line:
    """A GPU in one line of a small screen, with its labels, as much as fits."""
    name = f"GPU {gpu.index}"
    if why := trouble(view, gpu):
        return Span(f"{name} ", "dim"), Span("✕ ", "bad"), Span(why, "warn")
    now = readings(view, gpu)
    if not now:
        return Span(f"{name} ", "dim"), Span("no current readings", "dim")
    measured = (
        FIGURES if any(n in now for n, _, _ in WORK) else (*FIGURES[:1], ("memory_busy", "memory busy %", 0))
    )
    chunks = [fact(label.removesuffix(" %"), figure(now.get(n)), 4) for n, label, _ in measured]
    chunks.append((Span(watts(now, gpu)),))
    chunks.append((Span(memory(now, gpu)),))
    chunks.append((Span(value_text("°C", now.get("temperature_c"))),))
    worst = _limits(now)[:1]
    last = [span for reason in worst for span in (held(reason) if width >= 90 else (sign(reason),))]
    room = width - len(name) - 1 - 2  # for the sign
    return (Span(f"{name} ", "dim"), *next(iter(pack(chunks, room, "  ")), ()), GAP, *last)


def short_of_many(view: View, gpus: tuple[GpuInfo, ...], width: int) -> Line:
    """The range of the readable GPUs in one line of a small screen: `8 GPUs busy 12…86`, and a sign if one
    has a problem.
    """
    read = [(now, gpu) for gpu in gpus if (now := readings(view, gpu))]
    name = f"{len(gpus)} GPUs" if len(read) in (0, len(gpus)) else f"{len(read)}/{len(gpus)} GPUs"
    if not read:
        return Span(f"{name} ", "dim"), Span("no current readings", "dim")
    chunks: list[Line] = []
    for metric, label, _ in FIGURES:
        known = [now[metric] for now, _ in read if metric in now]
        ends = dict.fromkeys(map(figure, (min(known), max(known)))) if known else ()
        chunks += [fact(label.removesuffix(" %"), "…".join(ends), 6)] if ends else []
    drawn = sum(now.get("power_w", math.nan) for now, _ in read)
    limit = sum(gpu.power_limit_w or math.nan for gpu in gpus)
    if len(read) == len(gpus) and math.isfinite(drawn + limit):
        chunks.append((Span(of(f"{drawn:.0f}", f"{limit:.0f}", "W")),))
    fullest = max(read, key=lambda one: ratio(one[0].get("memory_used_bytes"), total(*one)) or 0.0)
    chunks.append((Span(memory(*fullest)),))
    worst = [sign(reason) for now, _ in read for reason in _limits(now) if reason.level == "alarm"][:1]
    room = width - len(name) - 1 - 2  # for the sign
    return Span(f"{name} ", "dim"), *next(iter(pack(chunks, room, "  ")), ()), GAP, *worst


def part(gpu: GpuInfo) -> str:
    """Return the first characters of a MIG instance's UUID, "" for a whole GPU."""
    return numbers.clean(gpu.uuid.removeprefix("MIG-")[:4]) if gpu.parent else ""


def absent(view: View, width: int) -> list[Line]:
    """`none` in as many lines as it takes."""
    return [(Span(line, "dim"),) for line in textwrap.wrap(none(view), max(20, width))]


def none(view: View) -> str:
    """Why there are no GPU readings, in one line."""
    node = view.node
    if node is None:
        return figures.missing_note(view)
    if view.run is not None and node.gpus:
        how = view.hint("view.overview", "shows all")
        return "; ".join(filter(None, ("which GPUs it uses is not known", how)))
    return sentences.text_of(node.gpu_problem) or "no GPU was found on this node"


def alarm(view: View) -> str:
    """Return the problem of one of the GPUs in one sentence, "" for none."""
    for gpu in view.gpus():
        if gpu.problem:
            return f"GPU {gpu.index} cannot be read: {sentences.sentence(gpu.problem)}"
        for reason in alarms(readings(view, gpu).get("throttle")):
            return f"GPU {gpu.index}: {reason.word}. {reason.long}"
    return ""


def users(view: View, gpu: GpuInfo) -> str:
    """Return the runs that live on a GPU, else the users whose processes hold memory on it."""
    node = view.node
    names = [run.name for run in node.runs if gpu.uuid in run.gpus and not run.exit_reason] if node else []
    names = names or [p.user or f"pid {p.pid}" for p in view.store.processes if p.gpu == gpu.uuid]
    return numbers.clean(", ".join(dict.fromkeys(names)), 60)


def held(reason: Reason) -> Line:
    """Return `✕ too hot`, `power cap`: an alarm has its own sign and ink."""
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
    return of(numbers.gib(now.get("memory_used_bytes")), numbers.gib(total(now, gpu)), "GiB")


def ink_of(name: str) -> str:
    """The ink of a reading, the same in every bar and chart."""
    return next((ink for n, _, ink in WORK if n == name), "1")


def _limits(now: dict[str, float]) -> list[Reason]:
    """Return what limits the clocks, without idleness, which the other figures show."""
    return [reason for reason in reasons(now.get("throttle")) if reason.bit != IDLE]


def sign(reason: Reason) -> Span:
    """The sign of `held` alone, where there is no room for the word: blank for what is usual."""
    sign, ink = _SIGNS[reason.level]
    return Span(sign.strip(), ink)


def _called(gpu: GpuInfo) -> str:
    return f"MIG {part(gpu)}" if gpu.parent else f"GPU {gpu.index}"


def figure(value: float | None) -> str:
    """A share in per cent without its unit."""
    return bare(numbers.percentage(value))


def bare(value: str) -> str:
    """A text without the per cent at its end."""
    return value.removesuffix(" %")


_POWER, _MEMORY = 10, 12  # cells of these columns
_BARE = 6  # cells of the same without the limit
_LEAST_SPARK, _MOST_SPARK = 10, 24  # cells of what a GPU did over `SPARK_S`, with the gap before it


class _Columns(NamedTuple):
    """How wide the parts of a GPU's line are; 0 leaves a part out. `bars` of the first figures get one.

    More GPUs than `CHARTED` have a `spark` each. For it, power and memory are without limits if these are
    the same for all.
    """

    name: int
    spark: int
    power: int
    memory: int
    bars: int
    bar: int
    temperature: int
    clock: int
    held: int
    user: int

    @classmethod
    def of(cls, gpus: tuple[GpuInfo, ...], width: int, *, users: bool) -> _Columns:
        left = max(0, width - 5 - sum(w for _, _, w in FIGURES) - _POWER - _MEMORY)
        power, used = _POWER, _MEMORY
        many = len(gpus) > CHARTED
        if many and left < _LEAST_SPARK and shared_limits(gpus):
            left += power + used - 2 * _BARE
            power = used = _BARE

        def take(*wanted: int) -> int:
            nonlocal left
            found = next((cells for cells in wanted if cells <= left), 0)
            left -= found
            return found

        mixed = len({gpu.name for gpu in gpus}) > 1
        name = take(*((16, 9) if width >= 100 else (9,))) if mixed else 0
        spark = take(_LEAST_SPARK) if many else 0
        temperature, clock = take(5), take(7)
        held = take(13, 3)
        user = take(16) if users else 0
        spark += take(*range(min(_MOST_SPARK - spark, left), 0, -1)) if spark else 0
        bars = next((count for count in (6, 4, 2) if left // count >= 7), 0)
        across = min(16, left // bars - 1) if bars else 0
        left -= bars * (across + 1)
        held += take(*range(min(7, left), 0, -1)) if held > 3 else 0
        user += left if user else 0
        return cls(name, spark, power, used, bars, across, temperature, clock, held, user)


def heading(gpus: tuple[GpuInfo, ...], width: int) -> str:
    """The kinds of GPUs, and the limits that a table of this width leaves out."""
    left_out = _Columns.of(gpus, width, users=False).power == _BARE
    return f"{kinds(gpus)} · {shared_limits(gpus)}" if left_out else kinds(gpus)


def shared_limits(gpus: tuple[GpuInfo, ...]) -> str:
    """`700 W, 80.0 GiB each`; empty if they differ or are not known."""
    known = {(gpu.power_limit_w, gpu.memory_total_bytes) for gpu in gpus}
    power, memory_bytes = next(iter(known))
    if len(known) > 1 or not power or not memory_bytes:
        return ""
    return f"{power:.0f} W, {numbers.gib(memory_bytes)} GiB each"


def _over_time(view: View, gpus: tuple[GpuInfo, ...]) -> str:
    """The reading that a chart shows of each of several GPUs."""
    known = any("sm_active" in view.store.names(f"gpu/{gpu.uuid}") for gpu in gpus)
    return "sm_active" if known else "busy"


def table_head(view: View, gpus: tuple[GpuInfo, ...], width: int, *, users: bool = False) -> Line:
    """Return the head of the table, with the units."""
    c = _Columns.of(gpus, width, users=users)
    spans = [Span("", width=5), *([Span("GPU", "dim", c.name)] if c.name else [])]
    for i, (_, label, cells) in enumerate(FIGURES):
        spans.append(Span(label, "dim", cells + (c.bar + 1) * (i < min(4, c.bars)), right=True))
    if c.spark:
        label = "SM" if _over_time(view, gpus) == "sm_active" else "busy"
        spans.append(Span(f"  {label} {SPARK_S / 60:.0f} min", "dim", c.spark))
    wide = (c.bar + 1) * (c.bars > 4)
    spans += [Span("W", "dim", c.power + wide, right=True), Span("GiB", "dim", c.memory + wide, right=True)]
    spans += [Span("°C", "dim", c.temperature, right=True)] if c.temperature else []
    spans += [Span("MHz", "dim", c.clock, right=True)] if c.clock else []
    spans += [Span("  clocks", "dim", c.held)] if c.held > 3 else []
    return (*spans, Span("  used by", "dim", c.user)) if c.user else tuple(spans)


def table_rows(
    view: View, gpus: tuple[GpuInfo, ...], width: int, *, users: bool = False, cursor: int = -1
) -> list[Line]:
    """One line per GPU: four measures of use, power, memory, temperature, clocks, users, as much as fits.

    Of many GPUs, each has its work over time too.
    """
    columns, work = _Columns.of(gpus, width, users=users), _over_time(view, gpus)
    return [_table_row(view, gpu, columns, work, chosen=i == cursor) for i, gpu in enumerate(gpus)]


def _table_row(view: View, gpu: GpuInfo, c: _Columns, work: str, *, chosen: bool) -> Line:
    spans = [Span("› " if chosen else "  ", "key"), Span("└" if gpu.parent else str(gpu.index), "dim", 3)]
    if c.name:
        spans.append(Span(_short_name(gpu, c.name), "", c.name))
    if why := trouble(view, gpu):
        return (*spans, Span(" ✕ " if c.name else "✕ ", "bad"), Span(why, "warn"))
    now = readings(view, gpu)
    hidden = bool(contrast(now))
    for i, (name, _, cells) in enumerate(FIGURES):
        barred = i < c.bars
        spans += [Span("  "), *bar(ratio(now.get(name), 100), c.bar, ink_of(name))] if barred else []
        ink = "warn" if hidden and name == "sm_active" else "" if name in now else "dim"
        spans.append(Span(figure(now.get(name)), ink, cells - barred, right=True))
    if c.spark:
        cells = c.spark - 2
        over_time = spark_of_share(view, f"gpu/{gpu.uuid}", work, cells, SPARK_S)
        spans += [Span("  "), Span(over_time, ink_of(work), cells)]
    for value, used, whole, ink, cells in (
        (watts(now, gpu), now.get("power_w"), gpu.power_limit_w, "2", c.power),
        (memory(now, gpu), now.get("memory_used_bytes"), total(now, gpu), "1", c.memory),
    ):
        barred = c.bars > 4
        spans += [Span("  "), *bar(ratio(used, whole), c.bar, ink)] if barred else []
        shown = value.rpartition(" ")[0] or value
        shown = shown.partition("/")[0] if cells == _BARE else shown
        spans.append(Span(shown, "", cells - barred, right=True))
    for name, cells in (("temperature_c", c.temperature), ("sm_clock_mhz", c.clock)):
        if cells:
            spans.append(Span(bare(numbers.grouped(now.get(name))), "", cells, right=True))
    spans += _held_cell(now, c.held)
    if c.user:
        spans += [Span("  "), Span(users(view, gpu), "dim", c.user - 2)]
    return tuple(spans)


def _held_cell(now: dict[str, float], cells: int) -> list[Span]:
    """Return the first reason that limits the clocks; only the sign if there is no room."""
    found = reasons(now.get("throttle"))[:1]
    if not cells or not found:
        return [Span("", width=cells)] if cells else []
    if cells <= 3:
        return [Span(" "), sign(found[0])._replace(width=cells - 1)]
    dim = "dim" if found[0].bit == IDLE else ""
    return [Span("  "), *(Span(s.text, s.ink or dim, cells - 2) for s in held(found[0]))]


def _short_name(gpu: GpuInfo, cells: int) -> str:
    """`H100 80GB HBM3`, `1g.10gb a1b2`; in few cells as many of its words as fit: `H100`, `1g a1b2`."""
    name = numbers.clean(gpu.name.removeprefix("NVIDIA ").removeprefix("GeForce "), 40)
    if gpu.parent:
        name = name.partition("MIG ")[2]
        whole = f"{name} {part(gpu)}"
        return whole if len(whole) < cells else f"{name.partition('.')[0]} {part(gpu)}"
    while len(name) >= cells and " " in name:
        name = name.rpartition(" ")[0]
    return name
