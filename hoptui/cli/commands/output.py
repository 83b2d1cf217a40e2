"""`hoptui output`: print what a process of a run writes to stdout and stderr."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from hoptui.cli.support.options import Json, Run
from hoptui.cli.support.snapshot import NodeSnapshot, look
from hoptui.cli.support.terminal import MISSING, OK, Fail, dump, say, usage, warn
from hoptui.client.session import RefusedError
from hoptui.domain.outputs import LINES_KEPT, READ
from hoptui.domain.terminal_text import plain
from hoptui.model.outputs import FoundOutput, FoundStream, OutputText
from hoptui.presentation import numbers, outputs

EVERY_S = 0.5
"""Between two requests of `--follow`."""


def output(
    run: Run,
    /,
    *,
    rank: Annotated[int, Parameter(help="The process of the run.")] = 0,
    lines: Annotated[int, Parameter(help="Print so many lines of each stream, the newest.")] = 40,
    follow: Annotated[bool, Parameter(negative=(), help="Go on until the run exits.")] = False,
    json: Json = False,
) -> int:
    """Print what a process of a run writes to stdout and stderr: the newest lines.

    The daemon reads the files that they go to. Of a terminal or a pipe it knows what the Python code writes,
    if hoptui run --output has started the run. Progress bars are shown as they stand, without colours.
    Output is not recorded. Exit code 3 if none is known.
    """
    if not 0 < lines <= LINES_KEPT:
        raise usage(f"--lines must be from 1 to {LINES_KEPT}, not {lines}")
    with look(readings=False) as seen:
        found = seen.find(run)
        text = OutputText()
        known = _known(seen, found.run, rank, text)
        if known.ranks and rank not in known.ranks and not known.streams:
            there = ", ".join(map(str, known.ranks))
            raise Fail(f"{numbers.clean(found.name)} has no rank {rank} on this node, only {there}", MISSING)
        if json and not follow:
            dump(_as_json(found.run, known, lines))
        else:
            _explain(known)
            printer = _LinePrinter(found.run, rank, json=json)
            printer.print(known, lines, whole=not follow)
            if follow:
                known = _follow(seen, found.run, rank, text, printer)
    return OK if any(stream.origin in READ for stream in known.streams) else MISSING


class _LinePrinter:
    """Prints each line once. A line without an end is printed when it has one, or with the `whole` rest."""

    def __init__(self, run: str, rank: int, *, json: bool) -> None:
        self._run, self._rank, self._json = run, rank, json
        self._printed: dict[str, int] = {}  # lines, by source

    def print(self, known: FoundOutput, most: int, *, whole: bool) -> None:
        """Print the new lines of each stream, at most so many of the newest."""
        for one in known.streams:
            total = one.dropped + len(one.lines) - (one.open and not whole)
            before = self._printed.get(one.source, 0)
            first = max(0, total - most, before if before <= total else 0) - one.dropped
            for line in one.lines[max(0, first) : total - one.dropped]:
                self._line(one, plain(line), named=len(known.streams) > 1)
            self._printed[one.source] = total

    def _line(self, stream: FoundStream, text: str, *, named: bool) -> None:
        if self._json:
            dump({"run": self._run, "rank": self._rank, "stream": stream.stream, "line": text})
        else:
            say(f"{stream.stream}: {text}" if named else text)


def _explain(known: FoundOutput) -> None:
    """Say on stderr where each stream goes."""
    if known.problem:
        warn(outputs.problem_text(known.problem))
    elif not known.streams:
        warn(outputs.NOBODY_LOOKED)
    for one in known.streams:
        what = "stdout and stderr" if one.stream == "output" else one.stream
        warn(f"{what}: {outputs.origin_text(one.origin, one.path)}")


def _known(seen: NodeSnapshot, run: str, rank: int, text: OutputText) -> FoundOutput:
    try:
        return newest(seen, run, rank, text)
    except RefusedError as error:
        if error.code == "unsupported":
            raise Fail(outputs.problem_text("old_daemon"), MISSING) from None
        raise Fail(str(error), MISSING) from None


def newest(seen: NodeSnapshot, run: str, rank: int, text: OutputText) -> FoundOutput:
    """Ask for page after page until the newest is there.

    Raises:
        RefusedError: the daemon does not answer that, such as an older one.
    """
    while True:
        found, more = text.add(seen.session.output(run, rank, text.since))
        if not more:
            return found


def _follow(seen: NodeSnapshot, run: str, rank: int, text: OutputText, printer: _LinePrinter) -> FoundOutput:
    """Print lines as they get their ends, until the run exits."""
    while True:
        seen.refresh()
        state = seen.store.run(run)
        over = state is None or not seen.lives(state)
        known = _known(seen, run, rank, text)
        printer.print(known, LINES_KEPT, whole=over)
        if over:
            return known
        time.sleep(EVERY_S)


def _as_json(run: str, known: FoundOutput, lines: int) -> dict[str, object]:
    return {
        "run": run,
        "rank": known.rank,
        "ranks": known.ranks,
        "problem": known.problem or None,
        "streams": [
            {
                "stream": one.stream,
                "origin": one.origin,
                "path": one.path or None,
                "missing": one.missing or len(one.lines) > lines,
                "lines": [plain(line) for line in one.lines[-lines:]],
            }
            for one in known.streams
        ],
    }
