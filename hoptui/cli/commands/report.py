"""`hoptui report`: write a one-page report of a recorded run, or of several beside each other."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import msgspec
from cyclopts import Parameter

from hoptui.cli.support import recordings
from hoptui.cli.support.options import Force, Json, Output
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
from hoptui.recording import Recording, RecordingError

if TYPE_CHECKING:
    from hoptui.model.report import Report

Format = Literal["md", "markdown", "html"]


def report(
    recording: Annotated[str, Parameter(help="A recording file, or the name or id of a recorded run.")],
    /,
    *others: Annotated[
        str, Parameter(help="Other nodes of the run, or other runs to compare with it, up to seven.")
    ],
    format: Annotated[  # noqa: A002 - the option's name
        Format | None,
        Parameter(
            show_default=False, help="The format. By default the suffix of --output decides, otherwise md."
        ),
    ] = None,
    output: Output = "-",
    force: Force = False,
    json: Json = False,
) -> int:
    """Write a one-page report of a run: learning, throughput, changes, bottlenecks, GPUs, energy and the
    tuner.

    With recordings of several nodes of one run: one report with all of them. With several runs: what differs
    between them, their results, and their curves overlaid. For a live run, the report ends where the
    recording ends. The HTML is one file that loads nothing. The JSON has the same facts as numbers, and no
    curves: `hoptui export` has the rows.
    """
    if json and format is not None:
        raise usage("--json and --format cannot be combined")
    path = target(output, force=force)
    found = _different(recordings.find(name) for name in (recording, *others))
    for one in found:
        keep_recording(path, one)
    page = _json(found) if json else _written(found, format or _kind(path))
    if path is None:
        with to_stdout() as stream:
            stream.write(page)
    else:
        to_file(path, lambda file: _save(file, page))
        say(f"{path}: {recordings.size(path.stat().st_size)}")
    return OK


def _kind(path: Path | None) -> Format:
    """The format for a file name. Without a known suffix it is Markdown."""
    match path.suffix.lower() if path is not None else "":
        case ".html" | ".htm":
            return "html"
        case ".md" | ".markdown" | ".txt":
            return "md"
        case other if other[1:].isalpha():  # not the end of a name such as v1.2
            raise usage(f"a report is Markdown or HTML, not {other}: name it .md or .html, or give --format")
    return "md"


def _different(paths: Iterable[Path]) -> list[Path]:
    """The recordings in their order.

    Raises:
        Fail: one of them is named twice.
    """
    found = list(paths)
    places = [path.resolve() for path in found]
    twice = next((path for path in found if places.count(path.resolve()) > 1), None)
    if twice is not None:
        raise usage(f"{twice} is named twice")
    return found


def _written(paths: Sequence[Path], kind: Format) -> str:
    from hoptui.cli.report import html, markdown
    from hoptui.cli.report.page import page
    from hoptui.cli.report.run_comparison import comparison_page

    reports = _read(paths)
    made = time.time()
    document = page(reports[0], made) if len(reports) == 1 else comparison_page(reports, made)
    return html.write(document) if kind == "html" else markdown.write(document)


def _json(paths: Sequence[Path]) -> str:
    """One document: `runs` has the facts of each."""
    from hoptui.cli.report.report_json import as_json

    document = {"made": time.time(), "runs": [as_json(report) for report in _read(paths)]}
    return f"{msgspec.json.encode(document).decode()}\n"


def _read(paths: Sequence[Path]) -> list[Report]:
    """The report of each run.

    Raises:
        Fail: a recording cannot be read, or there are more runs than a page holds.
    """
    from hoptui.cli.report.run_comparison import MOST_RUNS
    from hoptui.model.job_report import by_run, read_run
    from hoptui.model.recorded.joined import JoinError

    try:
        with ExitStack() as opened:
            runs = by_run([opened.enter_context(Recording.open(path)) for path in paths])
            if len(runs) > MOST_RUNS:
                raise usage(f"a report compares at most {MOST_RUNS} runs, not {len(runs)}")
            return [read_run(recordings) for recordings in runs]
    except (RecordingError, JoinError) as error:
        raise Fail(str(error), REJECTED) from None


def _save(file: BinaryIO, page: str) -> None:
    file.write(page.encode())
