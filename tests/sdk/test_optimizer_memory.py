"""What optimizers hold on a GPU, whatever the size of a batch. The CPU takes the place of the GPU here."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hoptui.injection.optimizers import WeakOptimizer
from hoptui.sdk.optimizer_memory import COST, EVERY_NS, OptimizerMemory
from hoptui.sdk.run import Run
from tests.run_state import run_state

FLOAT = 4
COUNTER = 4
"""Bytes of the count of steps of a parameter."""


def parameter(count: int = 1000) -> torch.nn.Parameter:
    found = torch.nn.Parameter(torch.ones(count))
    found.grad = torch.ones(count)
    return found


def held(*optimizers: Any, kind: str = "cpu") -> int:
    memory = OptimizerMemory(kind)
    for i, optimizer in enumerate(optimizers):
        memory.add(f"{i}_", optimizer)
    memory.read(0)
    return memory.held_bytes


def test_parameters_and_state_count_and_gradients_do_not() -> None:
    adam = torch.optim.AdamW([parameter(), parameter(500)], lr=0.1)
    assert held(adam) == 1500 * FLOAT
    adam.step()
    assert held(adam) == 3 * 1500 * FLOAT + 2 * COUNTER


def test_what_is_not_on_a_gpu_does_not_count() -> None:
    assert held(torch.optim.SGD([parameter()], lr=0.1), kind="cuda") == 0


def test_tensors_that_share_memory_count_once() -> None:
    flat = torch.ones(1000)
    views = [torch.nn.Parameter(flat[:400]), torch.nn.Parameter(flat[400:])]
    assert held(torch.optim.SGD(views, lr=0.1), torch.optim.SGD(views[:1], lr=0.1)) == 1000 * FLOAT


def test_memory_that_was_freed_does_not_count() -> None:
    """A sharded parameter between two iterations."""
    whole = parameter()
    whole.data.untyped_storage().resize_(0)
    assert held(torch.optim.SGD([whole, parameter(10)], lr=0.1)) == 10 * FLOAT


def test_the_state_may_be_in_lists() -> None:
    """As that of L-BFGS is."""
    lists = SimpleNamespace(param_groups=[{"params": []}], state={0: {"old": [torch.ones(7), torch.ones(5)]}})
    assert held(lists) == 12 * FLOAT


def test_of_a_part_of_a_tensor_only_that_part_counts() -> None:
    sharded = type("Sharded", (torch.Tensor,), {"_local_tensor": torch.ones(250)})
    part: Any = torch.ones(1000).as_subclass(sharded)
    assert held(SimpleNamespace(param_groups=[{"params": [part]}])) == 250 * FLOAT


def test_a_tensor_of_another_kind_does_not_count() -> None:
    """A quantised one holds fewer bytes than its type says, or none of its own."""
    other: Any = torch.ones(1000).as_subclass(type("Quantised", (torch.Tensor,), {}))
    assert held(SimpleNamespace(param_groups=[{"params": [other, parameter(10)]}])) == 10 * FLOAT


class OnGpu:
    """A tensor on a GPU, as far as that matters here."""

    layout = torch.strided

    def __init__(self, index: int) -> None:
        self.device = torch.device("cuda", index)

    def untyped_storage(self) -> Any:
        return SimpleNamespace(data_ptr=lambda: id(self), nbytes=lambda: 9)


def test_of_several_gpus_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(Tensor=OnGpu, nn=SimpleNamespace(Parameter=OnGpu), strided=torch.strided)
    monkeypatch.setitem(sys.modules, "torch", fake)
    for indices, found in (((0, 0), 18), ((0, 1), 0)):
        there = [OnGpu(index) for index in indices]
        assert held(SimpleNamespace(param_groups=[{"params": there}]), kind="cuda") == found


def test_an_optimizer_that_is_unlike_those_of_torch_is_unknown() -> None:
    assert held(SimpleNamespace(param_groups=[{"lr": 0.1}])) == 0
    gone = torch.optim.SGD([parameter()], lr=0.1)
    weak = WeakOptimizer(gone)
    assert held(weak) == 1000 * FLOAT
    del gone
    assert held(weak) == 0


def test_the_state_of_an_optimizer_that_the_script_owns_counts() -> None:
    adam = torch.optim.AdamW([parameter()], lr=0.1)
    adam.step()
    assert held(WeakOptimizer(adam)) == held(adam)


def test_a_new_optimizer_replaces_the_one_with_its_prefix() -> None:
    memory = OptimizerMemory("cpu")
    memory.add("", torch.optim.SGD([parameter()], lr=0.1))
    memory.read(0)
    memory.add("", torch.optim.SGD([parameter(10)], lr=0.1))
    assert memory.next_read == 0
    memory.read(0)
    assert memory.held_bytes == 10 * FLOAT


def test_it_is_read_seldom_and_more_seldom_where_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = OptimizerMemory("cpu")
    memory.read(0)
    assert memory.next_read == 0, "nothing is declared"
    memory.add("", torch.optim.SGD([parameter()], lr=0.1))
    times = iter((0, 10, 0, EVERY_NS))
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(times))
    memory.read(5)
    assert memory.next_read == 5 + EVERY_NS
    memory.read(5)
    assert memory.next_read == 5 + COST * EVERY_NS


def test_a_run_reads_what_it_has_declared_between_iterations(run: Run) -> None:
    adam = torch.optim.AdamW([parameter()], lr=0.1)
    memory = run_state(run).declarations.optimizers = OptimizerMemory("cpu")
    run.optimizer(adam)
    run.boundary()
    assert memory.held_bytes == 1000 * FLOAT
