"""Pieces as graphs learn what pieces without graphs learn; a stand-in for a GPU records the graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hoptui_trainer.common.cuda_graphs import WARM_UPS, Graphs
from hoptui_trainer.common.flat_gradient import FlatGradient
from hoptui_trainer.common.piece_graphs import PieceGraphs
from tests.trainer.common.test_cuda_graphs import Tape


class Linear:
    """A layer of which pieces are (sum of squared outputs, number of samples)."""

    def __init__(self) -> None:
        self.layer = nn.Linear(3, 2)
        self.gradient = FlatGradient(self.layer.parameters())
        self.tape = Tape()
        self.pieces = PieceGraphs(Graphs(self.tape), self.gradient, self.figures, (2,))

    def figures(self, inputs: Tensor) -> Tensor:
        return torch.stack((self.layer(inputs).square().sum(), torch.tensor(float(len(inputs)))))


@pytest.fixture
def linear() -> Linear:
    return Linear()


def test_each_piece_has_its_own_figures_and_gradient(linear: Linear) -> None:
    found = []
    batches = [torch.randn(size, 3) for size in (4, 4, 4, 4, 2, 4, 2, 2)]
    for batch in batches:
        linear.gradient.clear()
        found.append(linear.pieces.run((batch,), torch.tensor(0.5)))
        gradient = linear.gradient.flat.clone()
        linear.gradient.clear()
        wanted = linear.figures(batch)
        torch.autograd.backward(wanted[0] / 2)
        torch.testing.assert_close(gradient, linear.gradient.flat)
        torch.testing.assert_close(found[-1], wanted.detach())
    torch.testing.assert_close(found[0], linear.figures(batches[0]).detach())  # it is no part of a graph
    assert (linear.tape.warm_ups, linear.tape.captures, linear.tape.replays) == (2 * WARM_UPS, 2, 4)


def test_gradients_of_pieces_add_up(linear: Linear) -> None:
    batch = torch.randn(4, 3)
    for _ in range(5):
        linear.pieces.run((batch,), torch.tensor(1.0))
    found = linear.gradient.flat.clone()
    linear.gradient.clear()
    torch.autograd.backward(5 * linear.figures(batch)[0])
    torch.testing.assert_close(found, linear.gradient.flat)


def test_what_is_cleared_is_captured_anew(linear: Linear) -> None:
    batch = torch.randn(4, 3)
    for _ in range(3):
        linear.pieces.run((batch,), torch.tensor(1.0))
    linear.pieces.clear()
    assert linear.tape.forgotten == 1
    linear.pieces.run((batch,), torch.tensor(1.0))
    assert (linear.tape.captures, linear.tape.warm_ups) == (1, WARM_UPS + 1)
