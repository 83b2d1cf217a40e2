"""`hoptui where`: show the lines that the time of a run goes to."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import msgspec
from cyclopts import Parameter

from hoptui.cli.support import jobs, recordings
from hoptui.cli.support.options import Force, Json, RunOrFile
from hoptui.cli.support.recordings import size
from hoptui.cli.support.snapshot import NodeSnapshot, look
from hoptui.cli.support.terminal import (
    MISSING,
    OK,
    REJECTED,
    Fail,
    dump,
    say,
    table,
    target,
    to_file,
    to_stdout,
    usage,
)
from hoptui.client.session import RefusedError
from hoptui.client.target import is_path
from hoptui.domain.hot_lines import HotLine, hot_lines, sampled
from hoptui.domain.stacks import KEPT_S, StackSamples
from hoptui.model.source_code import source_line
from hoptui.model.stack_samples import LiveStacks, RecordedStacks, RunSamples
from hoptui.presentation import numbers, stacks
from hoptui.protocol.messages import RunState
from hoptui.recording import Recording, RecordingError, library

SECOND = 1_000_000_000
SHOWN, KEPT_SOURCE = 10, 60
"""Lines in the text, and characters of their source."""
OLD_DAEMON = (
    "the daemon is older than this hoptui and has no stack samples: hoptui daemon stop, then try again"
)


class Window(NamedTuple):
    """The time that is asked for: the last seconds, or from one time to another."""

    seconds: float | None
    since: str | None
    until: str | None

    @property
    def live(self) -> bool:
        """Whether the samples that a daemon keeps of a live run are enough."""
        return self.since is None and self.until is None and (self.seconds or 0.0) <= KEPT_S


class Found(NamedTuple):
    """A run and its samples. `recorded` is whether they come from its recording.

    `elsewhere` says on which other node the rank is that was asked for, "" if that is not known.
    """

    run: RunState
    samples: RunSamples
    recorded: bool
    elsewhere: str = ""


def where(
    run: RunOrFile,
    /,
    *,
    rank: Annotated[
        int | None,
        Parameter(
            show_default=False,
            help="The process to show, if the run has several: by default the lowest one on this node.",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        Parameter(
            show_default=False,
            help="How much of the past: by default 60 of a live run, and the whole time of a recording.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        Parameter(
            show_default=False,
            help="Start here, in the recording: +1h after the start, 14:05, 50%, #1200, or ISO 8601.",
        ),
    ] = None,
    until: Annotated[
        str | None, Parameter(show_default=False, help="End here; same forms as --since.")
    ] = None,
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

    A line is the innermost one of the script. Its source is shown if it can be read here. Samples of a live
    run come from the daemon. Those of an ended run, and of more than a minute, come from the recording, which
    has them minute by minute. Exit code 3 if there are no samples.
    """
    if seconds is not None and not 0 < seconds < math.inf:
        raise usage("--seconds is above 0")
    if seconds is not None and (since is not None or until is not None):
        raise usage("--seconds cannot be combined with --since and --until")
    if json and output is not None:
        raise usage("--json and --output exclude each other")
    path = target(output, force=force) if output is not None else None
    found = samples_of(run, Window(seconds, since, until), rank, every=output is not None)
    samples = found.samples
    if output is not None:
        _write(path, stacks.speedscope(found.run.name, list(samples.ranks.items())))
        return OK
    if json:
        dump(as_json(found, rank))
    else:
        _show(found, rank)
    return OK


def samples_of(name: str, window: Window, rank: int | None, *, every: bool = False) -> Found:
    """The run of this name, or of this file, and the samples of one rank, or of all of them.

    Args:
        name: The run, or the file.
        window: The time that is asked for.
        rank: The rank, None for the one that represents the run here.
        every: Whether all ranks are asked for. Then there may be none of `rank`.

    Raises:
        Fail: there are none, or none of that rank; exit code 3.
    """
    found = _any_samples(name, window, rank, every=every)
    if every and found.samples.known:
        return found
    shown = shown_rank(found.run, rank)
    if found.elsewhere and shown not in found.samples.ranks:
        raise Fail(found.elsewhere, MISSING)
    if not found.samples.known:
        raise Fail(_nothing(found), MISSING)
    if shown not in found.samples.ranks:
        raise Fail(_no_rank(found.run, shown, found.samples), MISSING)
    return found


def shown_rank(run: RunState, rank: int | None) -> int:
    """Return the rank that is shown: without a number, the one that represents the run on its node."""
    return run.rank if rank is None else rank


def _any_samples(name: str, window: Window, rank: int | None, *, every: bool) -> Found:
    if is_path(name):
        return _of_file(recordings.find(name), window, rank, every=every)
    with look(readings=False) as seen:
        try:
            run = seen.find(name)
        except Fail:
            where = recordings.places()
            if not recordings.matching(recordings.entries(where), name):
                raise
            return _of_file(recordings.find(name), window, rank, every=every)
        if seen.lives(run) and window.live:
            away = ""
            if rank is not None and not every:
                words = ["where", run.name, "--rank", str(rank)]
                away = jobs.elsewhere(seen.job(run), rank, words)
            return Found(run, _of_live(seen, run, window.seconds or KEPT_S), False, away)
        path = seen.session.where.recording(run.run)
    if not path.exists():
        raise Fail(f"{numbers.clean(run.name)} has no recording here: {path} does not exist", MISSING)
    return _of_file(path, window, rank, every=every)


