"""The parts of one run and its life: connect, boundaries, end."""

from __future__ import annotations

import atexit
import builtins
import logging
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Literal

import msgspec

from hoptui.domain.code_lines import CodeLine
from hoptui.domain.facts import Fact, clean_text, fact
from hoptui.domain.knobs import KnobError
from hoptui.node.identity import node_identity
from hoptui.protocol.ranges import MOST_COUNT
from hoptui.sdk import gloo_threads, output_copy, process
from hoptui.sdk.command_execution import CommandExecution
from hoptui.sdk.details import DetailsBook
from hoptui.sdk.iteration import IterationBoundary, IterationRecorder
from hoptui.sdk.rank_store import RankStore, store_of_torch, torch_has_ranks
from hoptui.sdk.ranks import RankAgreement, RunIdentity
from hoptui.sdk.shared_state import Ending, JobPlace, JobStore, LinkControl, SharedState, new_run_id
from hoptui.sdk.suspended_task import running_task

log = logging.getLogger("hoptui")

MOST_CALLS = 32
"""Calls around the end of an iteration that are told, the innermost ones."""
SDK = str(Path(__file__).parent) + os.sep

Auto = Literal["auto"]
"""The ranks of torch.distributed."""


class RunCore:
    """One run as its training thread sees it. `Run` is its public face.

    `state` is shared with the link thread. `recorder` makes the rows, `meeting` is the boundary of all ranks,
    and `execution` carries out commands. `place` is where the process is among the nodes. `made` counts the
    runs of this process, ended ones included.
    """

    made: ClassVar[int] = 0

    def __init__(
        self,
        name: object,
        total: object,
        resume: Mapping[str, Any] | None,
        ranks: RankStore | Auto | None,
        config: object = None,
        tags: object = (),
        notes: object = "",
        stacks: bool = True,
    ) -> None:
        RunCore.made += 1
        former = _close_former(str(name)[:100])
        known: Mapping[str, Any] = resume if isinstance(resume, Mapping) else former
        self._agreement = RankAgreement()
        self.state = state = SharedState(
            str(name)[:100] or "run", whole(total), DetailsBook(config, tags, notes)
        )
        self.recorder = IterationRecorder(state)
        self.execution = CommandExecution(state, self._agreement, whole(known.get("commands")) or 0)
        self.meeting = IterationBoundary(state, self._agreement, self.execution)
        self._closed = False
        self._store: RankStore | None = None
        self.place = JobPlace()
        state.training.sampled = bool(stacks) and not process.stacks_off(os.environ)
        if not process.switched_off(os.environ):
            output_copy.install_if_asked(os.environ)
        self.train_in_this_thread()
        self._own = RunIdentity(
            run=str(known.get("run") or new_run_id()),
            epoch=(whole(known.get("epoch")) or 0) + 1,
            nonce=secrets.token_hex(8),
            on=not process.switched_off(os.environ),
        )
        self._identify(self._own)
        if resume is not None and not isinstance(resume, Mapping):
            wrong = KnobError(f"resume takes what state_dict returned, not {resume!r:.40}")
            state.declarations.refuse_call("connect", wrong)
        self.execution.handover = process.take_handover(os.environ, os.getpid(), state.id)
        process.guard(self)
        state.rank, state.world = process.ranks(os.environ)
        self._join(store_of_torch() if ranks == "auto" else ranks)
        alone = state.world > 1 and self._agreement.alone
        state.inbox.refusal = {"world": state.world} if alone else None
        self._joins_later = alone and ranks == "auto"
        if self._own.on and state.rank == 0:
            state.link = _start_link(self)
        _runs[state.name] = self._record = RunRecord(weakref.ref(self), threading.current_thread())
        self._record.known = self.state_dict()

    @property
    def stop_asked(self) -> bool:
        """Whether a stop was requested, whether or not all ranks have agreed on it."""
        return self.state.stopping or self.meeting.stop_requested

    def plan(self, total: int | None) -> None:
        """Set the number of planned iterations."""
        self.state.total = whole(total)
        self.state.declarations.revision += 1

    def boundary(self, step: int | None) -> bool:
        """Pass a boundary. Return False if the run stops here."""
        state, recorder = self.state, self.recorder
        if state.phases.entered:
            state.phases.close_all()
        now = time.monotonic_ns()
        recorder.finish(now)
        given = step if step.__class__ is int and 0 <= step <= MOST_COUNT else whole(step)
        if given is not None:
            state.step = given
        elif recorder.began:
            state.step += 1
        state.progress = now / 1e9
        quiet = False
        try:
            if now >= self.execution.next_follow:
                self._follow(now)
            if self._joins_later and torch_has_ranks():
                self._joins_later = False
                self._join(store_of_torch())
            quiet = not self.meeting.meet()
        except Exception as error:  # an error of hoptui must not reach the loop
            state.give_up(error)
        if not quiet:
            now = time.monotonic_ns()
            state.progress = now / 1e9
        recorder.begin(now)
        state.began = True
        return not state.stopping

    def _follow(self, now: int) -> None:
        """Do at the first boundary, and then once a second, what no other boundary needs."""
        if self.state.alive:
            self.execution.follow(now)
            self.in_loop()
            if now >= self.state.declarations.optimizers.next_read:
                self.state.declarations.optimizers.read(now)
        if self.execution.handover is not None:
            self.execution.finish_restart()

    def state_dict(self) -> dict[str, Any]:
        """Return what the next process needs to continue this run."""
        state = self.state
        return {
            "run": state.id,
            "epoch": state.epoch,
            "knobs": {name: knob.value for name, knob in state.declarations.knobs.items()},
            "commands": self.execution.applied,
        }

    def close(
        self, reason: Ending | None, detail: str, *, interrupted: bool = False, at_exit: bool = False
    ) -> None:
        """Send what is left and why the run ends. Without a reason, take it from the interpreter.

        `interrupted`: an exception ends the run, perhaps in the middle of an iteration. `at_exit`: the
        interpreter exits. Nothing in it knows the exit code, so the daemon looks for it.
        """
        if at_exit:
            try:
                self._close(reason, detail, interrupted=interrupted, at_exit=True)
            finally:
                if self.state.link is not None:
                    self.state.link.part()
        else:
            self._close(reason, detail, interrupted=interrupted, at_exit=False)

    def _close(self, reason: Ending | None, detail: str, *, interrupted: bool, at_exit: bool) -> None:
        if self._closed:
            return
        self._closed = True
        state = self.state
        if reason is None:
            error = getattr(sys, "last_value", None)
            interrupted = error is not None
            reason, found = ending(error, "stopped" if state.stopping else "finished")
            detail = detail or found
        state.phases.close_all()
        self.recorder.finish(time.monotonic_ns(), interrupted=interrupted or reason == "exception")
        self.recorder.flush()
        if state.stopping and not detail:
            detail = f"by {state.stop_by}" if state.stop_by else ""
        self.execution.void_waiting(fact("run_ended", reason=reason))
        if state.link is not None and state.alive:
            state.link.close(reason, clean_text(detail, 500), at_exit=at_exit and reason == "finished")
        state.alive = False
        self._agreement.leave()
        self._record.known = self.state_dict()

    def end_loop(self) -> None:
        """The loop has ended by itself. In a notebook the run ends with it, because the process stays."""
        self.state.phases.close_all()
        self.recorder.finish(time.monotonic_ns())
        if in_notebook():
            self.close(None, "")

    @property
    def open(self) -> bool:
        """Whether the run has neither ended nor been handed over."""
        return not self._closed

    def hand_over(self, where: str) -> None:
        """Leave the run to the process that replaces this one."""
        if self._closed:
            return
        self._closed = True
        state = self.state
        self.recorder.discard()
        self.recorder.flush()
        self.execution.hand_over(where, self.recorder.began)
        if state.link is not None and state.alive:
            state.link.leave()
        state.alive = False
        self._agreement.leave()

    # of the thread of the schedule --------------------------------------------------------------------------

    def pending(self) -> bool:
        """See `RankMember`."""
        return self.meeting.pending()

    def unanswered(self, why: Fact | None) -> None:
        """See `RankMember`."""
        self.meeting.unanswered(why)

    def failed(self, error: Exception) -> None:
        """See `RankMember`."""
        self.state.give_up(error)

    def identified(self, identity: bytes) -> None:
        """Take rank 0's identity of the run, and show what this rank does."""
        known = msgspec.msgpack.decode(identity, type=RunIdentity)
        self._identify(known)
        self._share_records()
        self.place.away = self._own.on and bool(known.node) and known.node != node_identity()
        if known.on and self._own.on and not self._closed:
            self.state.link = _start_link(self)

    def in_loop(self) -> None:
        """Note that this thread trains, whether it computes alone, and once where it ends iterations."""
        self.train_in_this_thread()
        self.state.training.alone = _computes_alone()
        if self.state.training.loop is None:
            self.state.training.loop = _calling_lines()

    def train_in_this_thread(self) -> None:
        """Note that this thread is the one that trains, so that stacks are those of this thread."""
        training = self.state.training
        training.ident = threading.get_ident() if training.sampled else 0
        training.native = threading.get_native_id()
        training.task = running_task() if training.sampled else None

    def _identify(self, identity: RunIdentity) -> None:
        state = self.state
        state.id, state.epoch, state.nonce = identity.run, identity.epoch, identity.nonce
        state.inbox.epoch = identity.epoch

    def _share_records(self) -> None:
        """Let the link exchange the records of nodes, under keys that no other process of the run has had."""
        if self._store is not None:
            prefix = f"{self._agreement.prefix}job/{self.state.nonce}/"
            self.place.shared = JobStore(self._store, prefix)

    def _join(self, store: RankStore | None) -> None:
        """Take part in the run of several ranks, if there is a store to do so."""
        state = self.state
        try:
            if store is not None and store.world > 1:
                _open.add(self)
                own = self._own
                if own.on:  # it makes the directory of the daemon
                    own = msgspec.structs.replace(own, node=node_identity())
                self._store = store
                if store.rank == 0:
                    self._share_records()
                self._agreement.join(store, own, self)
                self.place.watch = self._agreement.watch
                state.rank, state.world = store.rank, store.world
                state.inbox.refusal = None
        except Exception as error:  # an error of hoptui must not reach the script
            self._agreement.dissolve()
            state.declarations.refuse_call("connect", error)

    def abandon(self) -> None:
        """Do nothing from now on, and leave everything as it is: this is a forked child."""
        self._agreement.abandon()
        self.state.disconnect()


