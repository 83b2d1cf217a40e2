"""Planted defects in a run: its link, its commands and its knobs."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from hoptui.daemon.state import command_log
from hoptui.protocol.messages import FINAL
from hoptui.sdk import (
    command_execution,
    command_inbox,
    daemon_link,
    iteration,
    knobs,
    process,
    ranks,
    send_buffer,
    shared_state,
)
from tests.simulation.defects import Patch, clock, defect, nothing


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
def _earlier_answer() -> list[Patch]:
    welcome = daemon_link.DaemonLink._welcome

    def any_number(self: Any, message: Any, *rest: Any) -> Any:
        return welcome(self, structs.replace(message, hello=self._hello_number), *rest)

    return [(daemon_link.DaemonLink, "_welcome", any_number)]


@defect("each answer to a repeated hello counts", "slow answers")
def _each_answer() -> list[Patch]:
    welcome = daemon_link.DaemonLink._welcome

    def again(self: Any, message: Any, *rest: Any) -> Any:
        ours = message.hello == self._hello_number
        return welcome(self, structs.replace(message, hello=0) if ours else message, *rest)

    return [(daemon_link.DaemonLink, "_welcome", again)]


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
        state, now = self._state, clock()
        ahead = now.time() - now.monotonic()
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
    return [(shared_state.SharedState, "wake_link", nothing)]


@defect("rows are not sent again after a welcome")
def _no_resend() -> list[Patch]:
    return [(send_buffer.SendBuffer, "resend_after", nothing)]


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
