"""`hoptui import`: make recordings of runs that TensorBoard or wandb have logged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hoptui.cli.foreign_runs import tensorboard_events, wandb_logs
from hoptui.cli.foreign_runs.foreign_run import ForeignRun, ForeignRunError, record
from hoptui.cli.support import recordings
from hoptui.cli.support.options import Force, Json
from hoptui.cli.support.terminal import MISSING, OK, REJECTED, Fail, dump, say, target, usage, warn
from hoptui.node.addresses import AddressError, addresses
from hoptui.presentation import numbers
from hoptui.recording import RecordingError, library


def import_runs(
    logdir: Annotated[Path, Parameter(help="A directory with event files or offline runs, or one file.")],
    /,
    *,
    output: Annotated[
        str | None,
        Parameter(name=["--output", "-o"], show_default=False, help="The recording, if there is one run."),
    ] = None,
    force: Force = False,
    json: Json = False,
) -> int:
    """Make recordings of runs that TensorBoard or wandb have logged.

    Each directory with event files is a run, and so is each .wandb file of an offline run. Without --output,
    recordings go where those of this node are, so that hoptui runs lists them. The files are only read.
    """
    if not logdir.exists():
        raise Fail(f"{logdir} does not exist", MISSING)
    try:
        found = [*_found(logdir)]
    except ForeignRunError as error:
        raise Fail(str(error), MISSING) from None
    if not found:
        raise Fail(f"{logdir} has neither event files of TensorBoard nor .wandb files", MISSING)
    filled = [run for run in found if run.rows]
    for run in found:
        if run.unreadable:
            warn(f"hoptui: a part of {run.place} is damaged; what comes before it is taken")
        if not run.rows:
            warn(f"hoptui: {run.place} has no scalars: it is left out")
    if not filled:
        raise Fail(f"{logdir} has no scalars", REJECTED)
    if output is not None and len(filled) > 1:
        raise usage(f"{logdir} has {len(filled)} runs: import one of them, or leave out --output")
    for run in filled:
        path = _place(run, output, force=force)
        try:
            record(run, path)
        except RecordingError as error:
            raise Fail(str(error), REJECTED) from None
        _report(run, path, json=json)
    return OK


def _found(logdir: Path) -> list[ForeignRun]:
    if logdir.is_file():
        kind = wandb_logs if logdir.suffix == ".wandb" else tensorboard_events
        return [*kind.runs(logdir)]
    return [*tensorboard_events.runs(logdir), *wandb_logs.runs(logdir)]


def _place(run: ForeignRun, output: str | None, *, force: bool) -> Path:
    """The file of a recording. With `force`, one that is there is deleted."""
    if output == "-":
        raise usage("a recording is a file: give --output FILE, such as run.hoptui")
    if output is not None:
        path = target(output, force=force)
        assert path is not None
    else:
        try:
            path = addresses().recording(run.id)
        except AddressError as error:
            raise Fail(str(error), MISSING) from None
        if path.exists() and not force:
            raise Fail(f"{run.place} is imported already, as {run.id}: --force imports it again", REJECTED)
    if path.exists():
        try:
            library.remove(path)
        except RecordingError as error:
            raise Fail(f"{error}; it is not overwritten", REJECTED) from None
    return path


def _report(run: ForeignRun, path: Path, *, json: bool) -> None:
    metrics = sorted({name for _, _, values in run.rows for name in values})
    if json:
        dump(
            {
                "run": run.id,
                "name": run.name,
                "from": str(run.place),
                "recording": str(path),
                "rows": len(run.rows),
                "metrics": metrics,
                "damaged": run.unreadable > 0,
            }
        )
        return
    size = recordings.size(path.stat().st_size)
    rows, count = numbers.grouped(len(run.rows)), numbers.counted(len(metrics), "metric")
    say(f"{numbers.clean(run.name)} ({run.id}): {rows} rows, {count}, {size}, from {run.place}")
