"""What must hold, whatever happens: the truth of the simulation against what viewers and recordings say.

Each function takes the node and returns a sentence for each violation. To add an invariant, write one more
and name it in `of_settled`, `of_finished` or `always`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from hoptui.daemon.recordings import RESTORE_YOUNGER_S
from hoptui.daemon.state.command_log import REPEATED_S
from hoptui.protocol.messages import FATE_UNKNOWN, FINAL, CommandRecord, NodeState
from hoptui.recording import Recording, RecordingError, library
from tests.simulation.node import Node, cause, gave_up
from tests.simulation.trainer import in_effect, row_value
from tests.simulation.truth import Given, Incarnation, Setting

QUICK_S = 0.6
"""A command is answered within this time and two iterations, if nothing disturbs."""
JOINT_S = 1.0
"""Several ranks apply a command within this time or three iterations, whichever is longer."""
TOLD_S = 0.3
"""A viewer knows within this time that a setter was called, if nothing disturbs."""
LAST_WORDS_S = 10.0
"""The end of a process is known after this time."""
Invariant = Callable[[Node], Iterable[str]]


def of_settled(node: Node) -> list[str]:
    """Check what holds once all faults are over and everything has had time to arrive."""
    commands = resolved, truthful, outcomes_arrive, viewers_agree, viewers_know
    return _all(
        node, *commands, nodes_agree, values_shown, runs_go_on, ends_noticed, queues_empty, one_daemon
    )


def of_finished(node: Node) -> list[str]:
    """Check what holds after runs and daemon have ended."""
    return _all(node, recordings_listed, rows_accounted, commands_recorded)


def always(node: Node) -> list[str]:
    """Check what holds at any time."""
    commands = (
        at_most_once,
        right_process,
        person_beats_tuner,
        in_time,
        in_order,
        stages_forward,
        calm_is_quick,
    )
    return _all(node, nothing_broke, within_limits, pauses_end, ranks_agree, shown_when_kept, *commands)


def _all(node: Node, *each: Invariant) -> list[str]:
    return [f"{invariant.__name__}: {found}" for invariant in each for found in invariant(node)]


# commands ---------------------------------------------------------------------------------------------------


def audited(node: Node) -> dict[str, CommandRecord]:
    auditor = node.auditor
    if auditor is None or auditor.client is None:
        return {}
    return auditor.client.store.commands


def _calls(node: Node, given: Given) -> list[tuple[Incarnation, Setting]]:
    """Return the calls of setters for a command. Every command has a value of its own."""
    return [
        (was, setting)
        for was in node.truth.processes
        for setting in was.settings
        if was.rank == 0 and setting.value == given.value and not setting.undo
    ]


def resolved(node: Node) -> Iterator[str]:
    """Each command that a daemon knows has a final stage."""
    for key, record in audited(node).items():
        if record.stage not in FINAL:
            yield f"{record.verb} {record.wanted} ({key}) is still {record.stage!r}"


def truthful(node: Node) -> Iterator[str]:
    """What a final stage says is what happened in the training process."""
    records = audited(node)
    for given in node.truth.given.values():
        record = records.get(given.id)
        calls = _calls(node, given) if given.verb == "set" else []
        what = f"{given.verb} {given.value} of {given.viewer} at {given.at_s:.3f} s"
        if record is None:
            if calls and not _unheard(node, calls[0][0]) and not _history_excused(node, calls[0][0]):
                yield f"{what} was applied, and nobody knows of it"
            continue
        if given.verb != "set" or record.stage not in FINAL:
            continue
        done = [setting for _, setting in calls if not setting.raised]
        if record.stage == "applied" and not done:
            yield f"{what} is told as applied, and the setter was not called"
        elif record.stage == "applied" and record.effective != in_effect(given.value or 0.0):
            yield f"{what} is told as effective {record.effective!r}"
        elif record.stage in ("rejected", "superseded", "expired") and calls:
            yield f"{what} is told as {record.stage} ({record.code}), and the setter was called"
        elif record.stage == "voided" and calls and not _unknown(node, record, calls[0][0]):
            yield f"{what} is told as voided ({record.code}), and the setter was called"
        elif record.stage == "failed" and done and record.code not in ("several", "on_ranks"):
            yield f"{what} is told as failed ({record.code}), and the setter accepted it"


def _looks_old_s(node: Node, ended_s: float) -> float:
    """Return how old the recording of a run that ended then may look, by a wall clock that jumps."""
    forward = sum(seconds for at, seconds in node.truth.jumps if seconds > 0 and at > ended_s - 5.0)
    return node.kernel.seconds - ended_s + forward


def outcomes_arrive(node: Node) -> Iterator[str]:
    """What a run says of a command is what a viewer shows.

    A run that has ended can say no more. What a daemon has acknowledged is known all the same, while a
    new daemon would read its recording.
    """
    records = audited(node)
    for trainer in node.trainers:
        ended_s = trainer.was.ended_s
        forgotten = ended_s is not None and _looks_old_s(node, ended_s) > RESTORE_YOUNGER_S
        if trainer.run is None or forgotten:
            continue
        inbox = trainer.run._core.state.inbox
        for key, said in inbox._seen.items():
            acknowledged = key not in inbox.unacknowledged and not _history_excused(node, trainer.was)
            if said.stage not in FINAL or not (trainer.process.alive or acknowledged):
                continue
            shown = records[key].stage if key in records else "not there"
            if shown != said.stage:
                yield f"{trainer.name} said {said.stage} of {key}, which is shown as {shown}"


def viewers_agree(node: Node) -> Iterator[str]:
    """Every viewer shows the same end of a command."""
    told = audited(node)
    for viewer in node.viewers:
        if not viewer.process.alive or viewer.client is None:
            continue
        for key, record in viewer.client.store.commands.items():
            same = told.get(key)
            if same is None:
                continue
            if same.stage != record.stage and same.code != FATE_UNKNOWN:
                yield f"{viewer.name} shows {record.wanted} as {record.stage}, the daemon has {same.stage}"


def viewers_know(node: Node) -> Iterator[str]:
    """Every viewer has each command that the daemon has."""
    for viewer in node.viewers:
        if viewer.process.alive and viewer.client is not None:
            for key in audited(node).keys() - viewer.client.store.commands.keys():
                yield f"{viewer.name} does not know {audited(node)[key].wanted}"


def right_process(node: Node) -> Iterator[str]:
    """A command changes only the process that it was meant for."""
    for given in node.truth.given.values():
        for was, setting in _calls(node, given) if given.verb == "set" else ():
            if setting.epoch != given.epoch:
                yield f"{given.value} was meant for epoch {given.epoch}, and epoch {setting.epoch} has it"
            if was.pid != given.pid:
                yield f"{given.value} was meant for process {given.pid}, and process {was.pid} has it"


def person_beats_tuner(node: Node) -> Iterator[str]:
    """A tuner changes no knob after a person's change of it was known."""
    by_value = {given.value: given for given in node.truth.given.values() if given.verb == "set"}
    for was in node.truth.processes:
        # A change that another rank refused is undone at once. It is no change.
        undone = [later.undo for _, later in pairwise(was.settings)] + [False]
        kept = [s for s, gone in zip(was.settings, undone, strict=False) if not gone]
        done = [s for s in kept if not s.undo and not s.raised and s.value in by_value]
        for setting in done:
            tuners = by_value[setting.value]
            for earlier in done if tuners.by == "tuner" else ():
                persons = by_value[earlier.value]
                known = min(viewer.knew_end_s(persons.id) for viewer in node.viewers)
                if persons.by == "person" and known < tuners.at_s:
                    yield f"the tuner set {setting.value} after a person had set {earlier.value}"


