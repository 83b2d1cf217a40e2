"""Planted defects: each breaks the real code in one place, and the simulation must find it.

    python -m tests.simulation.planted                     all of them, as a table
    python -m tests.simulation.planted "no deduplication"  one of them

A simulation that finds no defect proves nothing. So this is the test of the simulation.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
import time
from typing import Any

from msgspec import structs

from hoptui.client import connection, conversation
from hoptui.daemon import archive, recordings, sampler_supervisor, server, sockets, tuning
from hoptui.daemon.handlers import pages, runs, samplers, targets, tuners, viewers
from hoptui.daemon.state import command_log, commit_barrier, registry, row_buffers
from hoptui.domain.devices import Sample
from hoptui.protocol.messages import FINAL
from hoptui.recording import recording
from hoptui.sdk import (
    command_execution,
    command_inbox,
    daemon_link,
    iteration,
    knobs,
    process,
    rank_schedule,
    rank_store,
    ranks,
    send_buffer,
    shared_state,
)
from hoptui.tuner import overrides
from tests.simulation import planted_files  # noqa: F401 - adds its defects to the list
from tests.simulation.actions import NIGHT
from tests.simulation.defects import DEFECTS, MOST_SEEDS, Found, Patch, defect, planted
from tests.simulation.scenario import execute, plan_of


def _clock() -> Any:
    """Return the clock of the node that is simulated now."""
    return vars(server)["time"]


def _nothing(*_: Any, **__: Any) -> None:
    pass


# the run ----------------------------------------------------------------------------------------------------


@defect("no deduplication of command ids")
def _no_deduplication() -> list[Patch]:
    inbox = command_inbox.CommandInbox
    receive = inbox.receive

    def again(self: Any, command: Any, now: float, next_step: int) -> Any:
        self._seen.pop(command.id, None)
        return receive(self, command, now, next_step)

    return [(inbox, "receive", again)]


@defect("the outcome of a restart does not have its command", "set width")
def _no_handed_over_command() -> list[Patch]:
    leave = process.leave_handover

    def without(environ: Any, handover: Any) -> None:
        waiting = tuple(structs.replace(each, given=None) for each in handover.waiting)
        leave(environ, structs.replace(handover, waiting=waiting))

    return [(process, "leave_handover", without)]


@defect("an answer to an earlier hello counts", "slow answers")
def _any_answer() -> list[Patch]:
    welcome = daemon_link.DaemonLink._welcome

    def any_number(self: Any, message: Any, *rest: Any) -> Any:
        return welcome(self, structs.replace(message, hello=0), *rest)

    return [(daemon_link.DaemonLink, "_welcome", any_number)]


@defect("a command of an older epoch is accepted")
def _no_fencing() -> list[Patch]:
    problem, refusal = command_inbox.CommandInbox._problem, command_log.Book._refusal

    def accept(self: Any, command: Any) -> Any:
        return problem(self, structs.replace(command, epoch=self.epoch))

    def admit(self: Any, command: Any, run: Any) -> Any:
        return refusal(self, structs.replace(command, epoch=run.state.epoch) if run else command, run)

    return [(command_inbox.CommandInbox, "_problem", accept), (command_log.Book, "_refusal", admit)]


@defect("both commands of a knob claim the boundary")
def _two_claims() -> list[Patch]:
    return [(command_inbox.DueCommand, "claim", lambda self: True)]


@defect("an expired command is carried out", "hurried")
def _no_expiry() -> list[Patch]:
    take = command_inbox.CommandInbox.take_due

    def all_of_them(self: Any, now: float) -> Any:
        return take(self, 0.0)

    return [(command_inbox.CommandInbox, "take_due", all_of_them)]


@defect("only 64 outcomes are sent again", "burst")
def _few_outcomes() -> list[Patch]:
    unsettled = command_inbox.CommandInbox.unsettled

    def few(self: Any) -> Any:
        return [o for o in unsettled(self) if o.stage in FINAL][-64:]

    return [(command_inbox.CommandInbox, "unsettled", few)]


@defect("a pause ends by the wall clock", "pause", "wall clock")
def _wall_pause() -> list[Patch]:
    boundary = iteration.IterationBoundary
    over = boundary._lease_over

    def by_the_wall(self: Any) -> bool:
        state, clock = self._state, _clock()
        ahead = clock.time() - clock.monotonic()
        before = self.__dict__.setdefault("_ahead", ahead)
        if state.paused_until and abs(ahead - before) > 0.5:
            state.paused_until -= ahead - before
            self.__dict__["_ahead"] = ahead
        return over(self)

    return [(boundary, "_lease_over", by_the_wall)]


@defect("a failed setter is not undone")
def _no_undo() -> list[Patch]:
    put = knobs.LiveKnob._put

    def once(self: Any, wanted: Any) -> None:
        if wanted == self.wanted != self.spec.default:
            return
        put(self, wanted)

    return [(knobs.LiveKnob, "_put", once)]


@defect("the wanted value is told instead of the one read back")
def _wanted_value() -> list[Patch]:
    execute = command_execution.CommandExecution._set

    def hopeful(self: Any, command: Any, done: Any, stood: Any) -> Any:
        found = execute(self, command, done, stood)
        return found and structs.replace(found, effective=command.value)

    return [(command_execution.CommandExecution, "_set", hopeful)]


@defect("the boundary does not wake the link")
def _sleeping_link() -> list[Patch]:
    return [(shared_state.SharedState, "wake_link", _nothing)]


@defect("rows are not sent again after a welcome")
def _no_resend() -> list[Patch]:
    return [(send_buffer.SendBuffer, "resend_after", _nothing)]


@defect("dropped rows are not counted", "stop daemon")
def _uncounted() -> list[Patch]:
    return [(send_buffer.SendBuffer, "dropped", property(lambda self: 0))]


@defect("the link ignores that a socket is full")
def _ignored_send() -> list[Patch]:
    send = daemon_link.DaemonLink._send

    def careless(self: Any, *arguments: Any) -> bool:
        send(self, *arguments)
        return True

    return [(daemon_link.DaemonLink, "_send", careless)]


@defect("the link does not say hello again")
def _no_hello() -> list[Patch]:
    receive = daemon_link.DaemonLink._receive

    def deaf(self: Any, frames: Any, *rest: Any) -> None:
        if b"hello_first" not in b"".join(frames):
            receive(self, frames, *rest)

    return [(daemon_link.DaemonLink, "_receive", deaf)]


@defect("each rank decides alone whether a change went well")
def _no_agreement() -> list[Patch]:
    return [(ranks.RankAgreement, "problem", lambda self, mine: mine)]


@defect("only rank 0 carries commands out")
def _one_rank() -> list[Patch]:
    def alone(self: Any, own: Any) -> Any:
        return own

    return [(ranks.RankAgreement, "plan", alone)]


# the daemon -------------------------------------------------------------------------------------------------


@defect("an outcome is acknowledged before it is written", "last change")
def _early_acknowledgement() -> list[Patch]:
    outcome = runs.RunDesk._outcome

    def early(self: Any, run: Any, said: Any) -> None:
        outcome(self, run, said)
        self._acknowledge(run.id, said.id, said.stage)

    return [(runs.RunDesk, "_outcome", early)]


@defect("outcomes go to a new daemon once", "narrow", "kill daemon")
def _once_anew() -> list[Patch]:
    unsettled = command_inbox.CommandInbox.unsettled

    def once(self: Any) -> Any:
        found = unsettled(self)
        for outcome in found:
            self._commands.pop(outcome.id, None)
        return found

    return [(command_inbox.CommandInbox, "unsettled", once)]


@defect("a lost wake-up of viewers")
def _lost_wake_up() -> list[Patch]:
    def later(self: Any) -> None:
        self._serve_at = min(self._serve_at, _clock().monotonic() + 2.0)

    return [(server.Server, "_changed", later), (viewers.ViewerDesk, "tell", _nothing)]


@defect("a full socket of a run loses the command", "narrow")
def _lost_command() -> list[Patch]:
    def once(self: Any, run: Any) -> None:
        for name, command in self._unsent.pop(run.id, {}).items():
            if run.identity is not None:
                self._send(run.identity, command)
                self._node.book.give(name)

    return [(runs.RunDesk, "_forward_waiting", once)]


@defect("commands are not forwarded after a reconnect")
def _no_unanswered() -> list[Patch]:
    return [(command_log.Book, "unanswered", lambda self, run: []), (runs.RunDesk, "pump", _nothing)]


@defect("what became of a command is guessed")
def _guessed_fate() -> list[Patch]:
    void = command_log.Book.void

    def sure(self: Any, run: str, why: Any, t: int, *, ended: bool = True, told: int | None = None) -> Any:
        newest = max((record.epoch for record in self.of(run)), default=None)
        return void(self, run, why, t, ended=ended, told=newest)

    return [(command_log.Book, "void", sure)]


@defect("a new daemon does not know the predecessor may have passed a command on", "last change")
def _not_passed_on() -> list[Patch]:
    submit = command_log.Book.submit

    def fresh(self: Any, command: Any, *rest: Any) -> Any:
        answer = submit(self, command, *rest)
        self._given.discard(command.id)
        return answer

    return [(command_log.Book, "submit", fresh)]


@defect("open commands stay open when a run ends")
def _never_void() -> list[Patch]:
    return [(command_log.Book, "void", lambda self, *_, **__: [])]


@defect("commands are not restored")
def _no_restore() -> list[Patch]:
    return [(command_log.Book, "restore", _nothing)]


@defect("numbers of records follow the wall clock", "wall clock")
def _wall_numbers() -> list[Patch]:
    def number(self: Any, wall: float) -> int:
        self._seq = int(_clock().time() * 1e6)
        return int(self._seq)

    return [(command_log.Book, "number", number)]


@defect("the value is shown before it is read back")
def _early_value() -> list[Patch]:
    submit = command_log.Book.submit

    def eager(self: Any, command: Any, run: Any, *rest: Any) -> Any:
        answer = submit(self, command, run, *rest)
        if run is not None and command.verb == "set":
            state = run.state
            eagerly = tuple(structs.replace(k, value=command.value) for k in state.knobs)
            run.state = structs.replace(state, knobs=eagerly)
        return answer

    return [(command_log.Book, "submit", eager), (registry.TrackedRun, "outcome", _nothing)]


@defect("a tuner may change what a person has set", "tuner")
def _tuner_wins() -> list[Patch]:
    return [(command_log.Book, "_hold", _nothing)]


@defect("what a killed daemon did not pass on stays open", "logout")
def _never_lost() -> list[Patch]:
    return [(command_log.Book, "lose", lambda self, run, epoch, t: [])]


@defect("a command that an earlier daemon may have passed on is rejected", "last change")
def _not_repeated() -> list[Patch]:
    submit = command_log.Book.submit

    def fresh(self: Any, command: Any, *rest: Any) -> Any:
        return submit(self, structs.replace(command, repeated=False), *rest)

    return [(command_log.Book, "submit", fresh)]


@defect("a command that was given up is carried out", "stop daemon")
def _never_too_late() -> list[Patch]:
    return [(command_log, "REPEATED_S", 1e9)]


@defect("a restart does not raise the epoch")
def _same_epoch() -> list[Patch]:
    state = registry._state

    def first(hello: Any, epoch: int, wall: float) -> Any:
        return state(hello, 1, wall)

    return [(registry, "_state", first)]


@defect("the end of a process is not noticed", "kill run")
def _unnoticed_end() -> list[Patch]:
    return [(runs.Lives, "watch", _nothing)]


@defect("a socket that was removed is not bound again")
def _no_heal() -> list[Patch]:
    return [(sockets.Doorway, "heal", lambda self: False)]


@defect("two daemons at once")
def _no_lock() -> list[Patch]:
    taken = sockets.Lock._taken

    def anyway(self: Any) -> int:
        try:
            return taken(self)
        except sockets.AlreadyRunningError:
            flags = os.O_RDWR | os.O_CREAT
            return os.open(self._where.lock, flags, 0o600)

    return [(sockets.Lock, "_taken", anyway)]


@defect("off by one in the pages of commands", "wall clock")
def _off_by_one() -> list[Patch]:
    since = command_log.Book.since

    def later(self: Any, seq: int, run: str = "") -> Any:
        return since(self, seq + 1 if seq else 0, run)

    return [(command_log.Book, "since", later)]


@defect("an endless page")
def _one_page() -> list[Patch]:
    def everything(records: Any) -> Any:
        padded = [structs.replace(r, why="x" * 30_000) for r in records]
        return tuple(padded), False

    return [(pages, "commands", everything)]


@defect("a command is given when its outcome comes", "last change")
def _given_with_its_outcome() -> list[Patch]:
    taken_over = command_log._taken_over

    def late(run: str, outcome: Any, t: int, wall: float) -> Any:
        command = outcome.command and structs.replace(outcome.command, t=0)
        return taken_over(run, structs.replace(outcome, command=command), t, wall)

    return [(command_log, "_taken_over", late)]


@defect("a restart that a daemon has missed stays under way", "set width")
def _under_way_for_ever() -> list[Patch]:
    return [(command_log.Book, "void_unreported", lambda *_: [])]


# the disk ---------------------------------------------------------------------------------------------------


@defect("rows count as written before they are")
def _early_flushed() -> list[Patch]:
    return [(archive.Archive, "flushed", lambda self, source: _clock().monotonic_ns())]


@defect("an outcome is shown before it is on disk")
def _shown_early() -> list[Patch]:
    return [(commit_barrier.CommitBarrier, "add", _nothing)]


@defect("a failed write is forgotten")
def _forgotten_write() -> list[Patch]:
    flush = recording.Recording.flush

    def careless(self: Any, *, summarise: bool = True) -> bool:
        try:
            return flush(self, summarise=summarise)
        finally:
            self._pending.clear()

    return [(recording.Recording, "flush", careless)]


@defect("repeated rows are written twice")
def _twice() -> list[Patch]:
    def append(self: Any, columns: Any) -> Any:
        self.last_t = 0
        return ring(self, columns)

    ring = row_buffers.Ring.append
    return [
        (row_buffers.Ring, "append", append),
        (recording.Recording, "_newest_stored", lambda self, source: 0),
    ]


@defect("the last rows of a run are not written")
def _no_close() -> list[Patch]:
    def close(self: Any, run: str) -> None:
        writer = self._open.pop(run, None)
        if writer is not None and writer.recording is not None:
            writer.recording._pending.clear()
            writer.recording.close()

    return [(recordings.History, "close", close), (recordings.History, "finish", close)]


# viewers ----------------------------------------------------------------------------------------------------


@defect("a viewer takes the state of another daemon for an older one", "kill daemon")
def _stale_version() -> list[Patch]:
    fetched = conversation.Conversation._fetched

    def newer(self: Any, delta: Any, now: float) -> None:
        newest = self.__dict__.setdefault("_newest", 0)
        self.__dict__["_newest"] = max(newest, delta.state)
        fetched(self, structs.replace(delta, node=None) if delta.state < newest else delta, now)

    return [(conversation.Conversation, "_fetched", newer)]


@defect("a viewer drops what its socket does not take", "narrow", "burst")
def _dropped_frames() -> list[Patch]:
    send = connection.DaemonConnection.send

    def careless(self: Any, *frames: bytes) -> None:
        send(self, *frames)
        self._unsent.clear()

    return [(connection.DaemonConnection, "send", careless)]


@defect("a viewer keeps its cursors for another daemon", "crash")
def _stale_cursors() -> list[Patch]:
    welcomed = conversation.Conversation._welcomed

    def keep(self: Any, welcome: Any, now: float) -> None:
        before = self._events, self._commands
        welcomed(self, welcome, now)
        self._events, self._commands = before

    return [(conversation.Conversation, "_welcomed", keep)]


@defect("a viewer takes the end of a command back")
def _taken_back() -> list[Patch]:
    from hoptui.model import store

    return [(store, "_news", lambda known, record: known != record)]


# samplers, targets and the tuner ----------------------------------------------------------------------------


@defect("a trial that a killed daemon has left is not undone", "tune", "work", "kill daemon")
def _not_undone() -> list[Patch]:
    return [(module, "unfinished", lambda state: None) for module in (tuning, tuners)]


@defect("a trial begins before it is on disk", "tune", "work", "kill in trial")
def _trial_in_memory() -> list[Patch]:
    return [(archive.Archive, "keep", lambda self, run: lambda: True)]


@defect("the tuner sets what a user has set", "tune", "set batch")
def _tuner_ignores_users() -> list[Patch]:
    return [(overrides.KnobOverrides, "choose", _nothing), (command_log.Book, "_hold", _nothing)]


@defect("a sampler that died is not replaced", "kill sampler")
def _no_successor() -> list[Patch]:
    def never(self: Any, now: float) -> None:
        self._next_start = now + 1e9

    return [(sampler_supervisor.Sampler, "_again", never)]


@defect("the first readings of a sampler are lost", "kill sampler")
def _lost_readings() -> list[Patch]:
    settled = sampler_supervisor.Sampler._settled

    def late(self: Any, child: Any, said: Any) -> Any:
        found = settled(self, child, said)
        if any(isinstance(message, Sample) for message in found) and not hasattr(child, "began"):
            child.began = True
            return [message for message in found if not isinstance(message, Sample)]
        return found

    return [(sampler_supervisor.Sampler, "_settled", late)]


@defect("readings are written twice")
def _readings_twice() -> list[Patch]:
    sample, newest = samplers.SamplerDesk._sample, recording.Recording._newest_stored

    def twice(self: Any, parts: Any) -> None:
        sample(self, parts)
        live = [run.id for run in self._node.registry.live()]
        self._node.archive.rows(live, [part for part in parts if part.source.startswith("gpu/")])

    def none(self: Any, source: str) -> int:
        return 0 if source.startswith("gpu/") else newest(self, source)

    return [(samplers.SamplerDesk, "_sample", twice), (recording.Recording, "_newest_stored", none)]


@defect("a target is judged on stale readings", "target")
def _stale_judgement() -> list[Patch]:
    judge, first = vars(targets)["judge"], dict[Any, Any]()

    def once(target: Any, *rest: Any) -> Any:
        found = judge(target, *rest)
        return first.setdefault(target, found) if found.mean is not None else found

    return [(targets, "judge", once)]


@defect("targets are not there for the next daemon", "target and kill")
def _forgotten_targets() -> list[Patch]:
    return [(targets.TargetDesk, "_publish", lambda self, run: self._node.touch())]


@defect("a knob is told as applied before the new process", "set width")
def _no_new_process() -> list[Patch]:
    return [(knobs.LiveKnob, "awaits_restart", property(lambda self: False))]


@defect("what a restart was for is not told", "set width")
def _lost_handover() -> list[Patch]:
    return [(process, "take_handover", lambda *_: None)]


# ranks ------------------------------------------------------------------------------------------------------


@defect("a rank applies without the decision", "stop rank")
def _no_commit() -> list[Patch]:
    settle = rank_schedule.RankSchedule._settle

    def eager(self: Any, proposal: Any, joint: bool) -> None:
        settle(self, proposal, joint or self._store.rank > 0)

    return [(rank_schedule.RankSchedule, "_settle", eager)]


@defect("a rank accepts a boundary that it has passed")
def _in_the_past() -> list[Patch]:
    accept = rank_schedule.RankSchedule._accept

    def always(self: Any, proposal: Any) -> bool:
        accept(self, proposal)
        return True

    return [
        (rank_schedule.RankSchedule, "_accept", always),
        (rank_schedule.RankSchedule, "_boundaries_in", lambda self, seconds: 1),
    ]


@defect("an answer counts for two ranks", "stop rank")
def _counted_twice() -> list[Patch]:
    answer = rank_schedule.RankSchedule._answer

    def first(self: Any, number: int, rank: int) -> str:
        return answer(self, number, rank if self._store.rank else 1)

    return [(rank_schedule.RankSchedule, "_answer", first)]


@defect("a rank that has left is waited for", "leave rank")
def _left_is_there() -> list[Patch]:
    return [(rank_store.Presence, "left", lambda self, rank: False)]


@defect("a stop of one rank is not told to the others", "signal")
def _lonely_stop() -> list[Patch]:
    def alone(self: Any, mine: Any) -> Any:
        if not self.alone:
            self._gather(mine)
        return mine

    return [(ranks.RankAgreement, "stop_request", alone)]


@defect("only rank 0 writes a checkpoint", "checkpoint")
def _one_checkpoint() -> list[Patch]:
    call = command_execution.CommandExecution._call

    def first(self: Any, command: Any, done: Any) -> Any:
        if self._state.rank == 0:
            return call(self, command, done)
        self._agreement.problem(None)
        return done

    return [(command_execution.CommandExecution, "_call", first)]


@defect("only rank 0 is paused", "pause")
def _one_pause() -> list[Patch]:
    do = command_execution.CommandExecution._do

    def first(self: Any, command: Any, stood: Any) -> Any:
        done = do(self, command, stood)
        if command.verb == "pause" and self._state.rank:
            self._state.paused = False
        return done

    return [(command_execution.CommandExecution, "_do", first)]


@defect("a joint boundary stays far ahead after a burst", "hurry")
def _far_ahead() -> list[Patch]:
    schedule = rank_schedule.RankSchedule

    def over_a_second(self: Any, seconds: float) -> int:
        (then, first), (now, last) = self._pace[0], self._pace[-1]
        rate: float = (last - first) / max(now - then, rank_schedule.AHEAD_S)
        return max(1, math.ceil(rate * seconds))

    return [(schedule, "_lead_nearer", _nothing), (schedule, "_boundaries_in", over_a_second)]


@defect("ranks that cannot communicate go on applying", "broken store")
def _apart() -> list[Patch]:
    def silent(self: Any, error: Any) -> None:
        self._agreement.dissolve()

    return [(iteration.IterationBoundary, "_separate", silent)]


def find(name: str, most: int = MOST_SEEDS, first: int = 0) -> Found:
    """Run seeds until one finds the defect, and holds without it."""
    wanted = next(each for each in DEFECTS if each.name == name)
    began = time.monotonic()
    for seed in range(first, first + most):
        plan = plan_of(seed)
        if not wanted.needs <= (kinds := {step.what for step in plan.steps}):
            continue
        if NIGHT in kinds and NIGHT not in wanted.needs:  # a minute each
            continue
        with planted(wanted):
            violations = execute(plan).violations
        if violations and not execute(plan).violations:
            return Found(name, seed, violations[0], time.monotonic() - began)
    return Found(name, None, "", time.monotonic() - began)


def main() -> int:
    """Print the table. Return 1 if a defect was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planted")
    parser.add_argument("names", nargs="*", help="parts of names (default: all)")
    parser.add_argument("--most", type=int, default=MOST_SEEDS, help="seeds for each")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    names = [d.name for d in DEFECTS if not options.names or any(n in d.name for n in options.names)]
    print("| planted defect | found by seed | found as |\n|---|---|---|", flush=True)
    missed = 0
    with multiprocessing.get_context("fork").Pool(options.jobs, maxtasksperchild=1) as pool:
        for found in pool.imap_unordered(_Search(options.most), names):
            missed += found.seed is None
            told = found.violation.partition(":")[0] if found.seed is not None else "not found"
            print(f"| {found.name} | {found.seed} | `{told}` |", flush=True)
    print(f"\n{len(names) - missed} of {len(names)} found")
    return int(bool(missed))


class _Search:
    """`find` with a limit, for a pool."""

    def __init__(self, most: int) -> None:
        self._most = most

    def __call__(self, name: str) -> Found:
        return find(name, self._most)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.planted", *sys.argv[1:]])
    sys.exit(main())
