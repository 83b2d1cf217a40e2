"""`hoptui report`: write a one-page report of a recorded run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

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
from hoptui.recording import Recording, RecordingError

Format = Literal["md", "html"]


def report(
    recording: Annotated[str, Parameter(help="A recording file, or the name or id of a recorded run.")],
    /,
    *,
    format: Annotated[  # noqa: A002 - the option's name
        Format | None,
        Parameter(
            show_default=False, help="The format. By default the suffix of --output decides, otherwise md."
        ),
    ] = None,
    output: Output = "-",
    force: Force = False,
) -> int:
    """Write a one-page report of a run: throughput, changes, bottlenecks, energy and the tuner.

    For a live run, the report ends where the recording ends. The HTML is one file without scripts or
    external resources.
    """
    path = target(output, force=force)
    found = recordings.find(recording)
    keep_recording(path, found)
    page = _written(found, format or _kind(path))
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


def _written(path: Path, kind: Format) -> str:
    from hoptui.cli.report import html, markdown
    from hoptui.cli.report import page as pages
    from hoptui.model import report as facts

    try:
        with Recording.open(path) as opened:
            document = pages.page(facts.read(opened), time.time())
    except RecordingError as error:
        raise Fail(str(error), REJECTED) from None
    return html.write(document) if kind == "html" else markdown.write(document)


def _save(file: BinaryIO, page: str) -> None:
    file.write(page.encode())