def in_time(node: Node) -> Iterator[str]:
    """A command is not applied long after its time to live, nor read long after it was given up."""
    records = audited(node)
    for given in node.truth.given.values():
        for _, setting in _calls(node, given) if given.verb == "set" else ():
            late_s = setting.at_s - given.at_s - given.ttl_s
            if late_s > 2.0 and node.truth.calm(given.at_s - 1.0, setting.at_s):
                yield f"{given.value} was applied {late_s:.1f} s too late"
        record = records.get(given.id)
        if record is None or record.stage in ("expired", "rejected"):
            continue
        read_s = (record.t - node.kernel.began_ns) / 1e9
        if read_s - given.at_s > REPEATED_S + 1.0 and not node.truth.daemon_died(given.at_s, read_s):
            yield f"{given.verb} {given.value} was read {read_s - given.at_s:.1f} s after it was given"


def at_most_once(node: Node) -> Iterator[str]:
    """A setter is called once for a command."""
    for was in node.truth.processes:
        seen: set[object] = set()
        for setting in was.settings:
            if not setting.undo and setting.value in seen:
                yield f"{setting.value} was set twice"
            seen.add(setting.value)
    for given in node.truth.given.values():
        if given.verb == "set" and len(_calls(node, given)) > 1:
            yield f"{given.value} was applied {len(_calls(node, given))} times"


