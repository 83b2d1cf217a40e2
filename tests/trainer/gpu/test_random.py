"""One seed gives the same numbers everywhere: on a CPU, on a GPU, compiled, and in a graph that is replayed."""

from __future__ import annotations

import torch

from tests.trainer.gpu.small import assert_near
from trainer.common import random
from trainer.common.compile import compiled
from trainer.common.graphs import CudaRecorder

CPU = torch.device("cpu")
KEY = random.key(0, "gpu")
COUNT = 1 << 16
LARGE = 12_345 + (7 << 32)
"""A counter with something in its upper half."""


def test_bits_are_those_of_the_cpu_eager_and_compiled(device: torch.device) -> None:
    index, counter = torch.arange(COUNT), torch.tensor(LARGE)
    wanted = random.bits(KEY, index, counter, 2)
    there = index.to(device), counter.to(device)
    assert torch.equal(random.bits(KEY, *there, 2).cpu(), wanted)
    assert torch.equal(random.bits(KEY, there[0], LARGE, 2).cpu(), wanted)
    assert torch.equal(compiled(random.bits, "default")(KEY, *there, 2).cpu(), wanted)


def test_uniform_numbers_and_permutations_are_those_of_the_cpu(device: torch.device) -> None:
    index = torch.arange(COUNT)
    there = random.uniform(KEY, index.to(device), 3, 2)
    assert torch.equal(there.cpu(), random.uniform(KEY, index, 3, 2))
    drawn = random.shuffled(KEY, COUNT, 7, device)
    assert torch.equal(drawn.cpu(), random.shuffled(KEY, COUNT, 7, CPU))


def test_normal_numbers_differ_in_the_last_bits_alone(device: torch.device) -> None:
    index = torch.arange(COUNT)
    assert_near(random.normal(KEY, index.to(device), 3, 3), random.normal(KEY, index, 3, 3), 1e-5)


def test_a_replayed_graph_draws_the_numbers_of_the_counter_of_now(device: torch.device) -> None:
    index, counter = torch.arange(COUNT, device=device), torch.tensor(0, device=device)
    drawn = torch.empty(COUNT, 2, dtype=torch.int64, device=device)

    def draw() -> None:
        drawn.copy_(random.bits(KEY, index, counter, 2))
        counter.add_(1)

    recorder = CudaRecorder(device)
    recorder.warm_up(draw)
    replay = recorder.capture(draw)
    for now in (1, 2, 3):  # the warm-up was 0, the capture computes nothing
        replay()
        assert torch.equal(drawn.cpu(), random.bits(KEY, index.cpu(), now, 2))
    counter.fill_(LARGE)
    replay()
    assert torch.equal(drawn.cpu(), random.bits(KEY, index.cpu(), LARGE, 2))
