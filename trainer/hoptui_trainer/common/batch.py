"""How the batch of a step is shared by ranks and cut into pieces; `samples` are those of a step on all ranks
together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.options import KnobValues, option_name


class Batched(Protocol):
    """A config with the knobs of how a batch is computed, and the number of its samples."""

    micro_batch: int
    grad_accum: int

    @property
    def samples(self) -> int: ...


def largest_share(config: Batched, world: int) -> int:
    """The samples of the rank that has most."""
    return -(-config.samples // world)


def pieces(config: Batched, world: int) -> int:
    """Pieces that the largest share is computed in."""
    return -(-largest_share(config, world) // max(1, config.micro_batch))


def piece_for(config: Batched, grad_accum: int, world: int) -> int:
    """The micro-batch with which the largest share takes `grad_accum` pieces."""
    return -(-largest_share(config, world) // max(1, grad_accum))


def piece_sizes(micro_batch: int, shares: Iterable[int]) -> set[int]:
    """The sizes that pieces have where shares of so many samples are cut: that of whole ones, and of the
    rest."""
    return {size for share in shares for size in (min(micro_batch, share), share % micro_batch)} - {0}


def resolve_batch(config: Batched, given: KnobValues, world: int, *, total: str, each: int, of: str) -> None:
    """Let `micro_batch` and `grad_accum` on a command line decide the batch size, unless `total` does.

    Args:
        given: the knobs on the command line.
        total: the name of the knob for the size of a batch, which counts `each` for a sample.
        of: the samples in words.

    Raises:
        UsageError: the three contradict each other.
    """
    accum = int(given.get("grad_accum", 0))
    if not accum:
        return
    if not given.get("micro_batch"):
        if not getattr(config, total):  # it is chosen first, and the pieces follow
            config.micro_batch = 0
            return
        config.micro_batch = piece_for(config, accum, world)
        return
    product = config.micro_batch * accum * world * each
    if given.get(total) and product != given[total]:
        raise UsageError(
            f"{option_name(total)} {given[total]}: {config.micro_batch} {of} × {accum} pieces × {world} "
            f"ranks are {product}"
        )
    setattr(config, total, product)