def in_order(node: Node) -> Iterator[str]:
    """The commands of a person are carried out in the order in which they were given."""
    # A trace may have as many iterations as a knob has for its value.
    asked = [given for given in node.truth.given.values() if (given.by, given.verb) == ("person", "set")]
    by_value = {given.value: given for given in asked}
    for was in node.truth.processes:
        newest: dict[str, Given] = {}
        for setting in was.settings if was.rank == 0 else ():
            given = by_value.get(setting.value)
            if given is None or setting.undo:
                continue
            before = newest.setdefault(given.viewer, given)
            if given.at_s < before.at_s - 0.01:  # a thread can lose its turn before the time is noted
                yield f"{given.value} of {given.viewer} was set after {before.value}, which was given later"
            newest[given.viewer] = given


def stages_forward(node: Node) -> Iterator[str]:
    """A viewer sees no final stage turn into another one. It may learn the end of one that was unknown.

    A stage without an end may follow only where no daemon kept the end before.
    """
    for viewer in node.viewers:
        for records in viewer.shown.values():
            for before, after in pairwise(records):
                undone = (before.stage, after.stage) == ("applied", "reverted")
                learned = before.code == FATE_UNKNOWN and (after.stage in FINAL or _only_shown(before))
                lost = after.code == FATE_UNKNOWN and node.truth.daemon_died()
                if before.stage in FINAL and not (undone or gave_up(before) or learned or lost):
                    yield f"{viewer.name} saw {before.wanted} {before.stage}, then {after.stage}"


def shown_when_kept(node: Node) -> Iterator[str]:
    """An outcome that a viewer shows without a mark is on disk.

    The file is looked at when a viewer shows a stage for the first time. If a daemon that did not know the
    run had voided the command then, nothing is known of a later end with the same stage.
    """
    everything = [(key, record) for v in node.viewers for key, shown in v.shown.items() for record in shown]
    not_looked_at = {(key, record.stage) for key, record in everything if _only_shown(record)}
    for viewer in node.viewers:
        for key, records in viewer.shown.items():
            for record in records:
                first = key, record.stage
                if not node.truth.kept.get(first, True) and first not in not_looked_at:
                    yield f"{viewer.name} saw {record.wanted} as {record.stage}, which was not on disk"