def _of_live(seen: NodeSnapshot, run: RunState, seconds: float) -> RunSamples:
    now = seen.store.now()
    source = LiveStacks(lambda past: seen.session.stacks(run.run, past), lambda: now)
    try:
        return source.between(now - round(seconds * SECOND), now + round(KEPT_S * SECOND))
    except RefusedError as error:
        raise Fail(OLD_DAEMON if error.code == "unsupported" else str(error), MISSING) from None


def _of_file(path: Path, window: Window, rank: int | None, *, every: bool) -> Found:
    try:
        with Recording.open(path) as opened:
            known = library.known_run(opened)
            if known is None:
                raise Fail(library.without_run(path), REJECTED)
            t0, t1 = _range(opened, window)
            own = None if every else shown_rank(known.state, rank)
            return Found(known.state, RecordedStacks(opened).between(t0, t1, own), True)
    except RecordingError as error:
        raise Fail(str(error), REJECTED) from None


def _range(opened: Recording, window: Window) -> tuple[int, int]:
    """The first and the last stamp that are asked for; 0 stands for those of the recording."""
    if window.seconds is not None:
        last = max(opened.minutes()[0], default=0)
        return max(1, last - round(min(window.seconds, 1e9) * SECOND)), 0
    t0 = recordings.stamp(opened, "--since", window.since)
    t1 = recordings.stamp(opened, "--until", window.until)
    if t0 and t1 and t0 > t1:
        raise usage("--since is later than --until")
    return t0, t1


def as_json(found: Found, asked: int | None) -> dict[str, Any]:
    """Return the lines of a rank as JSON."""
    run, rank = found.run, shown_rank(found.run, asked)
    samples = found.samples.ranks[rank]
    return {
        "run": run.run,
        "name": run.name,
        "rank": rank,
        "recorded": found.recorded,
        "seconds": (samples.ended - samples.began) / 1e9,
        "samples": sampled(samples),
        "left_out": samples.left_out,
        "cost": samples.cost,
        "ranks": found.samples.known,
        "ranks_left_out": found.samples.ranks_left_out,
        "minutes": found.samples.minutes if found.recorded else None,
        "minutes_unreadable": found.samples.unreadable,
        "minutes_skipped": found.samples.skipped,
        "lines": lines_json(samples),
    }


def lines_json(samples: StackSamples, most: int | None = None) -> list[dict[str, Any]]:
    """Return the lines of some samples as JSON, at most `most` of them."""
    return [
        {
            "share": line.share,
            "kind": line.kind,
            "file": line.place.file,
            "line": line.place.line,
            "function": line.place.function,
            "inside": line.inside,
            "callers": [each._asdict() for each in line.callers],
        }
        for line in hot_lines(samples)[:most]
    ]


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


def _show(found: Found, asked: int | None) -> None:
    run, rank = found.run, shown_rank(found.run, asked)
    samples = found.samples.ranks[rank]
    of = f", rank {rank}" if run.world > 1 else ""
    recorded = ", recorded" if found.recorded else ""
    cost = f", at a cost of {numbers.percentage(100 * samples.cost)} of the time" if samples.cost else ""
    say(f"{numbers.clean(run.name)} ({run.run}{of}): {stacks.amount(samples)}{recorded}{cost}")
    lines = hot_lines(samples)
    table([_cells(line) for line in lines[:SHOWN]], right=(0,))
    if rest := lines[SHOWN:]:
        share = numbers.percentage(100 * sum(line.share for line in rest))
        say(f"and {len(rest)} more lines: {share}; --json shows all")
    for phrase in _left_out(found.samples):
        say(phrase)


def _cells(line: HotLine) -> tuple[str, ...]:
    return (
        numbers.percentage(100 * line.share),
        stacks.does(line.kind, line.inside),
        stacks.place(line.place),
        numbers.clean(source_line(line.place.file, line.place.line), KEPT_SOURCE)
        or numbers.clean(line.inside, KEPT_SOURCE),
    )


def _nothing(found: Found) -> str:
    name = numbers.clean(found.run.name)
    if found.run.stacks_off:
        return f"{name} has no stack samples: {stacks.OFF}"
    if found.recorded:
        lost = "".join(f"; {phrase}" for phrase in _left_out(found.samples))
        later = "" if found.run.exit_reason else "; those of a live run are written once a minute"
        return f"the recording of {name} has no stack samples of this time{lost or later}"
    return (
        f"{name} has sent no stack samples: the first come two seconds after its start; "
        "HOPTUI_STACKS=off, stacks=False and an older hoptui send none"
    )


def _left_out(samples: RunSamples) -> list[str]:
    return stacks.left_out(samples.ranks_left_out, samples.unreadable, samples.skipped)


def _no_rank(run: RunState, rank: int, samples: RunSamples) -> str:
    known = ", ".join(map(str, samples.known))
    return f"{numbers.clean(run.name)} has no samples of rank {rank}; there are those of {known}"
