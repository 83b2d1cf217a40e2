"""The gradient of one batch, computed in micro-batches, and again in smaller ones where memory runs out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hoptui_trainer.common.errors import ShardMemoryError
from hoptui_trainer.common.memory import is_out_of_memory, release
from hoptui_trainer.common.memory_budget import limit_bytes
from hoptui_trainer.common.ranks import RankGroup

GROWN = 1.1
"""A size that was too much may be asked for again once there is so many times the memory that there was
then."""


class SingleSampleError(torch.OutOfMemoryError):
    """Memory ran out with single samples, on one of the ranks; raised on all of them."""


class Pieces:
    """Cuts batches into micro-batches of at most `micro_batch` samples.

    Each piece adds its part of the sum that is divided by the count of the whole batch, so the gradient does
    not depend on how the batch is cut. When memory runs out in a piece of any rank, every rank drops the
    gradient and computes the same batch in pieces half as large; `ceiling` is then the size that is known to
    be too much. With single samples `on_exhausted` is called; if it has made room it returns true, and the
    batch is computed again. Where the ranks `meet` in each piece, the others wait for one that runs out of
    memory: it raises, and the run ends. The optimizer has not been touched at that point, and never is in
    here.
    """

    def __init__(
        self,
        micro_batch: int,
        device: torch.device,
        ranks: RankGroup,
        on_smaller: Callable[[int, int], None],
        *,
        meets: bool = False,
    ) -> None:
        self.meets = meets
        self.micro_batch = micro_batch
        self.ceiling: int | None = None
        self.on_exhausted: Callable[[], bool] = lambda: False
        self._room = 0
        self._device, self._ranks, self._on_smaller = device, ranks, on_smaller

    def compute(self, count: int, piece: Callable[[slice], Tensor], clear: Callable[[], None]) -> Tensor:
        """The sum of what `piece` returns over the slices of 0 … `count`.

        Args:
            count: samples of this rank's part of the batch.
            piece: forward and backward of a slice; returns detached figures, the same shape for each slice.
            clear: forgets the gradients.

        Raises:
            SingleSampleError: not even single samples fit, here or on another rank.
        """
        while True:
            clear()
            figures, error = self.attempt(count, piece)
            if self._ranks.all(error is None):
                assert figures is not None
                return figures
            clear()
            self.smaller(count, error)

    def attempt(
        self, count: int, piece: Callable[[slice], Tensor]
    ) -> tuple[Tensor | None, BaseException | None]:
        """What `piece` returns, summed over the slices of 0 … `count`; or the error if memory ran out on this
        rank."""
        figures: Tensor | None = None
        try:
            for start in range(0, count, self.micro_batch):
                part = piece(slice(start, min(start + self.micro_batch, count)))
                figures = part if figures is None else figures + part
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self.end_if_met(min(self.micro_batch, count))
            # Its traceback would keep every tensor of the failed pass alive.
            return None, error.with_traceback(None)
        return figures, None

    def end_if_met(self, size: int) -> None:
        """Memory ran out in a piece of `size` samples: end the run if other ranks wait in it for this one.

        Raises:
            ShardMemoryError: they do.
        """
        if self.meets:
            raise ShardMemoryError(
                f"memory ran out in a piece of {size} on a rank that others waited for (--shard): go on from "
                "a checkpoint with a smaller --micro-batch"
            ) from None

    def smaller(self, count: int, error: BaseException | None = None) -> None:
        """Halve the pieces, on all ranks alike, because memory ran out in a batch of `count` samples on one
        of them.

        Raises:
            SingleSampleError: they were single samples; with the text of `error` if it is this rank's own.
        """
        release(self._device)
        if self.micro_batch == 1:
            if self.on_exhausted():
                return
            raise SingleSampleError(str(error or "another rank is out of memory with single samples"))
        # The ranks' parts of a batch may differ by a sample.
        before = max(self._ranks.gather(min(self.micro_batch, count)))
        self.too_much(before)
        self.micro_batch = max(1, before // 2)
        self._on_smaller(before, self.micro_batch)

    def too_much(self, size: int) -> None:
        """So many samples at once do not fit, on one of the ranks at least."""
        self.ceiling, self._room = size, limit_bytes(self._device, self._ranks.local_world)

    def resize(self, micro_batch: int) -> None:
        """Cut into pieces of at most so many samples from now on, on all ranks alike.

        Raises:
            MemoryError: that was too much before, and there is no more memory now than there was then.
        """
        ceiling = self.ceiling
        if ceiling is not None and micro_batch >= ceiling and micro_batch > self.micro_batch:
            if not self._ranks.all(limit_bytes(self._device, self._ranks.local_world) > GROWN * self._room):
                raise MemoryError(f"memory ran out with {ceiling} at once before: at most {ceiling - 1}")
            self.ceiling = None
        self.micro_batch = micro_batch

    def forget(self) -> None:
        """What a sample takes has changed: what was too much may fit now."""
        self.ceiling = None
