"""How many samples a batch has, whatever it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def sample_count(batch: Any) -> int | None:
    """Return the number of samples of a batch, None if nothing shows it.

    It is the leading dimension of the first tensor or array in it. A list of texts has as many samples as
    texts. Of other objects, a whole number `num_graphs` or `batch_size` counts.
    """
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if isinstance(batch, Mapping):
        return next(_sizes(batch.values()), None)
    if isinstance(batch, (list, tuple)):
        found = next(_sizes(batch), None)
        return len(batch) if found is None and batch and isinstance(batch[0], str) else found
    for name in ("num_graphs", "batch_size"):
        if isinstance(size := getattr(batch, name, None), int):
            return size
    if hasattr(batch, "__dict__"):
        return next(_sizes(vars(batch).values()), None)
    return None


def _sizes(parts: Any) -> Iterator[int]:
    return (size for size in map(sample_count, parts) if size is not None)
