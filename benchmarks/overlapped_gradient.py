"""The exchange of gradients during the backward pass, to be measured against one all-reduce after it.

Not what runs use. A rank that runs out of memory in its last piece would leave the others in sums that it has
not begun.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch.distributed as dist
from torch import Tensor, nn

from hoptui_trainer.common.flat_gradient import FlatGradient
from hoptui_trainer.common.ranks import RankGroup

BUCKET_BYTES = 25 << 20
"""The size that DistributedDataParallel has."""


class OverlappedGradient(FlatGradient):
    """A `FlatGradient` whose parts are summed over the ranks as soon as the backward pass of the last piece
    has finished them, in buckets from its end.

    `early` counts the buckets that were on their way before `exchange`.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], ranks: RankGroup, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        super().__init__(parameters, ranks=ranks)
        self.early = 0
        self._last = False
        self._sums: list[dist.Work] = []
        self._buckets: list[Tensor] = []
        self._sizes: list[int] = []
        self._missing: list[int] = []
        end = start = len(self.flat)
        count = 0
        for number in reversed(range(len(self._parameters))):
            parameter = self._parameters[number]
            start -= parameter.numel()
            count += 1
            bucket = len(self._buckets)
            hook = partial(self._finished, bucket)
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            if (end - start) * self.flat.element_size() >= bucket_bytes or not number:
                self._buckets.append(self.flat[start:end])
                self._sizes.append(count)
                end, count = start, 0

    def before_piece(self, *, last: bool) -> None:
        self._last, self._missing = last, list(self._sizes)

    def exchange(self) -> None:
        self.early = len(self._sums)
        self._missing = [0] * len(self._buckets)
        self._begin()
        for work in self._sums:
            work.wait()
        self._sums.clear()
        self._last = False

    def _finished(self, bucket: int, _: Tensor) -> None:
        """A parameter of this bucket has its gradient."""
        if self._last:
            self._missing[bucket] -= 1
            self._begin()

    def _begin(self) -> None:
        """Sum what is finished, in the same order on all ranks."""
        while len(self._sums) < len(self._buckets) and self._missing[len(self._sums)] <= 0:
            work = dist.all_reduce(self._buckets[len(self._sums)], async_op=True)
            assert work is not None
            self._sums.append(work)
