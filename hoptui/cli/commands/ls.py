"""`hoptui ls`: list runs, with `--all` also those that exist only as recordings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from hoptui.cli.commands.status import age, summary, throughput
from hoptui.cli.support import jobs
from hoptui.cli.support.options import Json
from hoptui.cli.support.snapshot import START_ONE, NodeSnapshot, look
from hoptui.cli.support.terminal import OK, Fail, dump, say, table, warn
from hoptui.presentation import numbers, sentences, vocabulary
from hoptui.presentation.details import tag_text
from hoptui.protocol.messages import RunState

if TYPE_CHECKING:  # it imports sqlite3, which a plain `ls` does not need
    from hoptui.recording.library import RecordingEntry

EXITED_SHOWN = 5
NO_RUNS = f"no runs on this node; {START_ONE}"


def ls(
    *,
    everything: Annotated[
        bool,
        Parameter(
            name="--all",
            negative=(),
            show_default=False,
            help="Also list all exited runs and recordings.",
        ),
    ] = False,
    tag: Annotated[
        list[str] | None,
        Parameter(negative=(), show_default=False, help="Only runs with this tag. Several: all of them."),
    ] = None,
    json: Json = False,
) -> int:
    """List the runs on this node, one per line; --all adds recordings and their size."""
    tags = frozenset(tag or ())
    if everything:
        return _everything(tags, json=json)
    with look() as seen:
        runs = [run for run in _sorted(seen) if tags.issubset(run.tags)]
        if json:
            dump([summary(seen, run) for run in runs])
        else:
            _list(seen, runs, tags)
        _warn_of_problems(seen)
    return OK


def _warn_of_problems(seen: NodeSnapshot) -> None:
    if seen.node.history:
        warn(f"hoptui: history: {numbers.clean(seen.node.history)}")
    if seen.node.metrics_problem is not None:
        warn(f"hoptui: {sentences.sentence(seen.node.metrics_problem)}")
    if seen.node.alerts_problem is not None:
        warn(f"hoptui: {sentences.sentence(seen.node.alerts_problem)}")
    for run in filter(seen.lives, seen.node.runs):
        if why := seen.broken(run):
            warn(f"hoptui: {numbers.clean(run.name, 40)}: {why}")


def _sorted(seen: NodeSnapshot) -> list[RunState]:
    return sorted(seen.node.runs, key=lambda run: (not seen.lives(run), -run.started_wall))


def _list(seen: NodeSnapshot, runs: list[RunState], tags: frozenset[str]) -> None:
    living = [run for run in runs if seen.lives(run)]
    exited = [run for run in runs if not seen.lives(run)]
    shown = living + exited[:EXITED_SHOWN]
    if not shown:
        say(f"no runs with {_named(tags)}; hoptui ls --all lists recordings too" if tags else NO_RUNS)
        return
    table([_line(seen, run) for run in shown], right=(3, 4, 5))
    if len(exited) > EXITED_SHOWN:
        say(f"and {len(exited) - EXITED_SHOWN} more that have exited: hoptui ls --all")


def _line(seen: NodeSnapshot, run: RunState) -> tuple[str, ...]:
    vital = seen.store.vital(run.run)
    ended = vocabulary.STATES["exited"] if not seen.lives(run) else None
    symbol, word = ended or (vocabulary.state_word(vital) if vital else vocabulary.UNKNOWN_STATE)
    iteration = numbers.grouped(vocabulary.iteration(vital))
    total = f" / {numbers.grouped(run.total)}" if run.total else ""
    latest = seen.store.latest(f"run/{run.run}")
    rate = throughput(run, vital, latest) if seen.lives(run) else numbers.UNKNOWN
    name = numbers.clean(run.name, 40)
    return (
        f"{symbol} {word}",
        name,
        run.run,
        iteration + total,
        rate,
        age(run),
        _tags(run),
        jobs.brief(seen.job(run)),
    )


def _tags(run: RunState | None) -> str:
    """The tags of a run, for the last column."""
    return tag_text(run.tags) if run is not None else ""


def _named(tags: frozenset[str]) -> str:
    return f"the tag{'s' if len(tags) > 1 else ''} {numbers.clean(', '.join(sorted(tags)), 80)}"


# with recordings


def _everything(tags: frozenset[str], *, json: bool) -> int:
    """List runs and recordings. Without a daemon, list recordings only and print a warning."""
    from hoptui.cli.support import recordings

    where = recordings.places()
    kept = {entry.run: entry for entry in recordings.entries(where)}
    found: list[dict[str, Any]] = []
    lines: list[tuple[str, ...]] = []
    try:
        with look() as seen:
            for run in _sorted(seen):
                entry = kept.pop(run.run, None)
                if not tags.issubset(run.tags):
                    continue
                found.append({**summary(seen, run), **_on_disk(run, entry)})
                *line, tagged, job = _line(seen, run)
                lines.append((*line, *_kept(run, entry), tagged, job))
            _warn_of_problems(seen)
    except Fail as error:
        warn(f"hoptui: {error}; only recordings are listed")
    for entry in kept.values():
        if not tags.issubset(entry.state.tags if entry.state is not None else ()):
            continue
        found.append(_recorded(entry))
        lines.append((*_recorded_line(entry), *_kept(entry.state, entry), _tags(entry.state), ""))
    if json:
        dump(found)
    elif lines:
        table(lines, right=(3, 4, 5, 6))
    elif tags:
        say(f"no runs and no recordings with {_named(tags)}")
    else:
        say(f"no runs on this node and no recordings in {where.state}; {START_ONE}")
    return OK


def _on_disk(run: RunState | None, entry: RecordingEntry | None) -> dict[str, Any]:
    """The fields that `--all --json` adds to `summary`."""
    return {
        "started": run.started_wall if run else None,
        "exited": (run.exited_wall or None) if run else None,
        "exit": {"reason": run.exit_reason, "detail": run.exit_detail} if run and run.exit_reason else None,
        "recording": str(entry.path) if entry else None,
        "size_bytes": entry.size_bytes if entry else None,
        "problem": entry.problem if entry else "",
    }


def _recorded(entry: RecordingEntry) -> dict[str, Any]:
    """A run that exists only as a recording, with the keys of `summary`."""
    run = entry.state
    return {
        "run": entry.run,
        "name": run.name if run else None,
        "epoch": run.epoch if run else None,
        "state": "exited" if run and run.exit_reason else None,
        "pid": run.pid if run else None,
        "iteration": None,
        "knobs": {},
        "metrics": {},
        "tags": run.tags if run else (),
        "job": None,
        **_on_disk(run, entry),
    }


def _recorded_line(entry: RecordingEntry) -> tuple[str, ...]:
    from hoptui.cli.support import recordings

    ended = entry.state is not None and entry.state.exit_reason
    symbol, word = vocabulary.STATES["exited"] if ended else vocabulary.UNKNOWN_STATE
    blank = numbers.UNKNOWN
    return (
        f"{symbol} {word}",
        recordings.title(entry),
        entry.run,
        blank,
        blank,
        f"{recordings.age(entry)} ago",
    )


def _kept(run: RunState | None, entry: RecordingEntry | None) -> tuple[str, str]:
    """The size of a recording, and how its run ended or why it cannot be read."""
    from hoptui.cli.support.recordings import size

    why = entry.problem if entry else ""
    if not why and run is not None and run.exit_reason:
        why = vocabulary.state_text(None, run).partition(": ")[2]
        why = "; ".join(filter(None, (why, run.recording)))
    return size(entry.size_bytes) if entry else numbers.UNKNOWN, why
