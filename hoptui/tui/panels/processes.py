"""The processes on GPUs, and which run each belongs to."""

from __future__ import annotations

from hoptui.tui.lines import Line, Span
from hoptui.tui.view import View
from hoptui.viewer import format as text
from hoptui.viewer.format import UNKNOWN
from hoptui.viewer.meanings import value_text
from hoptui.wire.devices import GpuProcess

_GPU, _PID, _USER, _MEMORY, _SM, _RUN = 4, 9, 11, 10, 7, 18
_NARROW = 56  # with less there is no room for the user and the SM share


def listed(view: View, gpu: str | None = None) -> list[GpuProcess]:
    """Those of one GPU, or of all: by GPU, the one that holds most memory first."""
    place = {info.uuid: i for i, info in enumerate(view.node.gpus)} if view.node else {}
    found = [p for p in view.store.processes if gpu is None or p.gpu == gpu]
    return sorted(found, key=lambda p: (place.get(p.gpu, len(place)), -(p.memory_used_bytes or 0), p.pid))


def head(width: int) -> Line:
    """What stands over `lines` of all GPUs."""
    spans = [
        Span("GPU", "dim", _GPU),
        Span("pid", "dim", _PID),
        Span("user", "dim", _USER),
        Span("memory", "dim", _MEMORY, right=True),
    ]
    spans += [Span("SM", "dim", _SM, right=True), Span("  ")]
    return (
        (*spans, Span("run", "dim", _RUN), Span("command", "dim"))
        if _wide(width)
        else (*spans, Span("run or command", "dim"))
    )


def lines(view: View, width: int, most: int, gpu: str | None = None) -> list[Line]:
    """At most `most` lines, the last one saying how many are left out; with `gpu` only that GPU's, without its number."""
    found = listed(view, gpu)
    if not found and view.replay is not None:
        return [(Span("the processes on GPUs are not recorded", "dim"),)]
    if not found:
        return [(Span("no process holds this GPU" if gpu else "no process holds a GPU", "dim"),)]
    shown = found if len(found) <= most else found[: max(0, most - 1)]
    rows = [_row(view, process, width, gpus=gpu is None) for process in shown]
    return (
        rows if len(shown) == len(found) else [*rows, (Span(f"and {len(found) - len(shown)} more", "dim"),)]
    )


def _row(view: View, process: GpuProcess, width: int, *, gpus: bool) -> Line:
    infos = view.node.gpus if view.node else ()
    number = next((str(info.index) for info in infos if info.uuid == process.gpu), UNKNOWN)
    run = view.store.run(process.run) if process.run else None
    name = text.clean(run.name if run else process.run, 40)
    command = text.clean(process.command, 160) or "a process of another container or user"
    spans = [Span(number, "dim", _GPU)] if gpus else []
    spans.append(Span(str(process.pid), "", _PID))
    if width >= _NARROW:
        spans.append(Span(text.clean(process.user, 24) or UNKNOWN, "" if process.user else "dim", _USER))
    spans.append(Span(value_text("B", process.memory_used_bytes), "", _MEMORY, right=True))
    if width >= _NARROW:
        spans.append(Span(value_text("%", process.sm_percent), "", _SM, right=True))
    spans.append(Span("  "))
    ink = "" if process.command else "dim"
    if _wide(width):
        return (*spans, Span(name or UNKNOWN, "strong" if name else "dim", _RUN), Span(command, ink))
    return (*spans, Span(name, "strong") if name else Span(command, ink))


def _wide(width: int) -> bool:
    return width >= 90
