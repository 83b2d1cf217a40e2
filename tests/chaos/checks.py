"""What must hold, whatever happened: what the processes wrote down against recordings and what viewers saw.

Each function takes the node and yields a sentence for each violation.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

from benchmarks.audited_run import MOST_ROWS, REFUSED, Call
from hoptui.protocol.messages import FATE_UNKNOWN, FINAL, CommandRecord
from hoptui.recording import Recording, RecordingError
from tests.chaos.node import RUN_HZ, Actor, ChaosNode

SECOND = 10**9
NOT_KNOWN_YET = ("no_such_run", "stale_epoch", "held_by_person", "restarting")
"""How a new daemon may reject a command that the daemon before had passed on."""
OF_DAEMON = (
    "kill_daemon",
    "stop_daemon",
    "remove_sockets",
    "remove_lock",
    "remove_directory",
    "cut_link",
    "freeze_link",
)
"""Faults after which a run is heard again only a while later."""
HEARD_S = 10.0
"""So long after such a fault, a daemon hears the run again."""
GIVES_UP_S = 0.9
"""A run that ends waits for hoptui at most a second."""
LATE_S = 10.0
"""So late a viewer may learn of the end of a process."""
TAIL_S = 3.0
"""Rows of so long before a SIGKILL may be on their way."""
MOST_CPU_MS = 25.0
"""CPU time of one boundary."""
MOST_BLOCKED_MS = 500.0
"""Time in which a boundary neither ran nor waited for a processor. The machine is overcommitted."""
LEAST_SHARE = 0.9
"""Iterations of a run, relative to the control run, in the same time."""
LEAST_LIFE_S = 20.0
WITHOUT_DAEMON_S = 20.0
DAEMON_MIB, DAEMON_FILES = 200.0, 160
RUN_GROWTH_MIB, RUN_FILES = 40.0, 64
Check = Callable[[ChaosNode], Iterable[str]]


def violations(node: ChaosNode, *checks: Check) -> list[str]:
    """Return a sentence for each violation of each check."""
    return [f"{check.__name__}: {found}" for check in checks for found in check(node)]


def speakers(node: ChaosNode) -> list[Actor]:
    """The processes that speak for an audited run: one of each run and restart."""
    return [a for a in node.actors if a.kind in ("run", "rank") and not a.rank and a.run]


def _end(actor: Actor) -> int:
    """When a process ended (monotonic ns). The end of time if it lives."""
    return actor.killed or actor.ledger.ended or 1 << 62


# rows -------------------------------------------------------------------------------------------------------


def rows_accounted(node: ChaosNode) -> Iterator[str]:
    """Rows on disk, in order, and those counted as dropped are the rows that were logged."""
    by_run: dict[str, list[Actor]] = defaultdict(list)
    for actor in speakers(node):
        by_run[actor.run].append(actor)
    for run, actors in by_run.items():
        try:
            with Recording.open(node.where.recording(run)) as recording:
                parts = list(recording.rows(f"run/{run}"))
        except RecordingError as error:
            if any(not a.killed for a in actors):
                yield f"the recording of {run} cannot be read: {error.reason}"
            continue
        stamps = [t for part in parts for t in part.times()]
        if any(b <= a for a, b in pairwise(stamps)):
            yield f"the stamps of {run} do not rise"
        found: dict[int, list[int]] = defaultdict(list)
        for n in (n for part in parts if "n" in part.names for n in part.column("n")):
            if n == n:
                found[int(n) // MOST_ROWS].append(int(n) % MOST_ROWS)
        if strange := found.keys() - {a.number for a in actors}:
            yield f"{run} has rows of the processes {strange}, which are not its own"
        for actor in actors:
            yield from _process_accounted(node, actor, found[actor.number])


def _process_accounted(node: ChaosNode, actor: Actor, found: list[int]) -> Iterator[str]:
    produced, last = actor.ledger.rows, max(found, default=-1)
    if any(b <= a for a, b in pairwise(found)):
        yield f"the rows of {actor.name} are not in order, or twice"
    if last > produced:
        yield f"{actor.name} has logged {produced} rows, and row {last} is recorded"
    between = last + 1 - len(set(found))
    if between > (counted := dropped(node, actor)):
        yield f"{between} of the first {last + 1} rows of {actor.name} are missing, {counted} are counted"
    tail, end = produced - (last + 1), _end(actor)
    heard = node.quiet(end - int(HEARD_S * SECOND), end + 2 * SECOND, *OF_DAEMON)
    if actor.was_stopped(end - int(HEARD_S * SECOND), end) or actor.ledger.closing_s > GIVES_UP_S:
        heard = False
    if heard and tail > (TAIL_S * RUN_HZ if actor.killed else 0) + max(0, counted - between):
        yield f"the last {tail} rows of {actor.name} are missing ({'killed' if actor.killed else 'ended'})"


def dropped(node: ChaosNode, actor: Actor) -> int:
    """The greatest count of dropped rows that a viewer was shown for this process."""
    pid = actor.child.pid
    shown = (run for _, line in _seen(node) for run in line["runs"] if run["pid"] == pid)
    most = max((run["dropped"] for run in shown if run["run"] == actor.run), default=0)
    return max(most, node.dropped.get((actor.run, pid), 0))


# commands ---------------------------------------------------------------------------------------------------


def calls(node: ChaosNode) -> dict[int, list[tuple[Actor, Call]]]:
    """The calls of setters by the value asked for, but for those that undo a refusal."""
    found: dict[int, list[tuple[Actor, Call]]] = defaultdict(list)
    for actor in speakers(node):
        for call in actor.ledger.calls():
            if call.what != "undo":
                found[call.value].append((actor, call))
    return found


def commands_truthful(node: ChaosNode, audited: dict[int, CommandRecord]) -> Iterator[str]:
    """Each command has one final stage, and the stage is what happened in the training process.

    `audited` has the records of a viewer that came last, by the value that was asked for.
    """
    called = calls(node)
    for value, (line, viewer) in given(node).items():
        record, made = audited.get(value), called.get(value, [])
        what = f"{value} of {viewer.name} for {line['run']}"
        if len(made) > 1:
            yield f"{what}: the setter was called {len(made)} times"
        if record is None:
            if (
                made
                and not made[0][0].killed
                and node.quiet(line["t"], made[0][1].t + 3 * SECOND, *OF_DAEMON)
            ):
                yield f"{what} took effect, and nobody knows of it"
            continue
        done = [call for _, call in made if call.what == "set"]
        if record.stage not in FINAL:
            yield f"{what} is still {record.stage!r}"
        elif record.stage == "applied":
            if not done or record.effective != value:
                yield f"{what} is told as applied ({record.effective}), the setter was called {len(done)} ×"
        elif _excused(node, record, line["t"], made):
            continue
        elif done or (made and record.stage != "failed"):
            yield f"{what} is told as {record.stage} ({record.code}), and the setter was called"
        elif record.stage == "failed" and not made and value % 10 == REFUSED:
            yield f"{what} is told as failed ({record.code}), and the setter was not called"


def _excused(node: ChaosNode, record: CommandRecord, given_t: int, made: list[tuple[Actor, Call]]) -> bool:
    """Return whether a daemon could not know better: another one was killed, or the run was not heard."""
    if record.code in NOT_KNOWN_YET:
        return not node.quiet(given_t - 5 * SECOND, given_t, *OF_DAEMON)
    return record.code == FATE_UNKNOWN and (not made or _unheard(node, made[0][0]))


def _unheard(node: ChaosNode, actor: Actor) -> bool:
    """Return whether a process was killed, or ended while perhaps no daemon could hear it."""
    end = _end(actor)
    return bool(actor.killed) or not node.quiet(end - int(HEARD_S * SECOND), end + 2 * SECOND, *OF_DAEMON)


def given(node: ChaosNode) -> dict[int, tuple[dict[str, Any], Actor]]:
    """All commands that viewers have given, by value, with the viewer."""
    viewers = node.of_all("viewer")
    return {line["value"]: (line, viewer) for viewer in viewers for line in viewer.journal.lines("given")}


def stages_forward(node: ChaosNode) -> Iterator[str]:
    """No viewer sees a final stage turn into another one, and all see the same end."""
    ends: dict[str, dict[str, str]] = defaultdict(dict)
    codes: dict[str, set[str]] = defaultdict(set)
    for viewer in node.of_all("viewer"):
        shown: dict[str, dict[str, Any]] = {}
        for line in viewer.journal.lines("stage"):
            before = shown.get(line["id"])
            codes[line["id"]].add(line["code"])
            if before is not None and before["stage"] in FINAL and line["stage"] != before["stage"]:
                gave_up = before["stage"] == "expired" and not before["seq"]
                unsure = before["code"] in (FATE_UNKNOWN, *NOT_KNOWN_YET) or line["code"] == FATE_UNKNOWN
                if not gave_up and not unsure:
                    yield f"{viewer.name} saw {line['wanted']} {before['stage']}, then {line['stage']}"
            shown[line["id"]] = line
        for name, line in shown.items():
            if line["stage"] in FINAL and (line["seq"] or line["stage"] != "expired"):
                ends[name][viewer.name] = line["stage"]
    for name, by_viewer in ends.items():
        if len(set(by_viewer.values())) > 1 and not codes[name] & {FATE_UNKNOWN, *NOT_KNOWN_YET}:
            yield f"viewers disagree on {name}: {by_viewer}"


def commands_recorded(node: ChaosNode, audited: dict[int, CommandRecord]) -> Iterator[str]:
    """The recording has the end of each command that the daemon knew."""
    for run in {actor.run for actor in speakers(node)}:
        try:
            with Recording.open(node.where.recording(run)) as recording:
                recorded = {record.id: record for record in recording.commands()}
        except RecordingError:
            continue  # told by `rows_accounted`
        for record in audited.values():
            kept = recorded.get(record.id)
            if record.run != run or record.code == "no_such_run":
                continue
            if kept is None or kept.stage != record.stage:
                found = kept.stage if kept else "nothing"
                yield f"{record.wanted} is {record.stage}, the recording has {found}"


def ranks_agree(node: ChaosNode) -> Iterator[str]:
    """Both ranks of a run have called the same setters in the same order."""
    ranks = node.of_all("rank")
    for first, second in zip(ranks[::2], ranks[1::2], strict=True):
        mine, theirs = ([(c.what, c.knob, c.value) for c in a.ledger.calls()] for a in (first, second))
        if first.killed or second.killed:  # one may have been killed in the middle of a boundary
            mine, theirs = (done[: min(len(mine), len(theirs))] for done in (mine, theirs))
        if mine != theirs:
            different = next(
                pair for pair in zip([*mine, None], [*theirs, None], strict=False) if pair[0] != pair[1]
            )
            yield f"{first.name} and {second.name} differ: {different}"


# what viewers show ------------------------------------------------------------------------------------------


def _seen(node: ChaosNode) -> Iterator[tuple[Actor, dict[str, Any]]]:
    for viewer in node.of_all("viewer"):
        for line in viewer.journal.lines("seen"):
            if "runs" in line:
                yield viewer, line


def nothing_false_is_shown(node: ChaosNode) -> Iterator[str]:
    """States, values, rows and counts that viewers saw are those of the processes."""
    by_pid = {(actor.run, actor.child.pid): actor for actor in speakers(node)}
    values: dict[str, set[int]] = defaultdict(lambda: {0})
    for actor in speakers(node):
        values[actor.run] |= {call.value for call in actor.ledger.calls() if call.what != "refuse"}
    told = Counter[str]()
    for viewer, line in _seen(node):
        for run in line["runs"]:
            shown = by_pid.get((run["run"], run["pid"]))
            if shown is None:
                continue
            for problem in _false(node, viewer, line, run, shown, values[run["run"]]):
                told[f"{viewer.name} showed {shown.name} {problem}"] += 1
    for sentence, times in told.items():
        yield f"{sentence} ({times} times)"


def _false(
    node: ChaosNode, viewer: Actor, line: dict[str, Any], run: dict[str, Any], actor: Actor, values: set[int]
) -> Iterator[str]:
    now, end = line["t"], _end(actor)
    gone = run["exit"] or run["state"] == "exited"
    if gone and now < end - SECOND and actor.alive:
        yield f"as exited ({run['exit']}), and it lives"
    late = now - int(LATE_S * SECOND)
    if run["state"] == "live" and end < late and node.quiet(late, now) and not viewer.was_stopped(late, now):
        yield f"as live {LATE_S:g} s after its end"
    if strange := {value for value in run["values"].values() if value not in values}:
        yield f"with the values {strange}, which it never had"
    if run["step"] > actor.ledger.rows + 1 and not actor.rank:
        yield f"at step {run['step']}, and it has done {actor.ledger.rows}"


# the runs and the machine -----------------------------------------------------------------------------------


def runs_go_on(node: ChaosNode) -> Iterator[str]:
    """No boundary takes long because of hoptui, and no run is slower than the control run."""
    for actor in node.actors:
        for slow in actor.ledger.slow() if actor.kind == "run" else ():
            if actor.was_stopped(slow.t - slow.wall, slow.t + SECOND):
                continue
            if slow.cpu > MOST_CPU_MS * 1e6:
                yield f"a boundary of {actor.name} took {slow.cpu / 1e6:.0f} ms of CPU"
            if slow.blocked > MOST_BLOCKED_MS * 1e6:
                yield f"a boundary of {actor.name} was blocked for {slow.blocked / 1e6:.0f} ms"
        errors = actor.errors.read_text()
        if actor.kind in ("run", "rank", "trainer") and ("Traceback" in errors or "hoptui is off" in errors):
            alone = actor.kind == "rank" and "can no longer agree" in errors
            if not alone:
                yield f"{actor.name} printed: {errors.strip().splitlines()[-1]}"
        if actor.child.poll() not in (None, 0, -9):
            yield f"{actor.name} ended with {actor.child.poll()}: {errors.strip()[-200:]}"


def runs_keep_pace(node: ChaosNode) -> Iterator[str]:
    """No run does fewer iterations than the control run did in the same time, while it is not suspended."""
    for control in node.of_all("control"):
        for actor in node.of_all("run"):
            end = min(_end(actor), _end(control), time.monotonic_ns())
            running = end - actor.began - sum(over - began for began, over in actor.stopped if over)
            if running < LEAST_LIFE_S * SECOND:
                continue
            mine = _rows_between(actor, actor.began, end) / running * SECOND
            most = _rows_between(control, actor.began, end) / (end - actor.began) * SECOND
            if mine < LEAST_SHARE * most:
                yield f"{actor.name} did {mine:.1f} iterations/s, the control run {most:.1f}"


def _rows_between(actor: Actor, start: int, end: int) -> int:
    return actor.ledger.rows_at(end) - actor.ledger.rows_at(start)


def daemon_comes_back(node: ChaosNode) -> Iterator[str]:
    """While a run lives, there is a daemon again soon."""
    if node.longest_without_daemon_s > WITHOUT_DAEMON_S:
        yield f"there was no daemon for {node.longest_without_daemon_s:.0f} s"


def nothing_broke(node: ChaosNode) -> Iterator[str]:
    """No daemon has logged an exception that nobody expected."""
    for log in node.where.directory.glob("daemon.log*"):
        text = log.read_text(errors="replace")
        if "Traceback" in text:
            at = text.index("Traceback")
            yield f"{log.name}: {text[max(0, at - 200) : at + 1500]}"


def usage_bounded(node: ChaosNode) -> Iterator[str]:
    """Memory and open files stay small."""
    for pid, used in node.usage.items():
        if used.kind == "daemon" and (used.most_mib > DAEMON_MIB or used.most_files > DAEMON_FILES):
            yield f"daemon {pid}: {used.most_mib:.0f} MiB, {used.most_files} files"
        growth = used.last_mib - used.first_mib
        if used.kind in ("run", "rank") and (growth > RUN_GROWTH_MIB or used.most_files > RUN_FILES):
            yield f"{used.kind} {pid} has grown by {growth:.0f} MiB, {used.most_files} files"
