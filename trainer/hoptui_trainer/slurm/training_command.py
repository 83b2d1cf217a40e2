"""The training command in a batch file, checked without training: a job may wait for days before it fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import cyclopts

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.job import JobOptions
from hoptui_trainer.common.options import KnobValues, check_options, declared, kept, option_name
from hoptui_trainer.lm.command import lm
from hoptui_trainer.lm.config import LMConfig
from hoptui_trainer.lm.job import LMOptions
from hoptui_trainer.lm.job import resolve_job as resolve_lm
from hoptui_trainer.ppo.command import ppo
from hoptui_trainer.ppo.config import PPOConfig
from hoptui_trainer.ppo.job import PPOOptions, make_plan
from hoptui_trainer.vision.command import vision
from hoptui_trainer.vision.config import VisionConfig
from hoptui_trainer.vision.job import VisionOptions
from hoptui_trainer.vision.job import resolve_job as resolve_vision

EXAMPLE = "hoptui train slurm --nodes 2 -- lm --preset 124m"

Check = Callable[[Any, KnobValues, int, bool], object]
"""Raises UsageError. Takes the options, the knobs, the ranks in all, and whether there are GPUs."""


class Workload(NamedTuple):
    """How the command line of a workload is read."""

    command: Callable[..., int]
    options: type[JobOptions]
    config: type
    check: Check


def _check_lm(job: LMOptions, knobs: KnobValues, world: int, on_gpu: bool) -> object:
    return resolve_lm(job, knobs, None, world=world, on_gpu=on_gpu)


def _check_ppo(job: PPOOptions, knobs: KnobValues, world: int, on_gpu: bool) -> object:
    return make_plan(dataclasses.replace(job, knobs=knobs), None, on_gpu=on_gpu)


def _check_vision(job: VisionOptions, knobs: KnobValues, world: int, on_gpu: bool) -> object:
    return resolve_vision(job, knobs, None, world=world, on_gpu=on_gpu)


WORKLOADS = {
    "ppo": Workload(ppo, PPOOptions, PPOConfig, _check_ppo),
    "lm": Workload(lm, LMOptions, LMConfig, _check_lm),
    "vision": Workload(vision, VisionOptions, VisionConfig, _check_vision),
}


class TrainingCommand(NamedTuple):
    """A training command that was checked.

    Args:
        words: what follows `hoptui train`.
        resuming: the same without `--resume` and knobs, which a checkpoint knows as they are by then.
        job: its options.
    """

    words: tuple[str, ...]
    resuming: tuple[str, ...]
    job: JobOptions

    @property
    def workload(self) -> str:
        return self.words[0]


def checked(words: Sequence[str], *, world: int, on_gpu: bool, has_folder: bool) -> TrainingCommand:
    """A training command whose options can all be met, as far as this machine can know.

    Data, memory and checkpoints are those of the cluster, and are not looked at. With `--resume` each value
    is checked, but not how they go together: that is up to the checkpoint.

    Args:
        words: what follows `hoptui train`.
        world: the ranks in all.
        on_gpu: whether each of them has a GPU.
        has_folder: whether there is a folder for checkpoints without `--checkpoint-dir`.

    Raises:
        UsageError: it is no training command, or an option is refused.
        CycloptsError: an option is unknown, or does not take such a value.
    """
    if not words or words[0].startswith("-"):
        raise UsageError(f"slurm: give the training command after a --, e.g. {EXAMPLE}")
    workload = WORKLOADS.get(words[0])
    if workload is None:
        raise UsageError(f"{words[0]}: this is no training command; there are {', '.join(WORKLOADS)}")
    app = cyclopts.App(name=words[0], version_flags=[], help_flags=[])
    app.default(workload.command)
    _, bound, _ = app.parse_args(list(words[1:]), exit_on_error=False, print_error=False)
    job: JobOptions = bound.arguments.get("job") or workload.options()
    knobs: KnobValues = bound.arguments.get("knobs") or {}
    check_options(workload.config, knobs)
    if job.device != "auto" and (job.device == "cuda") != on_gpu:
        remedy = "leave out --gpus-per-node 0" if job.device == "cuda" else "--gpus-per-node 0 asks for none"
        raise UsageError(
            f"--device {job.device}: the batch file is for {'GPUs' if on_gpu else 'CPUs'}; {remedy}"
        )
    local = job  # without a folder for checkpoints, which `check` would make on this machine
    if has_folder or job.checkpoint_dir is not None:
        local = dataclasses.replace(job, checkpoint_dir=None, checkpoint_every=0, keep_best=None)
    local.check()
    if job.resume is None:
        workload.check(job, knobs, world, on_gpu)
    kinds = {option_name(name): kind for name, kind, _ in declared(workload.config)}
    return TrainingCommand(tuple(words), tuple(kept(words, kinds)), job)