def calm_is_quick(node: Node) -> Iterator[str]:
    """Without a fault a command ends soon, however slow another viewer is."""
    for viewer in node.viewers:
        for given in node.truth.given.values():
            if given.viewer != viewer.name or given.verb != "set":
                continue
            trainer = next((t for t in node.trainers if t.id == given.run), None)
            several = JOINT_S if trainer is not None and trainer.others else 0.0
            most = QUICK_S + max(3 * (trainer.was.iteration_s if trainer else 0.0), several)
            end = given.at_s + most
            if viewer.was_away(given.at_s, end) or not node.truth.calm(given.at_s - 1.0, end):
                continue
            if node.is_paused(given, most):
                continue
            took = viewer.took_s(given.id)
            if took is None or took > most:
                yield f"{given.value} of {viewer.name} at {given.at_s:.3f} s took {took} s"
            for _, setting in _calls(node, given):
                late_s = viewer.knew_end_s(given.id) - setting.at_s
                if late_s > TOLD_S:
                    yield f"{viewer.name} knew the end of {given.value} {late_s:.2f} s after it was set"


# knobs ------------------------------------------------------------------------------------------------------


def values_shown(node: Node) -> Iterator[str]:
    """The value that viewers show is the one that the training script has."""
    for trainer in node.trainers:
        if not trainer.process.alive:
            continue
        for viewer in node.viewers:
            if not viewer.process.alive or viewer.client is None:
                continue
            run = viewer.client.store.run(trainer.id)
            if run is None:
                yield f"{viewer.name} does not show {trainer.name}"
                continue
            shown = {knob.spec.name: knob.value for knob in run.knobs}.get("lr")
            if shown != trainer.was.value:
                yield f"{viewer.name} shows {shown} for {trainer.name}, which has {trainer.was.value}"


def nodes_agree(node: Node) -> Iterator[str]:
    """Every viewer shows the runs as the newest viewer does, and the daemon that lives."""
    auditor = node.auditor
    if auditor is None or auditor.client is None:
        return
    for viewer in node.viewers:
        if viewer.process.alive and viewer.client is not None:
            seen, newest = viewer.client.store.node, auditor.client.store.node
            if seen is None or newest is None:
                yield f"{viewer.name} shows no node"
            elif seen.pid != newest.pid:
                yield f"{viewer.name} shows daemon {seen.pid} instead of {newest.pid}"
            elif _lives(seen) != _lives(newest):
                yield f"{viewer.name} shows {_lives(seen)} instead of {_lives(newest)}"


def _lives(seen: NodeState) -> dict[str, tuple[int, int, str]]:
    return {run.run: (run.epoch, run.pid, run.exit_reason) for run in seen.runs}


def ranks_agree(node: Node) -> Iterator[str]:
    """After each boundary all ranks of a run have the same value.

    A rank cannot know what the others do if the store raises while they exchange commands. So a change of
    that boundary may reach only some of them. `changes_true` tells whether it is called applied.
    """
    by_number = {was.number: was for was in node.truth.processes}
    for trainer in node.trainers:
        first = trainer.was
        interrupted = trainer.job.interrupted if trainer.job is not None else ()
        for other in (by_number[rank.was.number] for rank in trainer.others):
            both = min(first.boundaries, other.boundaries)
            mine = [step for step in first.trail if step[0] <= both and step[0] not in interrupted]
            theirs = [step for step in other.trail if step[0] <= both and step[0] not in interrupted]
            if mine != theirs:
                different = next(iter(set(mine) ^ set(theirs)))
                yield f"rank {other.rank} of {trainer.name} differs at boundary {different[0]}"


def runs_go_on(node: Node) -> Iterator[str]:
    """A run that nobody pauses trains, and its daemon sees it live."""
    auditor = node.auditor
    for trainer in node.trainers:
        if not trainer.process.alive:
            continue
        store = auditor.client.store if auditor is not None and auditor.client is not None else None
        vital = store.vital(trainer.id) if store is not None else None
        if vital is None or vital.state not in ("live", "busy"):
            yield f"{trainer.name} is shown as {vital.state if vital else 'unknown'}"