def _calling_lines() -> tuple[CodeLine, ...]:
    """Return the calls that led here from outside of the SDK, the outermost first."""
    found: list[CodeLine] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < MOST_CALLS:
        code = frame.f_code
        if not code.co_filename.startswith(SDK):
            found.append(CodeLine(code.co_filename, frame.f_lineno or 0, code.co_qualname))
        frame = frame.f_back
    return tuple(reversed(found))


def _computes_alone() -> bool:
    """Whether torch computes on the CPU in the calling thread alone. False if it is not imported."""
    try:
        return bool(sys.modules["torch"].get_num_threads() == 1)
    except (KeyError, AttributeError):
        return False


class RunRecord:
    """What this process remembers of the last run of a name. `known` is its `state_dict`.

    It does not keep the run alive, which may hold a model through its knobs.
    """

    def __init__(self, core: weakref.ref[RunCore], thread: threading.Thread) -> None:
        self.core, self.thread = core, thread
        self.known: dict[str, Any] = {}


_runs: dict[str, RunRecord] = {}
"""The last run of each name."""


def _close_former(name: str) -> Mapping[str, Any]:
    """Close the run of this name that is still open. Return what its next restart has to know.

    A run that another thread has connected goes on. One that has ended is continued in a notebook alone.
    """
    record = _runs.get(name)
    core = record.core() if record is not None else None
    if record is None or (core is not None and core.open and _elsewhere(record.thread)):
        return {}
    if core is not None and core.open:
        core.close("stopped", "connected again")
        return core.state_dict()
    return record.known if in_notebook() else {}


