"""The state of one run that the training thread and the link thread share: what the run declares (its knobs,
metrics, GPUs, cost and handlers), its rows, and the phases of an iteration.

There are no locks: each field is one number or one reference, and the queues are deques. The training thread
writes. The link thread writes only `id` and `epoch` (as the daemon asks), `paused_until`, `off` and `alive`.
"""

from __future__ import annotations

import inspect
import logging
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from hoptui.domain import traces
from hoptui.domain.code_lines import CodeLine
from hoptui.domain.facts import Fact, clean_text, exception_text, fact
from hoptui.domain.knobs import MOST_NAMED, KnobError, KnobSpec, KnobValue, check_value
from hoptui.protocol.messages import JOB_ENDED, OFF, STACKS_ENDED, Command, Flops, Note
from hoptui.sdk.command_inbox import DECLINED, CommandInbox
from hoptui.sdk.details import DetailsBook
from hoptui.sdk.knob_declarations import (
    Knob,
    annotated,
    check_choice,
    field_reader,
    field_setter,
    knob_spec,
)
from hoptui.sdk.knobs import KnobHandle, LiveKnob
from hoptui.sdk.metric_values import MetricConverter, QueuedRow, clean_name
from hoptui.sdk.optimizer_memory import OptimizerMemory
from hoptui.sdk.rank_store import RankStore
from hoptui.sdk.suspended_task import TaskRef

log = logging.getLogger("hoptui")
V = TypeVar("V", bound=KnobValue)
Apply = Callable[[Any], object]
Read = Callable[[], Any]

MOST_DECLINED = 64
MOST_REFUSED, LONGEST_REFUSED = 32, 300
"""What is kept of declarations and calls that are not accepted, and the characters of each problem."""
PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")


def _problem(error: Exception) -> str:
    text = str(error) if isinstance(error, KnobError) else exception_text(error)
    return clean_text(text, LONGEST_REFUSED)