def ends_noticed(node: Node) -> Iterator[str]:
    """A run whose process has ended is shown as exited."""
    auditor = node.auditor
    store = auditor.client.store if auditor is not None and auditor.client is not None else None
    alive = {trainer.id for trainer in node.trainers if trainer.process.alive}
    for trainer in node.trainers if store is not None else ():
        ended_s = trainer.was.ended_s
        if trainer.id in alive or ended_s is None or node.kernel.seconds - ended_s < LAST_WORDS_S:
            continue
        vital = store.vital(trainer.id)  # type: ignore[union-attr]
        if vital is not None and vital.state != "exited":
            yield f"{trainer.name} ended at {ended_s:.3f} s and is shown as {vital.state}"


def pauses_end(node: Node) -> Iterator[str]:
    """A pause ends with its lease."""
    for was in (was for was in node.truth.processes if was.rank == 0):
        for began, ended in was.waits:
            pauses = [
                given
                for given in node.truth.given.values()
                if given.verb == "pause"
                and given.run == was.run
                and began - 30 - 1.2 * was.iteration_s < given.at_s < ended
            ]
            most = sum(given.hold_s for given in pauses) + 3.0 + was.suspended_s
            if ended - began > most:
                yield f"a boundary took {ended - began:.1f} s, the pauses allow {most:.1f} s"


# rows -------------------------------------------------------------------------------------------------------


