"""The gradient of one batch, computed in micro-batches, and again in smaller ones where memory runs out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from trainer.common.memory import is_out_of_memory, release
from trainer.common.ranks import Ranks


class Pieces:
    """Cuts batches into micro-batches of at most `micro_batch` samples.

    Each piece adds its part of the sum that is divided by the count of the whole batch, so the gradient does not depend
    on how the batch is cut. When memory runs out in a piece of any rank, every rank drops the gradient and computes the
    same batch in pieces half as large; `ceiling` is then the size that is known to be too much. The optimizer has not
    been touched at that point, and never is in here.
    """

    def __init__(
        self,
        micro_batch: int,
        device: torch.device,
        ranks: Ranks,
        on_smaller: Callable[[int, int], None],
    ) -> None:
        self.micro_batch = micro_batch
        self.ceiling: int | None = None
        self._device, self._ranks, self._on_smaller = device, ranks, on_smaller

    def compute(self, count: int, piece: Callable[[slice], Tensor], clear: Callable[[], None]) -> Tensor:
        """The sum of what `piece` returns over the slices of 0 … `count`.

        Args:
            count: samples of this rank's part of the batch.
            piece: forward and backward of a slice; returns detached figures, the same shape for each slice.
            clear: forgets the gradients.

        Raises:
            torch.OutOfMemoryError: not even single samples fit, here or on another rank.
        """
        while True:
            clear()
            figures, error = self._attempt(count, piece)
            if self._ranks.all(error is None):
                assert figures is not None
                return figures
            clear()
            release(self._device)
            if self.micro_batch == 1:
                raise error or torch.OutOfMemoryError("another rank is out of memory with single samples")
            before = min(self.micro_batch, count)
            self.ceiling, self.micro_batch = before, max(1, before // 2)
            self._on_smaller(before, self.micro_batch)

    def _attempt(
        self, count: int, piece: Callable[[slice], Tensor]
    ) -> tuple[Tensor | None, BaseException | None]:
        figures: Tensor | None = None
        try:
            for start in range(0, count, self.micro_batch):
                part = piece(slice(start, min(start + self.micro_batch, count)))
                figures = part if figures is None else figures + part
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            # Its traceback would keep every tensor of the failed pass alive.
            return None, error.with_traceback(None)
        return figures, None
