"""`hoptui gpus --watch`: a row of each GPU at a fixed interval, as a table, CSV or JSON lines."""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from hoptui.cli.gpu_log import columns as gpu_columns
from hoptui.cli.gpu_log.columns import Column, GpuAtMoment
from hoptui.cli.gpu_log.line_log import LineLog
from hoptui.cli.support.snapshot import NONE, NodeSnapshot, look
from hoptui.cli.support.terminal import MISSING, OK, Fail, dump, emit, say, warn
from hoptui.domain.devices import GpuInfo
from hoptui.domain.pacing import MOST_HZ, sampling_hz
from hoptui.model.series import risen_share
from hoptui.node.files import expanded

SECOND = 1_000_000_000
SHORTEST_S = 1 / MOST_HZ
POLL_S = 5.0
"""How long the daemon hears nothing at most: it must know that it is still wanted."""
LEAST_SHARE_S = 2.5
"""Violation times are read once a second: shares are over at least so long."""
CLOCK, DATE = 8, 19  # cells of `10:41:02`, and of a date with it

Show = Callable[[NodeSnapshot, list[GpuAtMoment]], None]


def watch(
    every: float | None,
    count: int | None,
    csv: str | None,
    *,
    json: Callable[[NodeSnapshot], Any] | None,
    why_none: Callable[[NodeSnapshot], str],
) -> int:
    """Print rows until Ctrl-C, or `count` times.

    Args:
        every: seconds between two rows of a GPU; None for one row of each.
        count: how many rows of each GPU; None for no end.
        csv: the file for CSV, `-` for standard output, None for none.
        json: makes the document to print as a JSON line instead of the table; None for the table.
        why_none: one sentence for a node without readings.

    Returns:
        0, or 3 if no GPU can be read at the beginning.

    Raises:
        Fail: the daemon cannot be reached, or the file not be written.
    """
    with contextlib.ExitStack() as stack:
        log: LineLog | None = None
        show: list[Show] = []
        if csv == "-":
            show = [_csv_to_stdout()]
        else:
            if csv is not None:
                log = stack.enter_context(LineLog(expanded(csv), gpu_columns.CSV_HEADER))
                show = [_csv_to(log)]
            if json is not None:
                show.append(lambda seen, rows: dump(json(seen)))
            elif log is None or sys.stdout.isatty():
                show.append(_Table())
        return _rounds(every, 1 if every is None else count, show, why_none)


def _rounds(
    every: float | None, count: int | None, show: list[Show], why_none: Callable[[NodeSnapshot], str]
) -> int:
    """Show the GPUs at each round; goes on with a new daemon when one is gone."""
    done = 0
    told: dict[str, str] = {}
    while True:
        before = done
        try:
            with look() as seen:
                if seen.session.started_daemon:
                    seen.await_readings()
                if not done and not any(_readings(seen, gpu) for gpu in seen.node.gpus):
                    warn(f"hoptui: no GPU readings: {why_none(seen)}")
                    return MISSING
                for _ in _times(seen, every):
                    told = _tell_reasons(seen, told)
                    rows = _rows(seen, max(every or 0.0, LEAST_SHARE_S))
                    for each in show:
                        each(seen, rows)
                    done += 1
                    if done == count:
                        return OK
        except Fail as fail:
            if fail.code != MISSING or done == before:
                raise
            warn(f"hoptui: {fail}; connecting again")


def _times(seen: NodeSnapshot, every: float | None) -> Iterator[None]:
    """Yield at once, then each time that so many seconds have passed, with new readings in the store."""
    cursors: dict[str, int] = {}
    due, state = time.monotonic(), 0
    hz = sampling_hz(every or 0.0)
    while True:
        yield
        due = max(due + (every or 0.0), time.monotonic())  # rounds that were missed are not made up for
        while (left := due - time.monotonic()) > 0:
            time.sleep(min(left, POLL_S))
            state = _fetch(seen, cursors, state, hz)


def _fetch(seen: NodeSnapshot, cursors: dict[str, int], state: int, hz: float) -> int:
    """Put the rows since `cursors` into the store, and move them; returns the version of the node's state."""
    more = True
    while more:
        for gpu in seen.node.gpus:
            cursors.setdefault(f"gpu/{gpu.uuid}", seen.store.now() - SECOND)
        delta = seen.session.fetch(cursors=cursors, events=NONE, commands=NONE, state=state, hz=hz)
        seen.store.apply(delta)
        cursors |= {part.source: part.last_t for part in delta.columns if len(part)}
        state, more = delta.state, delta.more
    return state


def _readings(seen: NodeSnapshot, gpu: GpuInfo) -> dict[str, float]:
    return {} if gpu.problem else seen.readings(f"gpu/{gpu.uuid}")


def _rows(seen: NodeSnapshot, share_s: float) -> list[GpuAtMoment]:
    wall = time.time()
    found = []
    for gpu in seen.node.gpus:
        now = dict(_readings(seen, gpu))
        for share, name in gpu_columns.HELD.items():
            value = risen_share(seen.store.series(f"gpu/{gpu.uuid}", name), share_s) if name in now else None
            if value is not None:
                now[share] = round(value, 2)
        found.append(GpuAtMoment(wall, seen.node.host, gpu, now))
    return found


def _tell_reasons(seen: NodeSnapshot, told: dict[str, str]) -> dict[str, str]:
    """Print why GPUs cannot be read, each reason once."""
    found = gpu_columns.reasons(seen.node.gpus)
    for uuid, sentence in found.items():
        if told.get(uuid) != sentence:
            warn(f"hoptui: {sentence}")
    return found


class _Table:
    """A table on standard output: in a terminal, as wide as that and with its heading on every page."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._columns: tuple[Column, ...] = ()
        self._left = 0

    def __call__(self, seen: NodeSnapshot, rows: list[GpuAtMoment]) -> None:
        labels = max((len(gpu_columns.label(row.gpu)) for row in rows), default=0)
        labels = max(labels, len("gpu"))
        width, height = shutil.get_terminal_size()
        taken = (CLOCK if self._terminal else DATE) + 1 + labels
        columns = gpu_columns.fitting(width if self._terminal else None, taken)
        if columns != self._columns or self._left < len(rows):
            self._columns = columns
            self._left = max(len(rows), height - 3) if self._terminal else sys.maxsize
            for line in gpu_columns.heading(columns, CLOCK if self._terminal else DATE, labels):
                say(line)
        for row in rows:
            moment = datetime.fromtimestamp(row.wall)
            stamp = moment.strftime("%H:%M:%S" if self._terminal else "%Y-%m-%dT%H:%M:%S")
            say(gpu_columns.line(row, columns, stamp, labels))
        self._left -= len(rows)


def _csv_to(log: LineLog) -> Show:
    return lambda seen, rows: log.add("".join(map(gpu_columns.csv_row, rows)))


def _csv_to_stdout() -> Show:
    begun = False

    def show(seen: NodeSnapshot, rows: list[GpuAtMoment]) -> None:
        nonlocal begun
        lines = "".join(map(gpu_columns.csv_row, rows))
        emit((lines if begun else gpu_columns.CSV_HEADER + lines).removesuffix("\n"))
        begun = True

    return show


def checked(every: float | None, count: int | None) -> str:
    """One sentence about what is wrong with the options, "" if nothing is."""
    if every is not None and not (math.isfinite(every) and every >= SHORTEST_S):
        return f"--watch must be {SHORTEST_S:g} seconds or more, not {every:g}"
    if count is not None and every is None:
        return "--count needs --watch SECONDS"
    if count is not None and count < 1:
        return f"--count must be 1 or more, not {count}"
    return ""