class Declarations:
    """The declarations of one run.

    `refused` is what is not accepted.

    `revision` rises with each change, and the link thread then sends all of them again. `on_revert` is called
    after the training script has reverted a knob: the knob, the value before, the reason. `on_hold` is called
    once a value holds that was to take effect later. `declined`: the commands and knobs that the
    script does not offer, with the reasons. `replaceable`: the knobs that are declared again when the script
    changes its optimizer. `optimizers`: the memory of those that were declared.
    """

    def __init__(self) -> None:
        self.knobs: dict[str, LiveKnob[Any]] = {}
        self.declined: dict[str, str] = {}
        self.units: dict[str, str] = {}
        self.headline = ""
        self.gpu_uuids: tuple[str, ...] = ()
        self.flops: Flops | None = None
        self.optimizers = OptimizerMemory()
        self.checkpoint_handler: Callable[[], object] | None = None
        self.profile_handler: Callable[..., object] | None = None
        self._profile_options: tuple[str, ...] = ()
        self.replaceable: set[str] = set()
        self.revision = 0
        self.refused: list[Fact] = []
        self.on_revert: Callable[[LiveKnob[Any], KnobValue, Fact], object] | None = None
        self.on_hold: Callable[[LiveKnob[Any], Fact | None], object] | None = None

    def declare_knob(
        self, name: str, default: V, apply: Apply | None, read: Read | None, **fields: Any
    ) -> KnobHandle[V]:
        """Declare a knob. `fields` are those of `Knob`; `choices` may be any sequence."""
        try:
            fields["choices"] = tuple(fields["choices"])
            handle = self.declare(Knob(**fields), name, default, apply, read)
        except Exception as error:
            self.refuse(name, error)
            return KnobHandle(LiveKnob(KnobSpec(name=str(name), kind="str", default=""), default))
        return handle

    def declare(
        self, declaration: Knob, name: str, default: V, apply: Apply | None, read: Read | None
    ) -> KnobHandle[V]:
        """Declare a knob.

        Raises:
            KnobError: the declaration contradicts itself.
        """
        spec = knob_spec(declaration, name, default)
        if spec.cost == "restart" and read is None:

            def read() -> V:
                return default  # only a new process has another value

        return self._add(LiveKnob(spec, default, apply, read))

    def refuse(self, name: object, error: Exception) -> None:
        """Report a declaration that is not accepted. The rest of the run is not concerned."""
        self.report(fact("knob.refused", knob=clean_name(name), problem=_problem(error)))

    def refuse_call(self, call: str, error: Exception) -> None:
        """Report a call of the script that could not be carried out."""
        self.report(fact("call.refused", call=call, problem=_problem(error)))

    def report(self, found: Fact) -> None:
        """Report once what is not accepted: in the log, and to viewers."""
        if found in self.refused or len(self.refused) >= MOST_REFUSED:
            return
        self.refused.append(found)
        self.revision += 1
        log.warning("hoptui: %s", ": ".join(map(str, found.fields.values())))

    def declare_fields(
        self, config: object, apply: Mapping[str, Apply], read: Mapping[str, Read], without: Collection[str]
    ) -> dict[str, KnobHandle[Any]]:
        """Declare the fields of a dataclass instance that are annotated with a `Knob`."""
        handles = {}
        for name, declaration, kind in annotated(config):
            if name in without:
                continue
            try:
                spec = knob_spec(declaration, name, getattr(config, name), kind)
            except Exception as error:
                self.refuse(name, error)
                continue
            after = apply.get(name)
            put = after if spec.cost == "restart" else field_setter(config, name, after)
            handles[name] = self._add(
                LiveKnob(spec, spec.default, put, read.get(name) or field_reader(config, name))
            )
        return handles

    def decline(self, name: str, reason: str) -> None:
        """Decline a command, or a knob of this name, from now on. An empty reason ends that."""
        name = clean_name(name)
        if not reason:
            self.declined.pop(name, None)
        elif name in self.declined or len(self.declined) < MOST_DECLINED:
            self.declined[name] = clean_text(reason, LONGEST_REFUSED)
        self.revision += 1

    def declare_metric(self, name: str, unit: str, headline: bool) -> None:
        """Set the unit of a metric, and make it the headline if asked to."""
        name = clean_name(name)
        self.units[name] = clean_name(unit)
        if headline:
            self.headline = name
        self.revision += 1

    def declare_gpus(self, uuids: Sequence[str]) -> None:
        """Set the UUIDs of the GPUs of this process."""
        self.gpu_uuids = tuple(map(clean_name, [uuids] if isinstance(uuids, str) else uuids))
        self.revision += 1

    def declare_flops(self, per_unit: float, metric: str, precision: str) -> None:
        """Set the cost of a unit of work. A number that is not positive and finite removes it."""
        check_choice("precision", precision, PRECISIONS)
        cost = Flops(per_unit=float(per_unit), metric=clean_name(metric), precision=precision)
        self.flops = cost if cost.per_unit > 0 and math.isfinite(cost.per_unit) else None
        self.revision += 1

    def declare_checkpoint_handler(self, save: Callable[[], object]) -> None:
        """Set the function that writes a checkpoint."""
        self.checkpoint_handler = save
        self.decline("checkpoint", "")

    def declare_profile_handler(self, start: Callable[..., object]) -> None:
        """Set the function that starts a trace. Its keyword parameters are the options that it offers."""
        self.profile_handler = start
        self._profile_options = tuple(filter(_parameters(start).__contains__, traces.OPTIONS))
        self.decline("profile", "")

    def verbs(self) -> tuple[str, ...]:
        """Return the commands that this run can carry out, and the options of `profile`."""
        with_handler = {"checkpoint": self.checkpoint_handler, "profile": self.profile_handler}
        return (
            "set",
            "pause",
            "resume",
            "stop",
            *(verb for verb, handler in with_handler.items() if handler),
            *map(traces.declared, self._profile_options),
        )

    def objection(self, command: Command) -> Fact | None:
        """Return why a `set`, `checkpoint` or `profile` command cannot be carried out, None if it can."""
        if command.verb != "set":
            handler = self.checkpoint_handler if command.verb == "checkpoint" else self.profile_handler
            return None if handler else fact("unsupported", verb=command.verb)
        knob = self.knobs.get(command.knob)
        if knob is None and command.knob in self.declined:
            return fact(DECLINED, knob=command.knob, reason=self.declined[command.knob])
        if knob is None:
            return fact("unknown_knob", knob=command.knob, known=list(self.knobs)[:MOST_NAMED])
        try:
            check_value(knob.spec, command.value)
        except KnobError as error:
            return fact(error.code, spec=knob.spec, value=command.value)
        return None

    def _add(self, knob: LiveKnob[V]) -> KnobHandle[V]:
        try:
            knob.refresh()
        except Exception as error:
            log.warning("hoptui: reading %s back raised %s; its declared value is shown", knob.name, error)
        knob.on_revert(self._reverted)
        knob.on_hold(self._held)
        if (former := self.knobs.get(knob.name)) is not None:
            knob.succeed(former)
            if knob.name not in self.replaceable:
                self.report(fact("knob.again", knob=knob.name))
        self.knobs[knob.name] = knob
        self.revision += 1
        return KnobHandle(knob)

    def _held(self, knob: LiveKnob[Any], problem: Fact | None) -> None:
        if self.on_hold is not None:
            self.on_hold(knob, problem)

    def _reverted(self, knob: LiveKnob[Any], before: KnobValue, why: Fact) -> None:
        self.revision += 1
        if self.on_revert is not None:
            self.on_revert(knob, before, why)


