"""What every training loop does beside learning: checkpoints, restarts, traces, progress lines and the
result."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

import hoptui
from hoptui_trainer.common.checkpoint_writer import CheckpointWriter, Content
from hoptui_trainer.common.device import wait_for
from hoptui_trainer.common.errors import ShortMemoryError
from hoptui_trainer.common.evaluations import Evaluations
from hoptui_trainer.common.gradient import SingleSampleError
from hoptui_trainer.common.job import JobOptions
from hoptui_trainer.common.kept_weights import KeptWeights
from hoptui_trainer.common.launch import ActiveRun
from hoptui_trainer.common.memory import (
    greatest_bytes,
    is_out_of_memory,
    pressure,
    prove_first_step,
    release,
    reset_peak,
    shortage,
)
from hoptui_trainer.common.metrics import DelayedMetrics, Finished, measured
from hoptui_trainer.common.phases import PhaseClock
from hoptui_trainer.common.ranks import RankGroup, restarts
from hoptui_trainer.common.remedies import SMALLER_BATCHES
from hoptui_trainer.common.report import Console, Ending, plural
from hoptui_trainer.common.restart import Restart
from hoptui_trainer.common.signals import STOPPED, StopOnSignal
from hoptui_trainer.common.smaller_model import Consent
from hoptui_trainer.common.supervised_state import SupervisedState
from hoptui_trainer.common.tracer import Tracer

R = TypeVar("R")

Progress = Callable[[Finished, float], list[str]]
"""From an iteration and the samples per second since the last line to the parts of a line."""


class RunResult(Protocol):
    """The result of a run."""

    def sentence(self) -> str:
        """For users."""

    def json(self) -> str:
        """One line of JSON."""


class TrainingSession:
    """One run of a training loop in this process.

    `ending` is the reason why the run ends. `over` is true once an evaluation has ended it, `replaced` once a
    new process is to go on.

    Args:
        workload: its name, as in `hoptui train WORKLOAD`.
        config: the dataclass that declares the workload's knobs.
        content: what a checkpoint holds; see `CheckpointWriter`.
        evaluations: those of the run, which its checkpoints keep.
        consent: whether it may go on with a smaller model.
        signals: those that stop it.
    """

    def __init__(
        self,
        workload: str,
        job: JobOptions,
        run: hoptui.Run,
        ranks: RankGroup,
        device: torch.device,
        console: Console,
        config: type,
        content: Content,
        evaluations: Evaluations,
        clock: PhaseClock,
        consent: Consent,
        signals: StopOnSignal,
    ) -> None:
        self._signals = signals
        self.job, self.run, self.ranks, self.device, self.console = job, run, ranks, device, console
        self.evaluations, self.clock, self.consent = evaluations, clock, consent
        self.ending: Ending = "finished"
        self.replaced = False
        self._why = ""
        self.checkpoints = CheckpointWriter(run, ranks, workload, job.checkpoint_dir, content, console.say)
        self.restart = Restart(run, ranks, self.checkpoints, config, job.checkpoint_dir, console.say)
        planned = None if restarts(os.environ) else job.trace  # a restart goes on with the same command line
        self.tracer = Tracer(run, workload, job.trace_folder, ranks.rank, planned, console.say)

    def report_new_weights(self, kept: KeptWeights | None) -> None:
        """Report on the time axis that the model does not go on with all weights of its checkpoint."""
        if kept is not None:
            self.run.event(str(kept), level="warning")

    @property
    def over(self) -> bool:
        return self.ending in ("passed", "early-stopped")

    @contextmanager
    def apart(self, phase: str) -> Iterator[None]:
        """In here is a phase that is no part of training, such as an evaluation."""
        with self.clock.waited(phase):
            yield

    def cautions(self) -> tuple[str, ...]:
        """What a user should know before the first iteration."""
        if self.job.patience and (missing := self._not_kept()):
            return (f"the weights of the best evaluation are not kept{missing}",)
        return ()

    def _not_kept(self) -> str:
        """Why the options do not keep the best weights; empty if they do."""
        if self.job.keep_best is False:
            return ": --no-keep-best"
        return "" if self.checkpoints.best is not None else ": that needs --checkpoint-dir"

    def judge(self, figures: Mapping[str, float], iteration: int) -> None:
        """Log an evaluation after `iteration` iterations, keep the weights if they are the best so far, and
        end the run if it has reached what was asked for or its patience is over. All ranks call it."""
        record, patience = self.evaluations, self.job.patience
        figures = self.ranks.gather(dict(figures))[0]  # all ranks decide alike
        better = record.add(figures, iteration)
        self.run.log(figures)
        if better:
            self._keep_best()
        if reached := self.job.reached(figures):
            self.ending, self._why = "passed", reached
        elif 0 < patience <= record.since_best and iteration < self.job.iterations:
            times = f"{patience:,} {plural(patience, 'evaluation')}"
            self.ending, self._why = "early-stopped", f"no better {record.metric} in {times}"

    def _keep_best(self) -> None:
        """Write the weights of now to the file of the best ones, if there is a folder for it."""
        record, path = self.evaluations, self.checkpoints.best
        if path is None or self.job.keep_best is False:
            record.file = None
            return
        first, record.file = record.file != path, path
        with self.apart("checkpoint"):
            kept = self.checkpoints.keep_best(first=first)
        if not kept and not self.ranks.rank:
            record.file = None

    def shrink(self, config: Any, why: str, anew: Mapping[str, int]) -> None:
        """Go on in a new process with a smaller model, if the user agrees; the loop is to be left then.
        `anew` are knobs that its checkpoint has with these values. All ranks call it.

        Raises:
            ShortMemoryError: there is none, or it is not wanted; the checkpoint is written.
        """
        helps = self.consent.remedies(config, tried=SMALLER_BATCHES)
        for name, value in anew.items():
            setattr(config, name, value)
        if values := self.consent.smaller(config, why):
            problem = self.restart.force(values)
            if not problem:
                return
            why = f"{why}; {problem}"
        if self.job.checkpoint_dir is None:
            helps += "; there is no checkpoint, which needs --checkpoint-dir"
        self.checkpoints.attempt()
        raise ShortMemoryError(f"{why}; {helps}")

    def end(self) -> None:
        """Finish queued work and write the last checkpoint: after the loop, while the run is open.

        A run that an evaluation has ended is closed here, with its ending and the reason for viewers.
        """
        wait_for(self.device)
        self.tracer.close()
        if self.run.stopping and self.ending == "finished":
            self.ending = "stopped"
        self.replaced = self.restart.leave()
        if not self.replaced:
            self.checkpoints.attempt()
            self._report_signal()
            if self.over:
                self.run.close("finished", f"{self.ending}: {self._why}")

    def _report_signal(self) -> None:
        """Write the file that `STOPPED` names, if a signal to any rank has stopped the run."""
        path = os.environ.get(STOPPED)
        if not path or self.ending != "stopped":
            return
        if any(self.ranks.gather(self._signals.received)) and self.ranks.rank == 0:
            with suppress(OSError):  # no reason to fail: then nothing reports the signal, and the job ends
                Path(path).touch()

    def announce(self, result: RunResult, write: Callable[[str], None]) -> None:
        """Print the result, unless a new process goes on: that one prints it."""
        if self.replaced:
            return
        if self._why:
            self.console.say(f"{self.ending}: {self._why}")
        if best := self._best():
            self.console.say(best)
        self.console.say(result.sentence())
        if self.job.json and self.ranks.rank == 0:
            write(result.json())

    def _best(self) -> str:
        """Which evaluation was the best, and where its weights are; empty without evaluations."""
        record = self.evaluations
        if record.best_iteration is None:
            return ""
        found, at = record.best[record.metric], record.best_iteration
        value = f"best {record.metric} {found:.4f} after iteration {at:,}"
        if record.file is not None:
            return f"{value}: its weights are in {record.file}"
        return f"{value}: its weights are not kept{self._not_kept()}"


class SupervisedSession(TrainingSession):
    """The session of a supervised loop.

    Args:
        about: what a checkpoint holds beside the state.
        progress: the parts of a progress line.
    """

    def __init__(
        self,
        active: ActiveRun,
        state: SupervisedState[Any, Any],
        *,
        about: Mapping[str, str],
        progress: Progress,
    ) -> None:
        launch = active.launch
        self.state, self.meter = state, active.meter
        self._launch, self._progress = launch, progress
        self._metrics: Mapping[str, Tensor] = {}
        self._delayed = DelayedMetrics(state.device)
        self._reported = 0
        super().__init__(
            launch.workload,
            launch.job,
            active.run,
            state.ranks,
            state.device,
            launch.console,
            type(state.config),
            lambda: (state.iteration, {**state.state_dict(), **about}),
            state.evaluations,
            active.clock,
            active.consent,
            active.signals,
        )

    def begin(self, lines: Iterable[str]) -> None:
        """Print the introduction, and try out the sizes of the first step."""
        self._report_smaller_pieces()
        self.report_new_weights(self.state.kept)
        self.console.begin((*self._launch.notes, *lines, *self.cautions()))
        prove_first_step(self.ranks, self.state.prove_sizes)
        reset_peak(self.device)
        self._reported = self.state.position

    def _report_smaller_pieces(self) -> None:
        """Print a line as well where micro-batches are halved because memory ran out."""
        report = self.state.on_smaller

        def smaller(before: int, now: int) -> None:
            report(before, now)
            self.console.say(f"memory ran out with micro-batches of {before}: pieces of {now} instead")

        self.state.on_smaller = smaller

    def iterations(self) -> Iterator[int]:
        """Yield the iterations that are left, until the run stops, passes, or needs a new process."""
        for iteration in self.run.iterations(self.job.iterations, start=self.state.iteration):
            if self.restart.due():
                return
            yield iteration
            if self.over:
                return

    def step(self, update: Callable[[], R]) -> R | None:
        """What `update` returns; None if the loop is to be left for a process with a smaller model.

        Raises:
            ShortMemoryError: memory is too short for a single sample; the checkpoint is written.
        """
        try:
            return update()
        except (RuntimeError, MemoryError) as error:
            # Beside other ranks, only the first is raised on all of them.
            agreed = isinstance(error, SingleSampleError)
            if not agreed and (self.ranks.world > 1 or not is_out_of_memory(error)):
                raise
            why = "memory ran out with a single sample in a piece" if agreed else shortage(error)
        self.state.gradient.clear()
        release(self.device)
        anew = {"micro_batch": 0, **({"checkpointing": False} if self.state.own_checkpointing else {})}
        self.shrink(self.state.config, why, anew)
        return None

    def learned(self, metrics: Mapping[str, Tensor], work: int, ideal: float | None, **row: float) -> None:
        """Count an iteration and log its metrics, with the other figures of its `row`.

        Args:
            metrics: 0-d tensors on the device.
            work: the tokens or images of the iteration.
            ideal: the seconds that they take at the GPUs' peak; None where that means nothing.
        """
        self.state.iteration += 1
        self._metrics = metrics
        self.meter.add(work, ideal)
        self.run.log({**measured(metrics, self.device), **row})
        self.meter.begin()  # The first iteration is over, and with it what had to be compiled.

    @contextmanager
    def apart(self, phase: str) -> Iterator[None]:
        """In here is a phase that the steady rate leaves out, such as an evaluation."""
        with self.meter.apart(), self.clock.waited(phase):
            yield

    def end_iteration(self) -> None:
        """Write a checkpoint and a progress line where they are due."""
        state, console = self.state, self.console
        if self.job.checkpoint_due(state.iteration):
            with self.apart("checkpoint"):
                self.checkpoints.attempt()
        self.clock.end_iteration()
        if (seconds := console.due()) > 0:
            self.run.log(pressure(self.device))
        finished = Finished(state.iteration, state.position, self._metrics)
        if done := self._delayed.ready(finished, due=seconds > 0):
            console.line(self._progress(done, (done.work - self._reported) / seconds))
            self._reported = done.work
        self.tracer.end_iteration()

    def end(self) -> None:
        """Finish queued work and write the last checkpoint: after the loop, while the run is open."""
        self.meter.pause()
        super().end()

    def figures(self) -> dict[str, Any]:
        """The fields of `SupervisedResult`, after `end`."""
        return {
            "ending": self.ending,
            "iterations": self.state.iteration,
            "restarts": restarts(os.environ),
            "seconds": time.monotonic() - self._launch.began,
            "mfu": self.meter.mfu(),
            "peak_memory_bytes": greatest_bytes(self.device),
            "loss": float(self._metrics["loss"]) if self._metrics else None,
            "micro_batch": self.state.config.micro_batch,
            **self.evaluations.result(),
        }
