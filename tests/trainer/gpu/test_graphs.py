"""Graphs on a GPU: they repeat the work, share their memory, see values change, and are done without where
memory is short."""

from __future__ import annotations

import pytest
import torch

from hoptui_trainer.common.cuda_graphs import WARM_UPS, Work
from hoptui_trainer.common.memory import release
from tests.trainer.gpu.small import counting_graphs

MB = 1 << 20
TOO_MUCH = 1 << 45
"""Bytes that no GPU has."""


def test_each_call_does_the_work_once_and_later_ones_are_replays(device: torch.device) -> None:
    graphs, counting = counting_graphs(device)
    count, amount = torch.zeros((), device=device), torch.ones((), device=device)

    def work() -> None:
        count.add_(amount)

    for turn in range(1, 8):
        graphs.run("work", work)
        assert float(count) == turn
    assert (graphs.captured, counting.replays) == (1, 7 - WARM_UPS)
    amount.fill_(10.0)  # a tensor is looked at anew by every replay
    graphs.run("work", work)
    assert float(count) == 17.0


def test_gradients_are_captured_too(device: torch.device) -> None:
    graphs, counting = counting_graphs(device)
    weight, x = torch.randn(64, 64, device=device, requires_grad=True), torch.randn(8, 64, device=device)
    gradient = torch.zeros_like(weight)

    def work() -> None:
        gradient.copy_(torch.autograd.grad((x @ weight).square().sum(), weight)[0])

    for _ in range(WARM_UPS + 2):
        x.normal_()
        graphs.run("work", work)
        torch.testing.assert_close(gradient, 2 * x.T @ (x @ weight.detach()), rtol=1e-4, atol=1e-3)
    assert counting.replays == 2


def test_all_graphs_share_one_pool_and_give_it_back(device: torch.device) -> None:
    graphs, _ = counting_graphs(device)
    out = torch.zeros((), device=device)

    def work(size: int) -> None:
        out.copy_(torch.ones(size, dtype=torch.uint8, device=device).sum())

    def run(name: str, size: int) -> int:
        for _ in range(WARM_UPS + 1):
            graphs.run(name, lambda: work(size))
        assert int(out) == size
        release(device)
        return torch.cuda.memory_reserved(device)

    release(device)
    before = torch.cuda.memory_reserved(device)
    first = run("first", 64 * MB)
    assert first >= before + 64 * MB
    assert run("second", 32 * MB) < first + 32 * MB
    graphs.clear()
    assert torch.cuda.memory_reserved(device) < before + 32 * MB


def test_graphs_are_made_before_they_are_needed_and_dropped_by_owner(device: torch.device) -> None:
    graphs, counting = counting_graphs(device)
    counts = {owner: torch.zeros((), device=device) for owner in ("small", "large")}

    def work(owner: str) -> Work:
        def add() -> None:
            counts[owner].add_(1)

        return add

    for owner in counts:
        graphs.prepare("work", work(owner), owner, before=counts[owner].zero_)
    assert (graphs.captured, counting.replays) == (2, 0)
    graphs.drop("small")
    release(device)
    for turn in range(1, 4):
        for owner in counts:
            graphs.run("work", work(owner), owner)
        assert float(counts["small"]) == float(counts["large"]) == 1 + turn
    assert graphs.captured == 3


def test_a_graph_for_which_memory_is_short_is_done_without(device: torch.device) -> None:
    graphs, counting = counting_graphs(device)
    count = torch.zeros((), device=device)

    def work() -> None:
        capturing = torch.cuda.is_current_stream_capturing()
        torch.empty(TOO_MUCH if capturing else MB, dtype=torch.uint8, device=device)
        count.add_(1)

    for _ in range(WARM_UPS + 2):
        graphs.run("work", work)
    assert float(count) == WARM_UPS + 2
    assert (graphs.captured, graphs.refused, counting.replays) == (0, 1, 0)
    assert float(count + 1) == WARM_UPS + 3  # the stream of before is the current one again


def test_what_cannot_be_captured_is_an_error_and_not_another_result(device: torch.device) -> None:
    graphs, _ = counting_graphs(device)
    value = torch.ones((), device=device)
    seen: list[float] = []
    for _ in range(WARM_UPS):
        graphs.run("work", lambda: seen.append(float(value)))
    with pytest.raises(RuntimeError):
        graphs.run("work", lambda: seen.append(float(value)))
    assert float(value + 1) == 2.0  # and the device still works
