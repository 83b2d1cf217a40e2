"""`hoptui export`: write a recording's rows, events and commands for other programs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, TextIO

from cyclopts import Parameter

from hoptui.cli.support import recordings
from hoptui.cli.support.options import Force, Output
from hoptui.cli.support.terminal import (
    OK,
    REJECTED,
    Fail,
    keep_recording,
    say,
    target,
    to_file,
    to_stdout,
    usage,
)
from hoptui.presentation import numbers
from hoptui.recording import Recording, RecordingError
from hoptui.recording import export as writers
from hoptui.recording.export import ExportRequest

Format = Literal["csv", "jsonl", "parquet"]
MOST_NAMED = 12  # metrics named in the error for an unknown one


def export(
    recording: Annotated[str, Parameter(help="A recording file, or the name or id of a recorded run.")],
    /,
    *,
    format: Annotated[  # noqa: A002 - the option's name
        Format | None,
        Parameter(
            show_default=False, help="The format. By default the suffix of --output decides, otherwise csv."
        ),
    ] = None,
    output: Output = "-",
    source: Annotated[
        list[str] | None,
        Parameter(
            negative=(),
            show_default=False,
            help="Export only this source: run, gpu, host or gpu/<uuid>. May be repeated.",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        Parameter(show_default=False, help="Export only these metrics, separated by commas: loss,power_w."),
    ] = None,
    since: Annotated[
        str | None,
        Parameter(
            show_default=False, help="Start here: +1h after the start, 14:05, 50%, #1200, or ISO 8601."
        ),
    ] = None,
    until: Annotated[
        str | None, Parameter(show_default=False, help="End here; same forms as --since.")
    ] = None,
    force: Force = False,
) -> int:
    """Export a recording as CSV, JSON lines or Parquet. Unknown values are empty or null, never 0."""
    path = target(output, force=force)
    if format == "parquet" and path is None:
        raise usage("Parquet needs a file: give --output PATH")
    found = recordings.find(recording)
    keep_recording(path, found)
    kind = format or _kind(path)
    try:
        with Recording.open(found) as opened:
            wanted = _wanted(opened, source, metrics, since, until)
            if path is None:
                with to_stdout() as stream:
                    _write(opened, kind, stream, wanted)
            else:
                to_file(path, lambda file: _write_file(opened, kind, file, wanted))
                say(f"{path}: {recordings.size(path.stat().st_size)}")
    except RecordingError as error:
        raise Fail(str(error), REJECTED) from None
    return OK


def _kind(path: Path | None) -> Format:
    match path.suffix.lower() if path else "":
        case ".jsonl" | ".ndjson":
            return "jsonl"
        case ".parquet":
            return "parquet"
        case ".csv" | ".txt":
            return "csv"
        case other if other[1:].isalpha():  # not the end of a name such as v1.2
            raise usage(f"{other} is not supported: use .csv, .jsonl or .parquet, or give --format")
    return "csv"


def _wanted(
    opened: Recording,
    sources: Sequence[str] | None,
    metrics: str | None,
    since: str | None,
    until: str | None,
) -> ExportRequest:
    there = opened.sources()
    for source in sources or ():
        if not any(one == source or one.startswith(f"{source}/") for one in there):
            kinds = ", ".join(dict.fromkeys(one.partition("/")[0] for one in there)) or "none"
            raise usage(f"the recording has no source {numbers.clean(source, 60)!r}; it has {kinds}")
    names = tuple(dict.fromkeys(name.strip() for name in (metrics or "").split(",") if name.strip()))
    if metrics is not None and not names:
        raise usage("--metrics is empty: name at least one metric")
    _check_names(opened, sources or (), names)
    t0, t1 = (
        recordings.stamp(opened, option, typed) for option, typed in (("--since", since), ("--until", until))
    )
    if t0 and t1 and t0 > t1:
        raise usage("--since is later than --until")
    return ExportRequest(tuple(sources or ()), names, t0, t1)


def _check_names(opened: Recording, sources: Sequence[str], names: Sequence[str]) -> None:
    """Refuse a metric that no requested source has. An empty file would look like a run without it."""
    if not names:
        return
    known = dict.fromkeys(
        name for one in writers.sources_meant(opened, sources) for name in opened.names(one)
    )
    for name in names:
        if name not in known:
            some = ", ".join(list(known)[:MOST_NAMED]) or "none"
            more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
            raise usage(f"the recording has no metric {numbers.clean(name, 60)!r}; it has {some}{more}")


def _write_file(opened: Recording, kind: Format, file: BinaryIO, wanted: ExportRequest) -> None:
    if kind == "parquet":
        writers.write_parquet(opened, file, wanted)
        return
    stream = io.TextIOWrapper(file, encoding="utf-8", newline="")
    try:
        _write(opened, kind, stream, wanted)
    finally:
        stream.detach()


def _write(opened: Recording, kind: Format, stream: TextIO, wanted: ExportRequest) -> None:
    write = writers.write_csv if kind == "csv" else writers.write_jsonl
    write(opened, stream, wanted)
