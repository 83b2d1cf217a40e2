"""Whether a dataset that the process of the training reads may be read by data workers instead.

A worker is a copy of the process. A file that is open in both has one position. A random generator in the
dataset would begin anew in each worker and each epoch. What the dataset counts or stores would be lost.
"""

from __future__ import annotations

import pickle
import random
import time
import types
from collections.abc import Iterator
from typing import Any

INSPECTION_S = 5.0
"""A dataset with so many objects that looking at them takes longer is refused."""
TRIAL_S = 20.0
"""The longest time for a worker to start and to read one sample."""
MOST_PARTS = 100
"""A longer list in a dataset is one of samples, not of datasets."""
SCALARS = (bool, int, float, str, type(None))


class OneProcessError(ValueError):
    """A dataset is to stay in its process. The text is for users."""


def dataset_state(dataset: Any) -> dict[tuple[int, str], object]:
    """Return the plain attributes of a dataset and of those in it, and the sizes of its collections.

    A dataset for which these change while it is read keeps something from one sample to another.
    """
    found: dict[tuple[int, str], object] = {}
    for index, each in enumerate(_nested(dataset)):
        for name, value in vars(each).items():
            if isinstance(value, SCALARS):
                found[index, name] = value
            elif isinstance(value, (list, dict, set)):
                found[index, name] = len(value)
    return found


def check_other_process(loader: Any, state: dict[tuple[int, str], object]) -> None:
    """Check that a worker can read the dataset of a DataLoader without workers. It reads one sample.

    Args:
        loader: The loader. It stays as it is, and so do the random generators.
        state: The `dataset_state` before the training read samples.

    Raises:
        OneProcessError: a worker cannot read it, or would read other samples.
    """
    if dataset_state(loader.dataset) != state:
        raise OneProcessError("the dataset changes while it is read, and a data worker has a copy of it")
    _inspect((loader.dataset, loader.collate_fn, loader.worker_init_fn))
    _read_one(loader)


def _nested(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and the datasets in its attributes."""
    from torch.utils.data import Dataset

    waiting, seen = [dataset], set()
    while waiting:
        each = waiting.pop()
        if id(each) in seen or not hasattr(each, "__dict__"):
            continue
        seen.add(id(each))
        yield each
        for value in vars(each).values():
            parts = value if isinstance(value, (list, tuple)) and len(value) <= MOST_PARTS else [value]
            waiting += [part for part in parts if isinstance(part, Dataset)]


def _inspect(objects: object) -> None:
    """Look at all objects that a worker would have a copy of.

    Raises:
        OneProcessError: one of them is bound to its process, or there are too many.
    """
    try:
        _Inspector().dump(objects)
    except OneProcessError:
        raise
    except TimeoutError:
        raise OneProcessError(
            f"looking at all objects of the dataset takes more than {INSPECTION_S:g} s: start with 1 worker"
        ) from None
    except Exception as error:  # an open file, a lock, a connection to a database
        raise OneProcessError(f"the dataset may be bound to its process: {error}") from None


class _Sink:
    """Takes what a pickler writes, for a limited time."""

    def __init__(self) -> None:
        self._end = time.monotonic() + INSPECTION_S

    def write(self, data: object) -> None:
        if time.monotonic() > self._end:
            raise TimeoutError


def _visited(*parts: object) -> None:
    """Stand for a value that a pickler does not have to write."""


class _Inspector(pickle.Pickler):
    """Visits objects as `pickle` does, without a copy of arrays and tensors. Functions may be local ones."""

    def __init__(self) -> None:
        super().__init__(_Sink(), protocol=5, buffer_callback=lambda _: None)

    def reducer_override(self, value: Any) -> Any:
        import torch

        if value is _visited:
            return NotImplemented
        if isinstance(value, torch.Tensor):
            if value.device.type != "cpu":
                raise OneProcessError("the dataset has a tensor of the GPU, which a data worker cannot read")
            return _visited, ()
        if isinstance(value, (random.Random, torch.Generator)) or _of_numpy_random(value):
            raise OneProcessError("the dataset has its own random generator, which each worker would repeat")
        if isinstance(value, types.FunctionType):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            return _visited, ([*cells, *(value.__defaults__ or ())],)
        if isinstance(value, (type, types.ModuleType)):
            return _visited, ()
        return NotImplemented


def _of_numpy_random(value: object) -> bool:
    kind = type(value)
    return kind.__module__.startswith("numpy.random") and kind.__name__ in ("Generator", "RandomState")


def _read_one(loader: Any) -> None:
    """Have a worker read the first sample.

    Raises:
        OneProcessError: it cannot.
    """
    import torch
    from torch.utils.data import DataLoader

    first = next(iter(getattr(loader.sampler, "indices", ())), 0)  # those of a SubsetRandomSampler
    trial: Any = DataLoader(
        loader.dataset,
        batch_sampler=[[first]],
        num_workers=1,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=torch.Generator(),  # that of the training draws nothing
        timeout=TRIAL_S,
    )
    try:
        next(iter(trial))
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise OneProcessError(f"a data worker cannot read the dataset: {lines[-1]}") from None
