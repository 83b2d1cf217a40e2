"""What fits into memory: counted before a rollout is made, because on a CPU the answer afterwards is the
kernel's, and measured for the pieces of a minibatch."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hoptui_trainer.common.auto_batch import MOST_SAMPLES
from hoptui_trainer.common.memory import SizeTrial, predicted_peak
from hoptui_trainer.common.memory_budget import usable_bytes
from hoptui_trainer.common.modes import Precision
from hoptui_trainer.common.precision import autocast
from hoptui_trainer.common.ranks import ALONE
from hoptui_trainer.ppo.coefficients import Coefficients
from hoptui_trainer.ppo.config import PPOConfig
from hoptui_trainer.ppo.envs.gym import GymTask
from hoptui_trainer.ppo.envs.physics import Physics
from hoptui_trainer.ppo.gae import sums
from hoptui_trainer.ppo.minibatches import Deal, cut, order, statistics_of
from hoptui_trainer.ppo.policies.policy import Policy
from hoptui_trainer.ppo.rollout import Rollout

CPU = torch.device("cpu")

TRIED = (16, 4)
"""The pieces whose memory is measured are these parts of a minibatch."""
STRIDE = 4
"""On a CPU, the next piece that is measured has so many times the units of the one before."""


SORTING = 32
"""Bytes a key that CUDA takes for itself while it sorts rows of them: measured on an H100 with torch 2.11."""

SORTS = (torch.ops.aten.sort.default, torch.ops.aten.sort.stable)

ROOMY = 1000
"""What is made beside a rollout's storage is less than so many times as much, whichever policy there is."""


class RolloutMemoryError(MemoryError):
    """A rollout does not fit, whatever the model."""


class NoRoomError(Exception):
    """Memory ran out on one of the ranks: in the rollout, or however small the pieces of a minibatch were.

    `rollout` is true if it was the rollout. `freed` is set where a rank has given back what was only kept for
    later: then it may fit now.
    """

    def __init__(self, text: str, *, freed: bool = False, rollout: bool = False) -> None:
        super().__init__(text)
        self.rollout = rollout
        self.freed = freed


class PeakMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors that are made in here and live at once: `peak` is the most of them.

    What a kernel takes for itself while it runs is not seen, but for sorting, where it is most of it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak: int = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {storage._cdata for storage in _storages((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        expired = [key for key, (held, _) in self._live.items() if held.expired()]  # type: ignore[no-untyped-call]
        for key in expired:
            del self._live[key]
        for storage in _storages(out):
            key = storage._cdata
            # Else it is a view, of something made before perhaps.
            if key not in self._live and key not in given:
                self._live[key] = StorageWeakRef(storage), storage.nbytes()  # type: ignore[no-untyped-call]
        aside = SORTING * args[0].numel() if func in SORTS else 0
        self.peak = max(self.peak, sum(nbytes for _, nbytes in self._live.values()) + aside)
        return out


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    return (leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def bytes_needed(config: PPOConfig, task: Physics | GymTask, policy: Policy, precision: Precision) -> int:
    """Bytes of a rollout, and of what is made beside it before the first piece of a minibatch, however small
    pieces are.

    Found by going through the very code with tensors that have sizes and no content, which takes some
    milliseconds. `precision` is the one acted in.
    """
    meta = torch.device("meta")
    weights = {id(held): held.detach().to(meta) for held in (*policy.parameters(), *policy.buffers())}
    hollow = copy.deepcopy(policy, weights)
    with PeakMode() as mode, torch.no_grad(), autocast(precision, CPU):
        rollout = _storage(config, task, hollow)
        rollout.begin(hollow)
        numbers = Coefficients(config, meta)
        rollout.estimate(
            hollow, gamma=numbers.gamma, gae_lambda=numbers.gae_lambda, reward_scale=numbers.reward_scale
        )
        sums(rollout.advantage, rollout.target)
        rows, steps = rollout.units // config.num_envs, rollout.sequence
        dealt = cut(config.num_envs, rows, steps, config.minibatch_size or MOST_SAMPLES, ALONE.world)
        deal = Deal(rollout.units, dealt.count, meta)
        deal.units.copy_(order(dealt, config.num_envs, ALONE, 0, 0, meta))
        statistics_of(rollout, dealt, deal.units, ALONE.world)
    return int(mode.peak)


def _storage(config: PPOConfig, task: Physics | GymTask, policy: Policy) -> Rollout:
    """A rollout's storage without content."""
    return Rollout(
        task,
        policy,
        config.rollout_len,
        config.num_envs,
        torch.device("meta"),
        longest_sequence=config.sequence_len,
    )


def check_memory(
    config: PPOConfig,
    task: Physics | GymTask,
    policy: Policy,
    precision: Precision,
    free: int,
    held: int = 0,
    limit: int | None = None,
    device: torch.device = CPU,
) -> int:
    """Refuse sizes that the `free` bytes of `device`, plus `held` bytes in use by the previous sizes, cannot
    hold.

    `limit` is what `--memory-limit` leaves beside all that is in use, None without it. `precision` is the one
    acted in. Returns the bytes needed; where there is plenty of room, those of the storage alone.

    Raises:
        RolloutMemoryError: one sentence with both figures.
    """
    free += held
    room = usable_bytes(device, free, None if limit is None else limit + held)
    stored = _storage(config, task, policy).nbytes
    if ROOMY * stored < room:
        return stored
    needed = bytes_needed(config, task, policy, precision)
    if needed > max(held, room):
        there = (
            f"{free / 1e9:.1f} GB are free"
            if limit is None
            else (f"--memory-limit leaves {room / 1e9:.1f} GB")
        )
        raise RolloutMemoryError(
            f"{config.num_envs} environments × {config.rollout_len} steps: about {needed / 1e9:.1f} GB, "
            f"and {there} for them"
        )
    return needed


def measured(share: int, measure: Callable[[int], SizeTrial | None]) -> list[SizeTrial]:
    """What two sizes of pieces of a minibatch of `share` units take; or only the smaller, if the larger does
    not fit.

    Raises:
        MemoryError: neither does.
    """
    trials: list[SizeTrial] = []
    for least, part in enumerate(TRIED, 1):
        size = max(least, share // part)
        trial = measure(size) if size <= share else None
        if trial is None:
            break
        trials.append(trial)
    if not trials:
        raise MemoryError(
            f"{max(1, share // TRIED[0])} units of a minibatch do not fit into the memory at once"
        )
    return trials


def climbed(share: int, measure: Callable[[int], SizeTrial | None], room: int) -> list[SizeTrial]:
    """What pieces of 1, 4, 16 … units take, up to a part of a minibatch of `share` units.

    A size is measured only if a straight line through the ones before predicts that it stays within `room`
    bytes: on a CPU the kernel ends a process that takes too much.

    Raises:
        MemoryError: not even one unit fits.
    """
    trials: list[SizeTrial] = []
    size = 1
    while size <= max(1, share // TRIED[-1]) and predicted_peak(trials, size) <= room:
        trial = measure(size)
        if trial is None:
            break
        trials.append(trial)
        size *= STRIDE
    if not trials:
        raise MemoryError("one unit of a minibatch does not fit into the memory")
    return trials


def most_units(share: int, trials: list[SizeTrial], room: int) -> int:
    """How many of `share` units stay within `room` bytes if they are computed at once; 1 or more.

    A straight line through the trials predicts what other sizes take.
    """
    most = trials[0].size
    if len(trials) > 1:
        most = bisect_right(range(1, share + 1), float(room), key=lambda size: predicted_peak(trials, size))
    return max(1, min(most, share))


def fewest_pieces(share: int, trials: list[SizeTrial], room: int) -> int:
    """In how many pieces to compute a minibatch of `share` units so that they stay within `room` bytes."""
    return -(-share // most_units(share, trials, room))
