from __future__ import annotations

import torch
from torch import nn

from hoptui_trainer.common.kept_weights import KeptWeights, keep_fitting


class Net(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, 3)
        self.register_buffer("seen", torch.zeros(2))


def test_what_has_the_same_name_and_shape_is_copied() -> None:
    small, deep = Net(4, 1), Net(4, 2)
    small.get_buffer("seen").fill_(7.0)
    new = deep.get_parameter("blocks.1.weight").clone()
    kept = keep_fitting(deep, small.state_dict())
    assert torch.equal(deep.get_parameter("blocks.0.weight"), small.get_parameter("blocks.0.weight"))
    assert torch.equal(deep.head.weight, small.head.weight)
    assert torch.equal(deep.get_parameter("blocks.1.weight"), new)
    assert deep.get_buffer("seen").tolist() == [7.0, 7.0]
    assert kept == (20 + 15, 20 + 20 + 15)
    assert all(p.requires_grad and p.grad_fn is None for p in deep.parameters())


def test_another_width_keeps_what_does_not_depend_on_it() -> None:
    assert keep_fitting(Net(8, 1), Net(4, 1).state_dict()) == (3, 8 * 8 + 8 + 8 * 3 + 3)


def test_what_is_said() -> None:
    assert str(KeptWeights(35, 55)) == "35 of 55 parameters are kept, the others start anew"
    assert str(KeptWeights(0, 1234)) == "all 1,234 parameters start anew"
    assert str(KeptWeights(55, 55)).startswith("all 55 parameters are kept")
