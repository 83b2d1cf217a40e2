"""A simulated training process: real code of a run, and a script that keeps what it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hoptui.sdk.run import Run
from tests.simulation.ranks import Job, Member
from tests.simulation.samplers import GPUS
from tests.simulation.truth import Call, Incarnation, Setting, Value
from tests.simulation.tuned import TunedKnobs

if TYPE_CHECKING:
    from tests.simulation.node import Node

LOW, HIGH = 0.0, 1e9


class Refused(ValueError):  # noqa: N818 - what a training script raises
    """The setter of the script does not want a value."""


class Trainer:
    """A training process: iterations of `iteration_s` with one knob, `lr`."""

    def __init__(
        self, node: Node, name: str, iteration_s: float, before: Trainer | None, member: Member | None = None
    ) -> None:
        self.node, self.name, self.iteration_s, self.member = node, name, iteration_s, member
        self.run: Run | None = None
        self.knobs: TunedKnobs | None = None
        self.at_next_change: Callable[[], object] | None = None
        """Called once, when a value has been set that stays."""
        self.others: list[Trainer] = []
        """The other ranks of this run, if it is rank 0."""
        self.ends = False
        self.leaves = False  # goes on without hoptui
        self.refuses = 0.0  # chance that the setter raises
        self.odd: float | None = before.odd if before else None
        """What another knob of the script reads back, None without that knob."""
        self.checkpoint: dict[str, Any] = dict(before.checkpoint) if before else {}
        self.was = Incarnation(len(node.truth.processes), node.kernel.seconds)
        self.was.rank = member.rank if member is not None else 0
        self.was.iteration_s = iteration_s
        node.truth.processes.append(self.was)
        if self.checkpoint:
            self.was.value = self.checkpoint["knobs"]["lr"]
        self._first = self.was.value
        environ = node.environ() | ({"CUDA_VISIBLE_DEVICES": GPUS[0]} if node.serves else {})
        if member is not None:
            environ |= member.environ
        self.process = node.kernel.spawn(f"run {name}", self._main, environ)
        self.was.pid = self.process.pid
        self.process.at_end.append(self._over)
        if member is not None:
            member.job.watch(self.process)

    @property
    def world(self) -> int:
        return 1 + len(self.others)

    @property
    def job(self) -> Job | None:
        """What its ranks share, None for one process."""
        return self.member.job if self.member is not None else None

    @property
    def id(self) -> str:
        return self.was.run

    @property
    def _epoch(self) -> int:
        """The restart that the run has at this moment. A welcome may raise it between two boundaries."""
        return self.run._core.state.epoch if self.run is not None else 0

    def _main(self) -> None:
        while self._program():
            self._replace()

    def _program(self) -> bool:
        """Train until the end. True if another program shall take over this process."""
        kernel, was = self.node.kernel, self.was
        store = self.member.store if self.member is not None else None
        self.run = run = Run(self.name, resume=self.checkpoint or None, ranks=store, stacks=False)
        self._name(run)
        self._note_pauses(run)
        run.on_checkpoint(lambda: self._call("checkpoint"))
        run.on_profile(lambda _: self._call("profile"))
        run.knob("lr", float(was.value), min=LOW, max=HIGH, apply=self._apply, read=lambda: was.value)
        kept = self.checkpoint.get("knobs", {})
        knobs = (
            TunedKnobs(self.node.services, run, kept, lambda: kernel.seconds) if self.node.serves else None
        )
        self.knobs, has_odd = knobs, False
        while self._goes_on(run) and not self.ends:
            self._name(run)
            if wanted := run.restart_wanted:
                if self.member is None:
                    self.checkpoint = run.state_dict()
                    self.checkpoint["knobs"].update(wanted)
                    run.hand_over("checkpoint")
                    return True
                run.refuse_restart("the ranks stay")
            if self.odd is not None and not has_odd:
                run.knob("odd", 1.0, apply=lambda _: None, read=lambda: self.odd)
                has_odd = True
            pace = knobs.pace if knobs is not None else 1.0
            kernel.sleep(self.iteration_s * pace * kernel.random.uniform(0.8, 1.2))
            run.log(loss=row_value(was.number, was.steps))
            if knobs is not None:
                run.log(samples=knobs.batch)
            was.steps += 1
            if self.member is not None:
                self.member.add_gradients()
            self.checkpoint = run.state_dict()
        run.close()
        was.closed = True
        return False

    def _replace(self) -> None:
        """As `os.execv` does: the same process begins another program."""
        kernel, before = self.node.kernel, self.was
        others = [task for task in self.process.tasks if task is not kernel.current]
        for task in others:
            kernel.wait(lambda task=task: task.done, [task.joined])  # type: ignore[misc]
        self._over(killed=False)
        self.was = Incarnation(len(self.node.truth.processes), kernel.seconds, value=before.value)
        self.was.iteration_s, self.was.pid = before.iteration_s, before.pid
        self.node.truth.processes.append(self.was)
        self._first = before.value
        kernel.sleep(kernel.random.uniform(0.5, 4.0))  # imports, and loads the checkpoint

    def _name(self, run: Run) -> None:
        """Note the id of the run, which is rank 0's."""
        job = self.member.job if self.member is not None else None
        if job is not None and self.was.rank == 0:
            job.run = run.id
        self.was.run = run.id if job is None else job.run

    def _goes_on(self, run: Run) -> bool:
        """Come to a boundary, unless this rank has left the run."""
        job = self.job
        if job is None or self.was.rank not in job.left:
            if job is None or not self.leaves:
                return self._boundary(run)
            job.left.add(self.was.rank)
            run.close()
        if job.broken:
            self.process.kill()
        return True

    def _boundary(self, run: Run) -> bool:
        began = self.node.kernel.seconds
        going_on = run.boundary(self.was.steps)
        ended = self.node.kernel.seconds
        was = self.was
        if self.member is not None and self.member.job.broken:
            self.process.kill()  # its collectives fail. A stop of this boundary was decided alone
        if not going_on and was.stopped_at is None:
            was.stopped_at, was.stopped_step = was.boundaries + 1, was.steps
            was.stopped_epoch = self._epoch
        was.boundaries += 1
        if self.knobs is not None and self.was.rank == 0:
            self.knobs.note()
        if not was.trail or was.trail[-1][1] != was.value:
            was.trail.append((was.boundaries, was.value))
        if ended - began > 0.5:
            self.was.waits.append((began, ended))
        return going_on

    def _apply(self, value: Value) -> None:
        kernel = self.node.kernel
        undo = value == self._first or any(
            s.value == value or in_effect(s.value) == value for s in self.was.settings
        )
        raises = not undo and kernel.random.random() < self.refuses
        self.was.settings.append(Setting(value, kernel.seconds, self._epoch, undo, raises))
        self.process.operate()
        self.was.value = in_effect(value)
        if raises:  # half done, so hoptui must undo it
            raise Refused("the script refuses it")
        if (call := self.at_next_change) is not None:
            self.at_next_change = None
            call()

    def _call(self, verb: str) -> str:
        """Write a checkpoint, or start a trace."""
        was, kernel = self.was, self.node.kernel
        raises = kernel.random.random() < self.refuses
        was.calls.append(Call(verb, was.boundaries + 1, kernel.seconds, self._epoch, raises))
        self.process.operate()
        if raises:
            raise Refused("the script refuses it")
        return call_path(was.number, len(was.calls) - 1)

    def _note_pauses(self, run: Run) -> None:
        """Look at which boundaries this rank waits because the run is paused."""
        meeting, was = run._core.meeting, self.was
        wait = meeting._wait_while_paused

        def noted() -> None:
            was.pauses.append(was.boundaries + 1)
            wait()

        meeting._wait_while_paused = noted  # type: ignore[method-assign]

    def _over(self, killed: bool) -> None:
        was = self.was
        was.ended_s, was.killed = self.node.kernel.seconds, killed
        state = self.run._core.state if self.run is not None else None
        link: Any = state.link if state is not None else None
        if state is not None and link is not None:
            was.dropped, was.doubted = link._buffer.dropped, link._buffer.doubted
            was.unfinished = max(0, state.rows_added - was.steps)


def in_effect(value: Value) -> Value:
    """Return what the script makes of a value: it cannot have every one."""
    return value + 0.25 if int(value) % 4 == 3 and value == int(value) else value


def call_path(process: int, call: int) -> str:
    """Return what the handler for checkpoints says that it wrote. No other call says the same."""
    return f"/checkpoint {process}/{call}"


def row_value(process: int, step: int) -> float:
    """Return what a process logs at an iteration. No other row of the simulation has it."""
    return process * 1e6 + step