ROWS_KEPT = 4096
NOTES_KEPT = 256
Ending = Literal["finished", "stopped", "exception"]
Level = Literal["info", "warning"]


class LinkControl(Protocol):
    """The link thread for the training thread."""

    def wake(self) -> None: ...
    def close(self, reason: Ending, detail: str, *, at_exit: bool = False) -> None: ...
    def leave(self) -> None: ...
    def part(self) -> None: ...


class JobStore(NamedTuple):
    """What the ranks share, and the prefix of the keys for the records of their nodes."""

    store: RankStore
    prefix: str


class JobPlace:
    """Where a process is among the nodes of its run.

    `away`: rank 0 is on another node. `shared` is what the ranks share, None for a process that is alone.
    `watch` is what the link thread calls about once a second, None for nothing.
    """

    def __init__(self) -> None:
        self.away = False
        self.shared: JobStore | None = None
        self.watch: Callable[[], object] | None = None


class TrainingThread:
    """The thread that passes the boundaries. `ident` is 0 if its stack is not to be sampled.

    `native` is the kernel's number of it. `sampled` is whether the script and `HOPTUI_STACKS` let its stack
    be sampled. `loop` has the calls in which it ended the first iteration, the outermost first. It is None
    before that. `alone`: when it was last looked at, once a second, torch used no other threads to compute on
    the CPU. `task` is the task of asyncio that passes them, None without one.
    """

    __slots__ = ("alone", "ident", "loop", "native", "sampled", "task")

    def __init__(self) -> None:
        self.ident = self.native = 0
        self.sampled = True
        self.alone = False
        self.loop: tuple[CodeLine, ...] | None = None
        self.task: TaskRef | None = None


