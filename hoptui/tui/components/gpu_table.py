"""Several GPUs as a table: a line each, as many columns and bars as there is room for."""

from __future__ import annotations

from typing import NamedTuple

from hoptui.domain.devices import GpuInfo
from hoptui.presentation import numbers
from hoptui.presentation import readings as meanings
from hoptui.tui.components.figures import ratio
from hoptui.tui.components.gpus import (
    FIGURES,
    bare,
    contrast,
    figure,
    held,
    ink_of,
    memory,
    part,
    readings,
    sign,
    total,
    trouble,
    users,
    watts,
)
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span, bar

_POWER, _MEMORY = 10, 12  # cells of these columns


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
    for value, used, whole, ink, cells in (
        (watts(now, gpu), now.get("power_w"), gpu.power_limit_w, "2", _POWER),
        (memory(now, gpu), now.get("memory_used_bytes"), total(now, gpu), "1", _MEMORY),
    ):
        barred = c.bars > 4
        spans += [Span("  "), *bar(ratio(used, whole), c.bar, ink)] if barred else []
        spans.append(Span(value.rpartition(" ")[0] or value, "", cells - barred, right=True))
    for name, cells in (("temperature_c", c.temperature), ("sm_clock_mhz", c.clock)):
        if cells:
            spans.append(Span(bare(numbers.grouped(now.get(name))), "", cells, right=True))
    spans += _held_cell(now, c.held)
    if c.user:
        spans += [Span("  "), Span(users(view, gpu), "dim", c.user - 2)]
    return tuple(spans)


def _held_cell(now: dict[str, float], cells: int) -> list[Span]:
    """The first thing that holds the clocks back; the sign alone where there is no room to tell which."""
    found = meanings.reasons(now.get("throttle"))[:1]
    if not cells or not found:
        return [Span("", width=cells)] if cells else []
    if cells <= 3:
        return [Span(" "), sign(found[0])._replace(width=cells - 1)]
    dim = "dim" if found[0].bit == meanings.IDLE else ""
    return [Span("  "), *(Span(s.text, s.ink or dim, cells - 2) for s in held(found[0]))]


def _short_name(gpu: GpuInfo, cells: int) -> str:
    """`H100 80GB HBM3`, `1g.10gb a1b2`; in few cells as many words of it as there is room for, `H100`, `1g a1b2`."""
    name = numbers.clean(gpu.name.removeprefix("NVIDIA ").removeprefix("GeForce "), 40)
    if gpu.parent:
        name = name.partition("MIG ")[2]
        whole = f"{name} {part(gpu)}"
        return whole if len(whole) < cells else f"{name.partition('.')[0]} {part(gpu)}"
    while len(name) >= cells and " " in name:
        name = name.rpartition(" ")[0]
    return name
