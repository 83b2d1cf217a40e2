"""`hoptui report`: one page on a recorded run, to be read and sent to others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

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
    recording: Annotated[str, Parameter(help="A recording's file, or the name or id of a recorded run.")],
    /,
    *,
    format: Annotated[  # noqa: A002 - the option's name
        Format | None, Parameter(show_default=False, help="md unless the name of --output says another.")
    ] = None,
    output: Output = "-",
    force: Force = False,
) -> int:
    """One page on a run: throughput over time with what was changed, before and after, what held it back, energy, the tuner.

    A run that goes on is told as far as its recording reaches. The HTML is one file without scripts that loads nothing.
    """
    path = target(output, force=force)
    found = recordings.find(recording)
    keep_recording(path, found)
    page = _written(found, format or _kind(path))
    if path is None:
        with to_stdout() as stream:
            stream.write(page)
    else:
        to_file(path, lambda part: _save(part, page))
        say(f"{path}: {recordings.size(path.stat().st_size)}")
    return OK


def _kind(path: Path | None) -> Format:
    """What the name of the file says; a name that says nothing is Markdown's."""
    match path.suffix.lower() if path is not None else "":
        case ".html" | ".htm":
            return "html"
        case ".md" | ".markdown" | ".txt":
            return "md"
        case other if other[1:].isalpha():  # and not the end of a name like v1.2
            raise usage(f"a report is Markdown or HTML, not {other}: name it .md or .html, or give --format")
    return "md"


def _written(path: Path, kind: Format) -> str:
    from hoptui.cli.report import html, markdown
    from hoptui.cli.report import page as telling
    from hoptui.model import report as facts

    try:
        with Recording.open(path) as opened:
            document = telling.page(facts.read(opened), time.time())
    except RecordingError as error:
        raise Fail(str(error), REJECTED) from None
    return html.write(document) if kind == "html" else markdown.write(document)


def _save(path: Path, page: str) -> None:
    path.write_text(page, encoding="utf-8", newline="\n")
