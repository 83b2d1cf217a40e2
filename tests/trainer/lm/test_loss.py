from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from hoptui_trainer.lm import loss as losses
from hoptui_trainer.lm.loss import chunks, head_loss, head_nats


@pytest.mark.parametrize("tokens_at_once", [3, 8, 1000])
def test_head_and_loss_in_chunks_are_the_plain_ones(
    tokens_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "LOGITS_AT_ONCE", tokens_at_once * 64)
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 7, 16, generator=draw, requires_grad=True)
    table = torch.randn(64, 16, generator=draw, requires_grad=True)
    targets = torch.randint(0, 64, (3, 7), generator=draw)
    targets[1, 2] = -1

    plain = functional.cross_entropy(
        (hidden @ table.T).flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum"
    )
    expected = torch.autograd.grad(plain * 0.3, (hidden, table))
    ours = head_loss(hidden, table, targets)
    found = torch.autograd.grad(ours * 0.3, (hidden, table))

    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(head_nats(hidden, table, targets), plain)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_in_bf16_the_tables_gradient_is_summed_in_float32() -> None:
    hidden = torch.randn(64, 8, dtype=torch.bfloat16, requires_grad=True)
    table = torch.randn(32, 8, requires_grad=True)
    head_loss(hidden, table, torch.zeros(64, dtype=torch.int64)).backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    assert table.grad is not None
    assert (hidden.grad.dtype, table.grad.dtype) == (torch.bfloat16, torch.float32)


def test_chunks_cover_everything_in_few_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "LOGITS_AT_ONCE", 100 * 10)
    parts = list(chunks(300, 10))
    assert [part.stop - part.start for part in parts] == [64, 64, 64, 64, 44]
    assert [i for part in parts for i in range(300)[part]] == list(range(300))
    assert list(chunks(3, 10**9)) == [slice(0, 1), slice(1, 2), slice(2, 3)]