class SharedState:
    """The state of one run.

    Attributes:
        training: The thread that passes the boundaries, and where it does so.
        rank: Index of this process among the `world` processes of the run.
        step: The iteration in progress.
        began: Whether the first iteration has begun.
        progress: Monotonic seconds of the last boundary.
        alive: Whether hoptui shows this run and takes commands for it.
        off: The error that ended that, None without one.
        stopping: Whether the loop ends at this boundary; all ranks agreed on it.
        stop_by: Who asked for that.
        paused: Whether all ranks agreed to wait.
        paused_until: The end of rank 0's pause lease in monotonic seconds, 0.0 without a pause.
        rows: Rows for the link thread. The oldest are dropped first.
        rows_added: How many rows were ever added.
        link_sleeps: Whether the link thread does not look for rows soon. Who adds a row then wakes it.
    """

    def __init__(self, name: str, total: int | None, details: DetailsBook | None = None) -> None:
        self.name = name
        self.id = ""
        self.epoch = 0
        self.nonce = ""
        self.total = total
        self.started = time.monotonic_ns()
        self.training = TrainingThread()
        self.rank, self.world = 0, 1
        self.declarations = Declarations()
        self.details = details or DetailsBook(None, (), "")
        self.inbox = CommandInbox(
            self.declarations.knobs,
            self.declarations.verbs,
            self.declarations.declined,
        )
        self.phases = PhaseTimes()
        self.converter = MetricConverter()
        self.notes: deque[Note] = deque(maxlen=NOTES_KEPT)
        self.rows: deque[QueuedRow] = deque(maxlen=ROWS_KEPT)
        self.rows_added = 0
        self.step = 0
        self.began = False
        self.progress = time.monotonic()
        self.alive = True
        self.off: Fact | None = None
        self.stopping = False
        self.stop_by = ""
        self.paused = False
        self.paused_until = 0.0
        self.boundary_wake = threading.Event()
        self.link: LinkControl | None = None
        self.link_sleeps = False

    # called by the training thread --------------------------------------------------------------------------

    def note(self, text: str, level: Level = "info") -> None:
        """Queue a note of the training script for the time axis. Only rank 0 does."""
        self._queue(Note(t=time.monotonic_ns(), step=self.step, text=clean_text(text, 500), level=level))

    def warn(self, fact: Fact) -> None:
        """Queue a warning for the time axis. Only rank 0 does."""
        note = Note(
            t=time.monotonic_ns(), step=self.step, code=fact.code, fields=fact.fields, level="warning"
        )
        self._queue(note)

    def lose_stacks(self, error: Exception) -> None:
        """Report that the stack of this run is not sampled any more. Safe in any thread."""
        found = fact(STACKS_ENDED, problem=_problem(error))
        self.declarations.report(found)
        self.warn(found)

    def lose_job(self, error: Exception) -> None:
        """Report that the ranks of other nodes are not shown any more. Safe in any thread."""
        found = fact(JOB_ENDED, problem=_problem(error))
        self.declarations.report(found)
        self.warn(found)

    def _queue(self, note: Note) -> None:
        if self.alive and self.rank == 0:
            self.notes.append(note)

    def wake_link(self) -> None:
        """Have the link thread send at once."""
        if self.link is not None:
            self.link.wake()

    def wake_sleeping_link(self) -> None:
        """Have the link thread look for rows, once."""
        self.link_sleeps = False
        self.wake_link()

    def give_up(self, error: Exception) -> None:
        """Switch hoptui off in this run after an internal error. Training goes on."""
        self.switch_off(f"{type(error).__name__}: {error}")

    def switch_off(self, reason: str) -> None:
        """Switch hoptui off in this run, in the log and for viewers. Safe in both threads."""
        log.warning("hoptui is off in this run: %s. Training goes on.", reason)
        self.off = fact(OFF, error=clean_text(reason, 200))
        self.disconnect()

    def disconnect(self) -> None:
        """Show nothing and take no commands from now on. Safe in both threads."""
        self.alive = False
        self.paused_until = 0.0

    # called by the link thread ------------------------------------------------------------------------------

    def renew_pause(self, seconds: float) -> None:
        """Renew the lease of a pause."""
        if self.paused_until:
            self.paused_until = time.monotonic() + seconds

    def wake_boundary(self) -> None:
        """Have a paused loop look for commands at once."""
        self.boundary_wake.set()


