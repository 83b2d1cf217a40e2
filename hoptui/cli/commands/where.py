"""`hoptui where`: show the lines that the time of a run goes to."""

from __future__ import annotations

import linecache
import stat
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
from cyclopts import Parameter

from hoptui.cli.support.options import Force, Json, Run
from hoptui.cli.support.recordings import size
from hoptui.cli.support.snapshot import look
from hoptui.cli.support.terminal import MISSING, OK, Fail, dump, say, table, target, to_file, to_stdout, usage
from hoptui.client.session import RefusedError
from hoptui.domain.hot_lines import HotLine, hot_lines, sampled
from hoptui.domain.stack_kinds import CodeLine
from hoptui.domain.stacks import KEPT_S, StackSamples
from hoptui.presentation import numbers, stacks
from hoptui.protocol.messages import RankStacks, RunState

SHOWN, KEPT_SOURCE = 10, 60
"""Lines in the text, and characters of their source."""
MOST_SOURCE = 4 << 20
"""Bytes of a file whose lines are shown."""
OLD_DAEMON = (
    "the daemon is older than this hoptui and has no stack samples: hoptui daemon stop, then try again"
)


def where(
    run: Run,
    /,
    *,
    rank: Annotated[int, Parameter(help="The process to show, if the run has several.")] = 0,
    seconds: Annotated[float, Parameter(help="How much of the past, at most 60 seconds.")] = KEPT_S,
    output: Annotated[
        str | None,
        Parameter(
            name=("--output", "-o"),
            allow_leading_hyphen=True,
            show_default=False,
            help="Write the samples of all ranks to this file, for speedscope.app; - is standard output.",
        ),
    ] = None,
    force: Force = False,
    json: Json = False,
) -> int:
    """Show the lines that the time of a run goes to, from samples of its stack.

    A line is the innermost one of the script. Its source is shown if it can be read here. Exit code 3 if
    there are no samples yet.
    """
    if not 0 < seconds <= KEPT_S:
        raise usage(f"--seconds is above 0 and at most {KEPT_S:g}")
    if json and output is not None:
        raise usage("--json and --output exclude each other")
    path = target(output, force=force) if output is not None else None
    with look(readings=False) as seen:
        found = seen.find(run)
        try:
            ranks = seen.session.stacks(found.run, seconds)
        except RefusedError as error:
            raise Fail(OLD_DAEMON if error.code == "unsupported" else str(error), MISSING) from None
    if not ranks:
        raise Fail(_nothing(found), MISSING)
    if output is not None:
        _write(path, stacks.speedscope(found.name, [(each.rank, each.samples) for each in ranks]))
        return OK
    known = {each.rank: each.samples for each in ranks}
    if rank not in known:
        raise Fail(_no_rank(found, rank, ranks), MISSING)
    if json:
        dump(as_json(found, rank, known[rank]))
    else:
        _show(found, rank, known[rank])
    return OK


def as_json(run: RunState, rank: int, samples: StackSamples) -> dict[str, Any]:
    """Return the lines of a rank as JSON."""
    return {
        "run": run.run,
        "name": run.name,
        "rank": rank,
        "seconds": (samples.ended - samples.began) / 1e9,
        "samples": sampled(samples),
        "left_out": samples.left_out,
        "cost": samples.cost,
        "lines": [
            {
                "share": line.share,
                "kind": line.kind,
                "file": line.place.file,
                "line": line.place.line,
                "function": line.place.function,
                "inside": line.inside,
                "callers": [each._asdict() for each in line.callers],
            }
            for line in hot_lines(samples)
        ],
    }


def _write(path: Path | None, document: dict[str, Any]) -> None:
    text = msgspec.json.encode(document) + b"\n"

    def save(file: BinaryIO) -> None:
        file.write(text)

    if path is None:
        with to_stdout() as stream:
            stream.write(text.decode())
    else:
        to_file(path, save)
        say(f"{path}: {size(path.stat().st_size)}; open it at speedscope.app")


def _show(run: RunState, rank: int, samples: StackSamples) -> None:
    of = f", rank {rank}" if run.world > 1 else ""
    passed = numbers.duration((samples.ended - samples.began) / 1e9)
    say(f"{run.name} ({run.run}{of}): {sampled(samples)} samples in {passed}")
    lines = hot_lines(samples)
    table([_cells(line) for line in lines[:SHOWN]], right=(0,))
    if rest := lines[SHOWN:]:
        share = numbers.percentage(100 * sum(line.share for line in rest))
        say(f"and {len(rest)} more lines: {share}; --json shows all")


def _cells(line: HotLine) -> tuple[str, ...]:
    return (
        numbers.percentage(100 * line.share),
        stacks.KINDS[line.kind],
        stacks.place(line.place),
        numbers.clean(source_line(line.place), KEPT_SOURCE) or line.inside,
    )


def source_line(place: CodeLine) -> str:
    """Return a line of a file, "" if it is no regular file of reasonable size that can be read here."""
    try:
        found = Path(place.file).stat()
    except (OSError, ValueError):
        return ""
    if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_SOURCE:
        return ""
    return linecache.getline(place.file, place.line).strip()


def _nothing(run: RunState) -> str:
    if run.exit_reason:
        return f"{run.name} has ended: stack samples are kept for a minute of a live run"
    return (
        f"{run.name} has sent no stack samples: the first come two seconds after its start; "
        "HOPTUI_STACKS=off, stacks=False and an older hoptui send none"
    )


def _no_rank(run: RunState, rank: int, ranks: tuple[RankStacks, ...]) -> str:
    known = ", ".join(str(each.rank) for each in ranks)
    return f"{run.name} has no samples of rank {rank}; there are those of {known}"
