"""Checks and error messages for the time before the first iteration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import hoptui
from hoptui_trainer.common.device import gpu_uuid
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.memory import is_out_of_memory
from hoptui_trainer.common.ranks import RankGroup
from hoptui_trainer.common.signals import StopOnSignal


@contextmanager
def preparing(run: hoptui.Run, signals: StopOnSignal, device: torch.device) -> Iterator[None]:
    """In here a run is made ready for its first iteration: it compiles and measures sizes, which takes up to
    minutes.

    Viewers see it meanwhile, on its GPU and in the phase `setup`. A signal ends it at once.
    """
    if uuid := gpu_uuid(device):
        run.gpus([uuid])
    with signals.aside(), run.phase("setup"):
        yield


@contextmanager
def explained(resume: Path | None, sizes: str) -> Iterator[None]:
    """In here a run is set up.

    Args:
        resume: the checkpoint that it goes on from.
        sizes: the options that decide how much memory a step takes.

    Raises:
        UsageError: memory is too short, or the checkpoint is not one of this trainer's.
    """
    try:
        yield
    except MemoryError as error:
        raise UsageError(f"{sizes}: {error}") from None
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise UsageError(f"--preset, {sizes}: too large for the memory that there is") from None
        if resume is None:
            raise
        raise UsageError(f"--resume {resume}: it does not fit this trainer ({error!r})") from None


def check_resumed(ranks: RankGroup, resume: Path | None, saved: Mapping[str, Any] | None) -> None:
    """Refuse to go on from other checkpoints on some ranks than on others: each reads its own machine's disk.
    None is a new run.

    Raises:
        UsageError: they are not of one run and one iteration; on all ranks.
    """
    own = (saved["run"]["run"], saved["iteration"]) if saved is not None else None
    check_alike(ranks, own, f"--resume {resume}", "a checkpoint")


def check_alike(ranks: RankGroup, own: object, option: str, what: str) -> None:
    """Refuse to train on ranks that have not begun with the same: machines without a common disk may hold
    other files.

    Args:
        own: what must be the same on all; `what` it is, in words.
        option: the option that names its source.

    Raises:
        UsageError: a rank has another one; raised on all ranks.
    """
    of_all = ranks.gather(own)
    other = next((rank for rank, theirs in enumerate(of_all) if theirs != of_all[0]), None)
    if other is not None:
        raise UsageError(f"{option}: rank {other} has {what} other than rank 0's; all machines need the same")