LEAST_SPAN_S = 0.05
"""A stretch of a phase that is shorter is not reported: no sample of a GPU has a shorter window."""
SPANS_KEPT = 256
LATEST_S = 1e9
"""No machine is up for thirty years."""
PhaseStretch = tuple[str, float, float]
"""The path of a phase, and when it began and ended: monotonic seconds."""


class PhaseTimes:
    """The phases of the iteration in progress. `current` is the path of the innermost one.

    `spans` are long stretches of phases that the link has not sent yet. `entered` are the phases that end
    with `leave`, and those from `floor` on began inside the innermost `with` block. `seconds` are those of
    this iteration, by path.
    """

    def __init__(self) -> None:
        self.current = ""
        self.since = time.monotonic()
        self.spans: deque[PhaseStretch] = deque(maxlen=SPANS_KEPT)
        self.entered: list[PhaseTimer] = []
        self.floor = 0
        self.seconds: dict[str, float] = {}

    def add(self, path: str, seconds: float) -> None:
        """Add time to a phase of this iteration."""
        self.seconds[path] = self.seconds.get(path, 0.0) + seconds

    def stretch(self, path: str, start: float, end: float) -> None:
        """Add a stretch of a phase: monotonic seconds. Times that cannot be are ignored."""
        if start > 0 and start + LEAST_SPAN_S <= end < LATEST_S:
            self.spans.append((path, start, end))

    def enter(self, name: str) -> None:
        """Begin a phase that ends with `leave`, or at the next boundary."""
        timer = PhaseTimer(self, name)
        timer.begin()
        self.entered.append(timer)

    def leave(self, name: str | None) -> None:
        """End the innermost phase that was entered, or all up to the one of this name, if there is one."""
        depth = len(self.entered) - 1
        if name is not None:
            while depth >= self.floor and self.entered[depth].name != name:
                depth -= 1
        if depth >= self.floor:
            self.close_from(depth)

    def close_from(self, depth: int) -> None:
        """End the phases that were entered, from this depth on."""
        while len(self.entered) > depth:
            self.entered.pop().end()

    def close_all(self) -> None:
        """End the phases that were entered since the innermost `with` block began."""
        if len(self.entered) > self.floor:
            self.close_from(self.floor)

    def take(self) -> dict[str, float]:
        """Return the seconds by phase path since the last call, and start again from zero."""
        taken, self.seconds = self.seconds, {}
        return taken


class PhaseTimer:
    """The context manager of `run.phase`. It adds the time also if the body raises."""

    __slots__ = ("_floor", "_outer", "_phases", "_start", "name")

    def __init__(self, phases: PhaseTimes, name: str) -> None:
        self._phases = phases
        self.name = name

    def __enter__(self) -> None:
        phases = self._phases
        self._floor, phases.floor = phases.floor, len(phases.entered)
        self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        phases = self._phases
        if len(phases.entered) > phases.floor:
            phases.close_from(phases.floor)
        phases.floor = self._floor
        self.end()

    def begin(self) -> None:
        """Begin the phase."""
        phases = self._phases
        self._outer = phases.current
        phases.current = f"{self._outer}/{self.name}" if self._outer else self.name
        self._start = phases.since = time.monotonic()

    def end(self) -> None:
        """End the phase, and add its time."""
        phases = self._phases
        path, seconds = phases.current, phases.seconds
        now = time.monotonic()
        spent = now - self._start
        seconds[path] = seconds.get(path, 0.0) + spent
        if spent >= LEAST_SPAN_S:
            phases.spans.append((path, self._start, now))
        phases.current = self._outer
        phases.since = now


def _parameters(function: Callable[..., object]) -> set[str]:
    """Return the names of the parameters that can be passed by keyword."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # functions of C may have no signature
        return set()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in found):
        return set(traces.OPTIONS)
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {parameter.name for parameter in found if parameter.kind in by_name}


def new_run_id() -> str:
    """Return eight letters and digits that are hard to mistake for one another."""
    return "".join(secrets.choice("abcdefghjkmnpqrstuvwxyz23456789") for _ in range(8))