def rows_accounted(node: Node) -> Iterator[str]:
    """Rows on disk, in order, and those counted as dropped are the rows that were logged."""
    for run in dict.fromkeys(was.run for was in node.truth.processes if was.run):
        processes = [was for was in node.truth.processes if was.run == run and was.rank == 0]
        path = node.where.recording(run)
        try:
            with Recording.open(path) as recording:
                parts, missing = list(recording.rows(f"run/{run}")), recording.missing
        except RecordingError as error:
            if not (_left_empty(node, path, processes) if path.exists() else _all_killed(processes)):
                yield f"the recording of {run} cannot be read: {error.reason}"
            continue
        values = [value for part in parts if "loss" in part.names for value in part.column("loss")]
        stamps = [t for part in parts for t in part.times()]
        if any(b <= a for a, b in pairwise(stamps)):
            yield f"the stamps of {run} do not rise"
        found: dict[int, list[float]] = defaultdict(list)
        for value in filter(math.isfinite, values):  # an iteration that the end interrupted has no loss
            found[int(value // 1e6)].append(value)
        for was in processes:
            yield from _process_accounted(node, was, found[was.number], missing)


def recordings_listed(node: Node) -> Iterator[str]:
    """A list of recordings has the state of each run, so that a report or a replay of it is possible."""
    runs = {was.run for was in node.truth.processes if was.run}
    for entry in library.entries(node.where.state) if node.where.state.exists() else ():
        if entry.path.stem in runs and entry.state is None and entry.path.stat().st_size:
            yield f"the recording of {entry.path.stem} is listed without its run: {entry.problem}"


def _all_killed(processes: Iterable[Incarnation]) -> bool:
    """Return whether the processes of a run may have ended before a daemon had heard of it."""
    return all(was.killed for was in processes)


def _left_empty(node: Node, path: Path, processes: Iterable[Incarnation]) -> bool:
    """Return whether a daemon may have been killed before the first write to a recording.

    The disk had not taken it until the processes of the run had ended.
    """
    return not path.stat().st_size and all(_lost_afterwards(node, was) for was in processes)


def _process_accounted(node: Node, was: Incarnation, found: list[float], missing: int) -> Iterator[str]:
    if any(b <= a for a, b in pairwise(found)):
        yield f"the rows of process {was.number} are not in order"
    produced = {row_value(was.number, step) for step in range(was.steps)}
    if unknown := set(found) - produced:
        yield f"process {was.number} never logged {sorted(unknown)[:3]}"
    lost = len(produced) - len(set(found))
    excused = was.killed or _unheard(node, was) or _lost_afterwards(node, was)
    counted = was.dropped + missing
    if lost > counted and not excused:
        yield f"{lost} of {was.steps} rows of process {was.number} are missing, {counted} counted"
    replaced = any(was.began_s <= at <= (was.ended_s or math.inf) for at in node.truth.lock_deleted_s)
    if (dropped := was.dropped - was.doubted) > lost + was.unfinished and not replaced:
        yield f"process {was.number} counts {dropped} rows as dropped, {lost} of {was.steps} are missing"


def _unheard(node: Node, was: Incarnation) -> bool:
    """Return whether a process ended while perhaps no daemon could hear it."""
    end = was.ended_s
    return end is not None and (was.killed or not node.truth.calm(end - 3.0, end + 2.0))


def _unknown(node: Node, record: CommandRecord, was: Incarnation) -> bool:
    """Return whether a command is told as unknown, and nobody can know what its process did.

    The ranks of the run may have lost each other after the call of the setter. A daemon may have heard the
    outcome and was killed before it was on disk, when the process that could repeat it was gone.
    """
    lost = _unheard(node, was) or _lost_afterwards(node, was)
    return record.code == FATE_UNKNOWN and (cause(record) == "ranks.apart" or lost)


def _history_excused(node: Node, was: Incarnation) -> bool:
    """Return whether the disk kept a daemon from writing what it knew before it was killed, or another one
    from reading it, which that one reported."""
    truth = node.truth
    unread = (at_s for at_s, run in truth.left_aside if run == was.run)
    return any(truth.disk_failed(at_s) for at_s in (*truth.daemon_died_s, *unread) if at_s >= was.began_s)


def _lost_afterwards(node: Node, was: Incarnation) -> bool:
    """Return whether a daemon that had not written all was killed when the run could count no more."""
    end = was.ended_s
    return end is not None and any(
        node.truth.disk_failed(died_s) for died_s in node.truth.daemon_died_s if died_s >= end - 5.0
    )


def commands_recorded(node: Node) -> Iterator[str]:
    """The recording has the end of each command that the daemon knew."""
    for run in dict.fromkeys(was.run for was in node.truth.processes if was.run):
        try:
            with Recording.open(node.where.recording(run)) as recording:
                recorded = {record.id: record for record in recording.commands()}
        except RecordingError:
            continue  # told by `rows_accounted`
        if any(_history_excused(node, was) for was in node.truth.processes if was.run == run):
            continue
        for key, record in audited(node).items():
            if record.run != run or _after_the_end(record):
                continue
            kept = recorded.get(key)
            if kept is None or kept.stage != record.stage:
                stage = kept.stage if kept else "not there"
                yield f"{record.wanted} is {record.stage}, the recording has {stage}"


def _after_the_end(record: CommandRecord) -> bool:
    """Return whether a daemon heard of a command after the recording of its run was closed."""
    return "no_such_run" in (record.code, cause(record))


def _only_shown(record: CommandRecord) -> bool:
    """Return whether a viewer alone has given a command up, or its recording was closed before."""
    return gave_up(record) or _after_the_end(record)


# the machine ------------------------------------------------------------------------------------------------


def nothing_broke(node: Node) -> Iterator[str]:
    """No thread ended with an exception, and none had to be contained."""
    yield from node.kernel.failures
    yield from node.complaints.found


def one_daemon(node: Node) -> Iterator[str]:
    """At most one daemon serves the node."""
    living = [daemon for daemon in node.daemons if daemon.alive]
    if len(living) > 1:
        yield f"{len(living)} daemons live"


def within_limits(node: Node) -> Iterator[str]:
    """Nobody sends more than the receiver takes."""
    yield from node.fabric.oversized


def queues_empty(node: Node) -> Iterator[str]:
    """Nothing waits for ever, in the run or in the daemon."""
    for trainer in node.trainers:
        if trainer.process.alive and trainer.run is not None:
            state = trainer.run._core.state
            waiting = len(state.inbox.due) + len(state.inbox.done) + len(state.notes)
            if waiting > 2 or len(state.rows) > 200:
                yield f"{waiting} commands and notes and {len(state.rows)} rows wait in {trainer.name}"
