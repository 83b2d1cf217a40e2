"""`hoptui watch`: print a run's rows as they arrive, until the run exits."""

from __future__ import annotations

import math
import time
from typing import Annotated

from cyclopts import Parameter

from hoptui.cli.commands import gpus
from hoptui.cli.support.options import Json, Run
from hoptui.cli.support.snapshot import (
    NONE,
    RETURN_S,
    NodeSnapshot,
    diagnosis_json,
    headline,
    look,
    metrics_json,
)
from hoptui.cli.support.terminal import OK, dump, say, usage, warn
from hoptui.domain.columns import Columns
from hoptui.domain.devices import GpuInfo
from hoptui.domain.pacing import MOST_HZ
from hoptui.presentation import diagnosis, numbers, vocabulary
from hoptui.presentation.metric_names import logged
from hoptui.protocol.messages import RunState

MOST_METRICS = 6
UNKNOWN_S = 0.1
"""Between two looks for a run that a new daemon does not know yet."""
SECOND = 1_000_000_000


def watch(
    run: Run,
    /,
    *,
    every: Annotated[float, Parameter(help="Minimum seconds between two lines; 0 prints every row.")] = 1.0,
    hz: Annotated[
        float | None,
        Parameter(show_default=False, help="Also print GPU rows, at this rate (at most 10 per second)."),
    ] = None,
    json: Json = False,
) -> int:
    """Print a run's rows with GPU readings as they arrive, one per line, until the run exits."""
    if not (math.isfinite(every) and every >= 0):
        raise usage(f"--every must be 0 seconds or more, not {every:g}")
    if hz is not None and not 0 < hz <= MOST_HZ:
        raise usage(f"--hz must be more than 0 and at most {MOST_HZ:g} per second, not {hz:g}")
    with look() as seen:
        found = seen.find(run)
        metrics = seen.store.latest(f"run/{found.run}")
        printer = _Printer(seen, found, list(_chosen(found, metrics)), json=json)
        if seen.lives(found):
            _stream(seen, found, printer, every, hz)
        elif metrics and (vital := seen.store.vital(found.run)):
            steps = seen.store.steps(f"run/{found.run}")
            known = steps is not None and not math.isnan(steps.last)
            printer.row(vital.last_t, int(steps.last) if steps and known else vital.step, metrics)
        state = vocabulary.state_text(seen.store.vital(found.run), seen.store.run(found.run) or found)
        warn(f"{found.name} ({found.run}) {state}")
    return OK


class _Printer:
    """Prints rows: the same few metrics in the same order on every line, or all of them as JSON."""

    def __init__(self, seen: NodeSnapshot, run: RunState, names: list[str], *, json: bool) -> None:
        self._seen = seen
        self._offset = seen.node.wall_offset_ns
        self._run = run
        self._names = names
        self._json = json
        self._verdict = "unknown"

    def row(self, t: int, step: int, metrics: dict[str, float]) -> None:
        """Print a row of the run with the current GPU readings."""
        run = self._seen.store.run(self._run.run) or self._run
        wall = (t + self._offset) / SECOND
        mine = self._seen.gpus_of(run)
        if self._json:
            dump(
                {
                    "run": run.run,
                    "t": t,
                    "time": wall,
                    "iteration": step,
                    "metrics": metrics_json(metrics),
                    "gpus": [gpus.report(self._seen, gpu) for gpu in mine],
                    "derived": gpus.derived(self._seen, run),
                    "diagnosis": diagnosis_json(run.diagnosis),
                }
            )
            return
        self._names = self._names or list(_chosen(run, metrics))
        shown = [f"{numbers.clean(name, 30)} {logged(name, metrics.get(name))}" for name in self._names]
        summed = gpus.together([gpus.readings(self._seen, gpu) for gpu in mine])
        say("  ".join([numbers.clock(wall), f"iteration {numbers.grouped(step)}", *shown, *summed]))
        if run.diagnosis is not None and run.diagnosis.verdict != self._verdict:
            self._verdict = run.diagnosis.verdict
            text = diagnosis.line(run.diagnosis, advises=self._seen.lives(run))
            say(f"{numbers.clock(wall)}  {numbers.clean(text, 400)}")

    def gpu(self, gpu: GpuInfo, t: int, readings: dict[str, float]) -> None:
        """Print a row of one of its GPUs."""
        wall = (t + self._offset) / SECOND
        if self._json:
            row = {"run": self._run.run, "t": t, "time": wall, "gpu": gpu.uuid, "index": gpu.index}
            dump({**row, "readings": readings})
            return
        cells = [cell for cell in gpus.line(gpu, readings)[2:] if cell]
        say("  ".join([f"{numbers.clock(wall)}.{int(wall * 10) % 10}", f"GPU {gpu.index}", *cells]))


def _chosen(run: RunState, metrics: dict[str, float]) -> dict[str, None]:
    """The metrics shown on a line: the headline, then the run's own. Phases and totals are left out."""
    first, _ = headline(run, metrics)
    own = [n for n in metrics if not n.startswith("phase/") and not n.endswith(("_per_s", "_total"))]
    aside = {n.removesuffix("_per_s") for n in metrics if n.endswith("_per_s")}
    names = [first, "iteration_s", *(n for n in own if n not in aside)] if first else own
    return dict.fromkeys(names[:MOST_METRICS])


def _stream(seen: NodeSnapshot, run: RunState, printer: _Printer, every: float, hz: float | None) -> None:
    source = f"run/{run.run}"
    vital = seen.store.vital(run.run)
    cursors = {source: vital.last_t if vital else 0}
    due, state = 0.0, 0
    known_at = time.monotonic()
    while True:
        mine = {f"gpu/{gpu.uuid}": gpu for gpu in seen.gpus_of(seen.store.run(run.run) or run)}
        for aside in (*mine, f"derived/{run.run}"):
            cursors.setdefault(aside, seen.store.now())
        delta = seen.session.fetch(
            run=run.run, cursors=cursors, events=NONE, commands=NONE, state=state, wait_s=1.0, hz=hz or 0.0
        )
        state = delta.state
        seen.store.apply(delta)
        for part in (part for part in delta.columns if len(part)):
            cursors[part.source] = part.last_t
            if part.source == source:
                due = _print(part, printer, every, due)
            elif hz is not None and part.source in mine:
                for t, _, readings in part.rows():
                    printer.gpu(mine[part.source], t, readings)
        if seen.store.run(run.run) is not None:
            known_at = time.monotonic()
        unknown = time.monotonic() - known_at  # to a new daemon, until the run connects
        if not delta.more and not any(map(len, delta.columns)) and not _there(seen, run):
            if seen.store.run(run.run) is not None or unknown > RETURN_S:
                return
            time.sleep(UNKNOWN_S)


def _print(part: Columns, printer: _Printer, every: float, due: float) -> float:
    """Print the rows that are due; returns when the next is, in seconds of the rows' clock."""
    for t, step, metrics in part.rows():
        if t / SECOND >= due:
            printer.row(t, step, metrics)
            due = t / SECOND + every
    return due


def _there(seen: NodeSnapshot, run: RunState) -> bool:
    now = seen.store.run(run.run)
    return now is not None and seen.lives(now)
