"""How a supervised loop starts: its checkpoint, ranks and device, then its run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import hoptui
from hoptui_trainer.common.checkpoint import resumed
from hoptui_trainer.common.device import choose_device, choose_threads, set_threads
from hoptui_trainer.common.job import JobOptions
from hoptui_trainer.common.memory_budget import set_limit
from hoptui_trainer.common.meter import Meter
from hoptui_trainer.common.phases import PhaseClock, phase_clock
from hoptui_trainer.common.ranks import RankGroup, join
from hoptui_trainer.common.remedies import SMALLER_BATCHES
from hoptui_trainer.common.report import Console, silent
from hoptui_trainer.common.setup import check_resumed, explained, preparing
from hoptui_trainer.common.signals import StopOnSignal
from hoptui_trainer.common.smaller_model import Consent

SIZES = "--micro-batch"
"""The option that decides how much memory a step takes."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A process of a job before its run is open.

    `saved` is the checkpoint that the job resumes, None without one; `notes` are lines about it. `began` is
    when the process began, in monotonic seconds.
    """

    workload: str
    job: JobOptions
    saved: Mapping[str, Any] | None
    notes: tuple[str, ...]
    ranks: RankGroup
    device: torch.device
    console: Console
    began: float

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @contextmanager
    def resolving(self) -> Iterator[None]:
        """In here the job is resolved, once all ranks have the same checkpoint.

        Raises:
            UsageError: they have different ones, memory is too short, or the checkpoint does not fit.
        """
        with explained(self.resumed, SIZES):
            if self.job.resume:
                check_resumed(self.ranks, self.job.resume, self.saved)
            yield

    @property
    def resumed(self) -> Path | None:
        """What the job goes on from; None for a new run."""
        return self.job.resume if self.saved is not None else None


@dataclass(frozen=True, kw_only=True)
class ActiveRun:
    """The open run of a launch, with the clock of its phases and the meter of its rate."""

    launch: Launch
    run: hoptui.Run
    clock: PhaseClock
    meter: Meter
    signals: StopOnSignal

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """In here the training state is built; see `setup.preparing`.

        Raises:
            UsageError: memory is too short, or the checkpoint does not fit.
        """
        launch = self.launch
        with preparing(self.run, self.signals, launch.device), explained(launch.resumed, SIZES):
            yield

    @property
    def consent(self) -> Consent:
        """Whether the run may go on with a smaller model."""
        launch = self.launch
        world = launch.ranks.world
        return Consent(
            launch.job,
            self.run,
            launch.ranks,
            launch.device,
            lambda config: config.check(world),
            launch.console.say,
            tried=SMALLER_BATCHES,
        )

    def set_threads(self, samples: int, width: int) -> None:
        """Set the CPU threads of torch: `--threads`, else what suits pieces of `samples` tokens or patches
        in a network of that width."""
        launch = self.launch
        threads = choose_threads(samples, width)
        set_threads(launch.device, launch.job.threads or threads // launch.ranks.core_sharers)


@contextmanager
def launched(workload: str, job: JobOptions, write: Callable[[str], None]) -> Iterator[Launch]:
    """Check the options, read the checkpoint and join the ranks. The ranks part at the end.

    Args:
        write: takes the lines of the console, on rank 0 alone.

    Raises:
        UsageError: the job cannot be run as asked.
    """
    began = time.monotonic()
    job.check()
    set_limit(job.memory_limit)
    saved, notes = resumed(job.resume, workload)
    with join(job.device) as ranks:
        yield Launch(
            workload=workload,
            job=job,
            saved=saved,
            notes=notes,
            ranks=ranks,
            device=choose_device(job.device),
            console=Console(silent if job.json or ranks.rank else write),
            began=began,
        )


@contextmanager
def connected(launch: Launch, name: str) -> Iterator[ActiveRun]:
    """Open the run of that name, or the next epoch of the one that is resumed. It ends at the end.

    A signal stops the run, and so does a console that cannot be written to.
    """
    resume = launch.saved["run"] if launch.saved else None
    run = hoptui.connect(name, total=launch.job.iterations, resume=resume, ranks=launch.ranks.store)
    launch.console.unread = run.stop
    clock, meter = phase_clock(run, launch.device), Meter(launch.device)
    with StopOnSignal(run) as signals, run, launch.ranks.guard(run):
        yield ActiveRun(launch=launch, run=run, clock=clock, meter=meter, signals=signals)
