"""Values of a GPU without one: a stand-in for torch whose copies arrive when the test says so."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hoptui.sdk.metric_values import COPIES_IN_FLIGHT, MetricConverter


class Copied:
    """A CUDA tensor of one value, and everything that is made of it."""

    is_cuda = True

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def detach(self) -> Copied:
        return self

    def reshape(self, shape: tuple[()]) -> Copied:
        return self

    def to(self, dtype: object) -> Copied:
        return self

    def copy_(self, other: Copied, non_blocking: bool) -> None:
        assert non_blocking
        self.values = other.values

    def tolist(self) -> list[float]:
        return self.values


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """`arrived`: whether the copies have."""
    state = SimpleNamespace(arrived=False)
    cuda = SimpleNamespace(
        is_current_stream_capturing=lambda: False,
        Event=lambda: SimpleNamespace(record=lambda: None, query=lambda: state.arrived),
    )
    torch: Any = SimpleNamespace(
        float64="float64",
        cuda=cuda,
        no_grad=contextlib.nullcontext,
        stack=lambda tensors: Copied(*(tensor.values[0] for tensor in tensors)),
        empty=lambda count, dtype, pin_memory: Copied(),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    return state


def test_values_of_a_gpu_come_with_the_step_that_they_were_logged_at(gpu: SimpleNamespace) -> None:
    converter = MetricConverter()
    assert converter.convert(7, 1, {"a": 2, "loss": Copied(0.5), "return": Copied(9.0)}) == {"a": 2.0}
    assert converter.late_rows() == []
    gpu.arrived = True
    assert converter.late_rows() == [(7, 1, {"loss": 0.5, "return": 9.0})]
    assert converter.late_rows() == []
    assert converter.bad == 0


def test_a_loop_that_is_too_far_ahead_of_its_gpu_loses_rows_and_counts_them(gpu: SimpleNamespace) -> None:
    converter = MetricConverter()
    for step in range(COPIES_IN_FLIGHT + 3):
        converter.convert(step, step, {"loss": Copied(float(step)), "return": Copied(0.0)})
    assert converter.bad == 2 * 3
    gpu.arrived = True
    assert [step for _, step, _ in converter.late_rows()] == list(range(COPIES_IN_FLIGHT))


class Differentiable:
    """A CPU tensor through which a gradient could go: torch warns where it becomes a number as it is."""

    requires_grad = True

    def detach(self) -> float:
        return 2.0

    def __float__(self) -> float:
        raise UserWarning("Converting a tensor with requires_grad=True to a scalar")


def test_a_loss_is_logged_as_it_is() -> None:
    converter = MetricConverter()
    assert converter.convert(0, 0, {"loss": Differentiable()}) == {"loss": 2.0}
    assert converter.bad == 0