def _elsewhere(thread: threading.Thread) -> bool:
    return thread is not threading.current_thread() and thread.is_alive()


def in_notebook() -> bool:
    """Return whether this is an interactive session of IPython, whose process outlives its loops."""
    return bool(getattr(builtins, "__IPYTHON__", False))


def ending(error: BaseException | None, without: Ending) -> tuple[Ending, str]:
    """Return why a run ends and the detail, given the exception that ends the script, or None."""
    if error is None:
        return without, ""
    if isinstance(error, KeyboardInterrupt):
        return "stopped", "interrupted from the keyboard"
    return "exception", f"{type(error).__name__}: {error}"


def whole(number: Any) -> int | None:
    """Return a count as a Python int, also if it is a number of numpy.

    None if it is not a number, or one that no message can carry.
    """
    try:
        found = None if number is None else int(number)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if found is None or -MOST_COUNT <= found <= MOST_COUNT else None


def _start_link(core: RunCore) -> LinkControl | None:
    try:
        from hoptui.sdk.daemon_link import DaemonLink

        link = DaemonLink(core.state, core, core.place)
        link.start()
    except Exception as error:
        log.warning("hoptui is off in this run: %s: %s", type(error).__name__, error)
        return None
    _open.add(core)
    return link


_open: weakref.WeakSet[RunCore] = weakref.WeakSet()
"""The runs to close at exit. Their threads keep them alive if the script dropped its `Run`."""


@atexit.register
def _close_all() -> None:
    for core in list(_open):
        core.close(None, "", at_exit=True)
    if RunCore.made:
        gloo_threads.wait_until_idle()
