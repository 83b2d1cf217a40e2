"""The knobs of the DataLoader that a framework trains on. A change takes effect at the next epoch.

The process that trains decides which samples a batch has, and in which order. Workers only fetch them. So
other numbers of workers and of prefetched batches give the same batches. Pinned memory only changes how a
batch is copied to the accelerator.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import hoptui
from hoptui.integrations.dataset_processes import check_other_process, dataset_state

WORKERS = ("num_workers", "prefetch_factor")
PIN = "pin_memory"
NAMES = (*WORKERS, PIN)
DESCRIPTIONS = {
    "num_workers": "data workers of each rank; takes effect at the next epoch",
    "prefetch_factor": "batches that each data worker reads ahead; takes effect at the next epoch",
    PIN: "copy batches to the accelerator from page-locked memory; takes effect at the next epoch",
}
MOST_AHEAD = 16
DEFAULT_AHEAD = 2
"""What a DataLoader of torch reads ahead for each worker if its script says nothing."""
SHARE = 0.5
"""More batches in flight may use this part of the free shared memory."""
SHARED_MEMORY = "/dev/shm"
BATCHES_OF = {
    "torch.utils.data.sampler.BatchSampler": "sampler",
    "accelerate.data_loader.BatchSamplerShard": "batch_sampler",
    "accelerate.data_loader.SkipBatchSampler": "batch_sampler",
}
"""Samplers of batches, with the attribute of the sampler that they cut."""
SAMPLERS = {
    *(
        f"torch.utils.data.sampler.{name}Sampler"
        for name in ("Sequential", "Random", "SubsetRandom", "WeightedRandom")
    ),
    "torch.utils.data.distributed.DistributedSampler",
    "accelerate.data_loader.SeedableRandomSampler",
    "transformers.trainer_pt_utils.LengthGroupedSampler",
    "transformers.trainer_pt_utils.DistributedLengthGroupedSampler",
}
"""Samplers that decide on a whole epoch at once, so it does not matter how far workers read ahead."""


class LoaderKnobs:
    """The numbers of workers and of prefetched batches of one DataLoader, and whether it pins memory.

    Args:
        run: The run.
        loader: The loader of torch.
        prefix: What the framework writes before the names of the knobs.
        local_ranks: The number of ranks that share this machine.
        next_epoch: Returns whether another epoch follows the one in progress.
        synchronized: A random generator of the sampler that the framework makes equal on all ranks before
            each epoch.
    """

    def __init__(
        self,
        run: hoptui.Run,
        loader: Any,
        *,
        prefix: str = "",
        local_ranks: int = 1,
        next_epoch: Callable[[], bool],
        synchronized: object = None,
    ) -> None:
        self._loader, self._next_epoch = loader, next_epoch
        self._state: dict[tuple[int, str], object] | None = None  # of a dataset that no worker has read
        self._in_effect: dict[str, int] = {}
        self._wanted: dict[str, int] = {}
        self._knobs: dict[str, Any] = {}
        self.batch: object = None
        """The last batch, while a boundary is passed: more of its size have to fit into shared memory."""
        self._offer_workers(run, prefix, local_ranks, synchronized)
        self._offer_pinning(run, prefix)

    def begin_epoch(self) -> None:
        """The readers of another epoch are made: they have the values that were set."""
        wanted, self._wanted = self._wanted, {}
        for name, value in wanted.items():
            self._in_effect[name] = value
            self._knobs[name].holds()
        if self._in_effect.get("num_workers"):
            self._state = None  # a worker has read

    def _offer_workers(self, run: hoptui.Run, prefix: str, local_ranks: int, synchronized: object) -> None:
        if reason := obstacle(self._loader, synchronized):
            for name in WORKERS:
                run.decline(prefix + name, reason)
            return
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        workers = int(self._loader.num_workers)
        if not workers:
            self._state = dataset_state(self._loader.dataset)
        values = {"num_workers": workers, "prefetch_factor": self._loader.prefetch_factor or DEFAULT_AHEAD}
        least = {"num_workers": min(1, workers), "prefetch_factor": 1}
        most = {"num_workers": max(1, cores // max(1, local_ranks)), "prefetch_factor": MOST_AHEAD}
        for name, value in values.items():
            self._in_effect[name] = value
            self._knobs[name] = run.knob(
                prefix + name,
                value,
                min=least[name],
                max=max(value, most[name]),
                effect="speed",
                cost="rebuild",
                description=DESCRIPTIONS[name],
                apply=functools.partial(self._apply, name),
                read=functools.partial(self._in_effect.__getitem__, name),
            )

    def _offer_pinning(self, run: hoptui.Run, prefix: str) -> None:
        if reason := pinning_obstacle(self._loader):
            run.decline(prefix + PIN, reason)
            return
        self._in_effect[PIN] = True
        self._knobs[PIN] = run.knob(
            prefix + PIN,
            True,
            effect="speed",
            cost="rebuild",
            description=DESCRIPTIONS[PIN],
            apply=functools.partial(self._apply, PIN),
            read=functools.partial(self._in_effect.__getitem__, PIN),
        )

    def _apply(self, name: str, value: int) -> object:
        if value == self._in_effect[name]:
            self._wanted.pop(name, None)
            self._set(name, value)
            return None
        if not self._next_epoch():
            raise ValueError("the last epoch has begun, and its data workers are made")
        if name in WORKERS:
            self._check_memory(name, value)
        if name == "num_workers" and self._state is not None:
            check_other_process(self._loader, self._state)
        self._wanted[name] = value
        self._set(name, value)
        return hoptui.LATER

    def _set(self, name: str, value: int) -> None:
        loader = self._loader
        setattr(loader, name, value)
        if name in WORKERS:  # a loader without workers has no prefetch factor
            ahead = (self._in_effect | self._wanted)["prefetch_factor"]
            loader.prefetch_factor = ahead if loader.num_workers else None
        begin = loader.worker_init_fn
        if name == "num_workers" and isinstance(begin, functools.partial) and name in begin.keywords:
            # Trainer derives the seeds of workers from their number, so that those of two ranks differ.
            loader.worker_init_fn = functools.partial(
                begin.func, *begin.args, **{**begin.keywords, name: value}
            )

    def _check_memory(self, name: str, value: int) -> None:
        """Refuse more batches in flight than the shared memory holds: a worker would be killed."""
        wanted = self._in_effect | self._wanted | {name: value}
        more = in_flight(wanted) - in_flight(self._in_effect)
        try:
            place = os.statvfs(SHARED_MEMORY)
        except (AttributeError, OSError):  # this system has none
            return
        free, needed = place.f_bavail * place.f_frsize, more * size_in_bytes(self.batch)
        if more > 0 and needed > SHARE * free:
            mib = 1 << 20
            raise ValueError(
                f"{more} more batches in flight need {needed / mib:.0f} MiB of shared memory, and "
                f"{free / mib:.0f} MiB are free"
            )


def obstacle(loader: Any, synchronized: object = None) -> str:
    """Return why the readers of a loader cannot change between two epochs, "" if they can.

    Args:
        loader: The loader.
        synchronized: A random generator that the sampler may have.
    """
    from torch.utils.data import DataLoader, IterableDataset, RandomSampler

    if type(loader) is not DataLoader:
        return f"it is a {type(loader).__name__}, not a DataLoader of torch"
    if isinstance(loader.dataset, IterableDataset):
        return "each worker of an IterableDataset reads other samples"
    if loader.persistent_workers:
        return "persistent workers are made once"
    if not getattr(loader, "in_order", True):
        return "the DataLoader returns batches in any order"
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    while attribute := BATCHES_OF.get(_name(sampler)):
        sampler = getattr(sampler, attribute)
    if _name(sampler) not in SAMPLERS:
        return f"{type(sampler).__name__} may depend on how far the workers read ahead"
    if type(sampler) is RandomSampler and sampler.generator not in (None, synchronized):
        return "the generator of its RandomSampler may depend on how far the workers read ahead"
    return ""


def pinning_obstacle(loader: Any) -> str:
    """Return why a loader cannot change between two epochs whether it pins memory, "" if it can.

    A batch that cannot be pinned raises an error in the training. A loader that pins from the start shows
    that its batches can be pinned.
    """
    import torch
    from torch.utils.data import DataLoader

    if type(loader) is not DataLoader:
        return f"it is a {type(loader).__name__}, not a DataLoader of torch"
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None or accelerator.type == "mps":
        return "this process has no accelerator that batches are pinned for"
    if loader.persistent_workers:
        return "persistent workers are made once"
    if not loader.pin_memory:
        return (
            "a batch with tensors of the GPU cannot be pinned, and nothing shows that before: "
            "start with pin_memory=True"
        )
    return ""


def in_flight(values: Mapping[str, int]) -> int:
    """Return how many batches the workers hold ready."""
    return values["num_workers"] * values["prefetch_factor"]


def size_in_bytes(batch: object) -> int:
    """Return the bytes of the tensors in a batch. Objects other than lists and mappings count as 0."""
    import torch  # Lightning loads this module with each `Trainer`, also where it is not used

    if isinstance(batch, torch.Tensor):
        return batch.numel() * batch.element_size()
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    return sum(map(size_in_bytes, batch)) if isinstance(batch, (list, tuple)) else 0


def _name(sampler: object) -> str:
    return f"{type(sampler).__module__}.{type(sampler).__qualname__}"
