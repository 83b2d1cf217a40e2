"""The processes on the GPUs in a chosen order, each with the processes that it has started. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from hoptui.domain.devices import GpuProcess, RunProcess
from hoptui.tui.components.host import process_head, process_row, processes, untold, worker_row
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span

Sort = Literal["GPU", "memory", "CPU", "SM", "pid", "command"]
SORTS: tuple[Sort, ...] = ("GPU", "memory", "CPU", "SM", "pid", "command")
"""`GPU` is by GPU, the greatest memory first. Numbers are sorted by size, except pids."""


class ProcessRow(NamedTuple):
    """A row: a process on a GPU, or one that it has started.

    Attributes:
        gpu: the process as the driver knows it; None if it is on no GPU.
        own: the process as the kernel knows it; None if it is of no run.
        depth: 0 for a process on a GPU, and one more for each process between.
        started: how many processes it has started, and those have.
        opened: whether those follow.
    """

    gpu: GpuProcess | None
    own: RunProcess | None
    depth: int = 0
    started: int = 0
    opened: bool = False

    @property
    def pid(self) -> int:
        one = self.gpu or self.own
        return one.pid if one is not None else 0

    @property
    def id(self) -> tuple[str, int]:
        """What the row is of, whatever its place."""
        return self.gpu.gpu if self.gpu is not None else "", self.pid


SortKey = Callable[[ProcessRow], Any]


def arranged(
    view: View, sort: Sort, opened: Collection[int] = (), kept: Sequence[Hashable] = ()
) -> list[ProcessRow]:
    """The rows in their order; processes that others have started follow those if their pid is in `opened`.

    A process on a GPU is a row of its own also if another one has started it. Rows of `kept`, the ids of an
    order before, keep their order, and new ones follow them.
    """
    own = {one.pid: one for one in view.store.tree}
    children: dict[int, list[RunProcess]] = {}
    on_gpu = {one.pid for one in view.store.processes}
    for one in view.store.tree:
        if one.parent and one.pid not in on_gpu:
            children.setdefault(one.parent, []).append(one)
    roots = [ProcessRow(one, own.get(one.pid)) for one in processes(view)]
    if sort != "GPU":
        roots.sort(key=_key(sort))
    place = {one: i for i, one in enumerate(kept)}
    roots.sort(key=lambda row: place.get(row.id, len(place)))
    found: list[ProcessRow] = []
    seen: set[int] = set()
    for root in roots:
        below = _below(root.pid, children, _by(sort, place), 1) if root.pid not in seen else []
        seen.add(root.pid)
        shown = root.pid in opened
        found.append(root._replace(started=len(below), opened=shown and bool(below)))
        found += below if shown else []
    return found


def _below(pid: int, children: dict[int, list[RunProcess]], key: SortKey, depth: int) -> list[ProcessRow]:
    rows = sorted((ProcessRow(None, one, depth) for one in children.pop(pid, ())), key=key)
    return [line for row in rows for line in (row, *_below(row.pid, children, key, depth + 1))]


def _by(sort: Sort, place: Mapping[Hashable, int]) -> SortKey:
    """First in the places that rows had before, then by the sort key."""
    key = _key(sort)
    return lambda row: (place.get(row.id, len(place)), key(row))


def _key(sort: Sort) -> SortKey:
    """The sort key: unknown values come last, and rows of one value in the order of their pids."""

    def key(row: ProcessRow) -> Any:
        value: float | None = None
        match sort:
            case "memory":
                value = row.gpu.memory_used_bytes if row.gpu is not None else None
            case "CPU":
                value = row.own.cpu_percent if row.own is not None else None
            case "SM":
                value = row.gpu.sm_percent if row.gpu is not None else None
            case "command":
                one = row.gpu or row.own
                return (one.command.lower() if one is not None else "", row.pid)
            case _:
                return row.pid
        return (value is None, -(value or 0.0), row.pid)

    return key


def head(view: View, width: int, sort: Sort) -> Line:
    """What stands over the rows."""
    return process_head(width, sort, cpu=bool(view.store.tree))


def lines(view: View, rows: Sequence[ProcessRow], width: int, cursor: int) -> list[Line]:
    """One line for each row; then the GPUs whose processes are unknown."""
    shown = [_line(view, row, width, chosen=i == cursor) for i, row in enumerate(rows)]
    return [*shown, *untold(view, bool(rows), width)]


def _line(view: View, row: ProcessRow, width: int, *, chosen: bool) -> Line:
    if row.gpu is None:
        return worker_row(row.own, row.depth, width, chosen=chosen) if row.own is not None else ()
    cpu = row.own.cpu_percent if row.own is not None else None
    started = f"{'▾' if row.opened else '▸'}{row.started} " if row.started else ""
    known = (cpu, started) if view.store.tree else None
    mark = Span("› " if chosen else "  ", "key")
    return (mark, *process_row(view, row.gpu, width - 2, gpus=True, cpu=known))
