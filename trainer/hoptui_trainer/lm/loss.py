"""Head and cross-entropy in one: the logits of a few thousand tokens exist at a time, in the compute
precision.

With 64 sequences of 1,024 tokens and 50,304 words, logits and their gradient would take 13 GB in bf16 and 26
GB in float32. Here the gradient of a chunk is computed right after its loss, in the forward pass, while its
logits are at hand: nothing of the size of the vocabulary is kept for the backward pass and no product is
computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

LOGITS_AT_ONCE = 1 << 29
"""Tokens × vocabulary of a chunk: 8,192 tokens of a 50,304-word vocabulary, 0.8 GB in bf16. Smaller chunks
cost time, because each adds its part to the float32 gradient of the whole head."""

Counted = Callable[[Tensor, Tensor, Tensor], Tensor]
Graded = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def nats(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Summed cross-entropy (0-d float32) of targets (n,); those below 0 do not count.

    `hidden` (n, d) and `head` (vocabulary, d) are of one number format; logits become float32 before any sum.
    """
    logits = (hidden @ head.T).float()
    picked = logits.gather(-1, targets.clamp(min=0)[:, None])[:, 0]
    return ((logits.logsumexp(-1) - picked) * (targets >= 0)).sum()


def graded(hidden: Tensor, head: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`nats`, and its gradients with respect to `hidden` and `head`, in their number format."""
    logits = (hidden @ head.T).float()
    total = logits.logsumexp(-1, keepdim=True)
    counts = targets >= 0
    chosen = torch.arange(head.shape[0], device=head.device) == targets[:, None]
    picked = logits.gather(-1, targets.clamp(min=0)[:, None])
    lost = ((total - picked)[:, 0] * counts).sum()
    slope = (((logits - total).exp() - chosen.float()) * counts[:, None]).to(hidden.dtype)
    return lost, slope @ head, slope.T @ hidden


def chunks(count: int, vocabulary: int) -> Iterator[slice]:
    """Slices of 0 … `count` whose logits fit; powers of two long, so that few shapes are compiled."""
    size = 1 << max(0, (LOGITS_AT_ONCE // vocabulary).bit_length() - 1)
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, table: Tensor, targets: Tensor, grade: Graded) -> Tensor:
        hidden = hidden.detach()  # a compiled `grade` looks at where its arguments come from
        head = table.detach().to(hidden.dtype)
        total = torch.zeros((), device=hidden.device)
        to_hidden = torch.empty_like(hidden)
        to_table = torch.zeros_like(table)
        for part in chunks(len(hidden), len(table)):
            lost, to_hidden[part], gradient = grade(hidden[part], head, targets[part])
            total += lost
            to_table += gradient
        ctx.save_for_backward(to_hidden, to_table)
        return total

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, None, None]:
        to_hidden, to_table = ctx.saved_tensors
        (slope,) = slopes
        return to_hidden * slope.to(to_hidden.dtype), to_table * slope, None, None


def head_loss(hidden: Tensor, table: Tensor, targets: Tensor, grade: Graded = graded) -> Tensor:
    """Summed cross-entropy (0-d float32, in nats) of targets (…) int64 under hidden states (…, d) and a head.

    The same as `nats` with `table` (vocabulary, d) in float32, which it is differentiable in; targets below 0
    do not count. `grade` is `graded` or its compiled form.
    """
    flat = hidden.flatten(0, -2)
    return _HeadLoss.apply(flat, table, targets.flatten(), grade)  # type: ignore[no-any-return, no-untyped-call]


@torch.no_grad()
def head_nats(hidden: Tensor, table: Tensor, targets: Tensor, count: Counted = nats) -> Tensor:
    """`head_loss` without gradients; `count` is `nats` or its compiled form."""
    flat, wanted = hidden.flatten(0, -2), targets.flatten()
    head = table.to(flat.dtype)
    parts = [count(flat[part], head, wanted[part]) for part in chunks(len(flat), len(table))]
    return torch.stack(parts).sum()
