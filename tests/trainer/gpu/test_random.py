"""One seed gives the same numbers everywhere: on a CPU, on a GPU, compiled, and in a graph that is
replayed."""

from __future__ import annotations

import torch

from hoptui_trainer.common import counter_rng
from hoptui_trainer.common.compilation import compiled
from hoptui_trainer.common.cuda_graphs import CudaRecorder
from tests.trainer.gpu.small import assert_near

CPU = torch.device("cpu")
KEY = counter_rng.key(0, "gpu")
COUNT = 1 << 16
LARGE = 12_345 + (7 << 32)
"""A counter with something in its upper half."""


def test_bits_are_those_of_the_cpu_eager_and_compiled(device: torch.device) -> None:
    index, counter = torch.arange(COUNT), torch.tensor(LARGE)
    wanted = counter_rng.bits(KEY, index, counter, 2)
    there = index.to(device), counter.to(device)
    assert torch.equal(counter_rng.bits(KEY, *there, 2).cpu(), wanted)
    assert torch.equal(counter_rng.bits(KEY, there[0], LARGE, 2).cpu(), wanted)
    assert torch.equal(compiled(counter_rng.bits, "default")(KEY, *there, 2).cpu(), wanted)


def test_uniform_numbers_and_permutations_are_those_of_the_cpu(device: torch.device) -> None:
    index = torch.arange(COUNT)
    there = counter_rng.uniform(KEY, index.to(device), 3, 2)
    assert torch.equal(there.cpu(), counter_rng.uniform(KEY, index, 3, 2))
    drawn = counter_rng.shuffled(KEY, COUNT, 7, device)
    assert torch.equal(drawn.cpu(), counter_rng.shuffled(KEY, COUNT, 7, CPU))


def test_normal_numbers_differ_in_the_last_bits_alone(device: torch.device) -> None:
    index = torch.arange(COUNT)
    assert_near(counter_rng.normal(KEY, index.to(device), 3, 3), counter_rng.normal(KEY, index, 3, 3), 1e-5)


def test_a_replayed_graph_draws_the_numbers_of_the_counter_of_now(device: torch.device) -> None:
    index, counter = torch.arange(COUNT, device=device), torch.tensor(0, device=device)
    drawn = torch.empty(COUNT, 2, dtype=torch.int64, device=device)

    def draw() -> None:
        drawn.copy_(counter_rng.bits(KEY, index, counter, 2))
        counter.add_(1)

    recorder = CudaRecorder(device)
    recorder.warm_up(draw)
    replay = recorder.capture(draw)
    for now in (1, 2, 3):  # the warm-up was 0, the capture computes nothing
        replay()
        assert torch.equal(drawn.cpu(), counter_rng.bits(KEY, index.cpu(), now, 2))
    counter.fill_(LARGE)
    replay()
    assert torch.equal(drawn.cpu(), counter_rng.bits(KEY, index.cpu(), LARGE, 2))
