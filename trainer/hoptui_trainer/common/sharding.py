"""A model whose weights, gradients and moments are shared out over the ranks, by FSDP2 (`fully_shard`).

Each rank keeps its rows of every matrix, and steps along its own part of the gradient with an optimizer of
its own. The ranks meet inside of each forward and backward pass: all of them compute as many pieces, and a
rank that runs out of memory in one ends the run, because the others wait for it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard

from hoptui_trainer.common.flat_gradient import FlatGradient
from hoptui_trainer.common.modes import ShardMode
from hoptui_trainer.common.ranks import RankGroup


class Sharding:
    """The shards of `model`, whose `blocks` are gathered one at a time.

    With `full` a block is gathered for its forward pass and again for its backward pass. With `grad` it stays
    gathered in between: less exchange, and the memory of all weights. What is outside of the blocks stays
    gathered in both.
    """

    def __init__(
        self, model: nn.Module, blocks: Iterable[nn.Module], mode: ShardMode, ranks: RankGroup
    ) -> None:
        self.model, self.mode, self._ranks = model, mode, ranks
        device = next(model.parameters()).device
        self._mesh = DeviceMesh.from_group(dist.group.WORLD, device.type)  # type: ignore[arg-type]
        for block in blocks:
            fully_shard(block, mesh=self._mesh, reshard_after_forward=mode == "full")
        fully_shard(model, mesh=self._mesh, reshard_after_forward=False)
        self._modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        for module in self._modules:
            # Losses are divided by the samples of all ranks already: gradients are summed.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        self._sharded: dict[nn.Parameter, nn.Parameter] = {}

    def local(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """The rows of this rank, which an optimizer changes in place."""
        found = []
        for parameter in parameters:
            own = nn.Parameter(_rows(parameter))
            self._sharded[own] = parameter
            found.append(own)
        return found

    def exchanging(self, *, last: bool) -> None:
        """Sum the gradients over the ranks in the backward pass of the last piece alone."""
        for module in self._modules:
            module.set_requires_gradient_sync(last, recurse=False)

    def gather(self) -> None:
        """Gather what is outside of the blocks, which a pass without gradients uses before it begins."""
        assert isinstance(self.model, FSDPModule)
        self.model.unshard()

    def release(self) -> None:
        """Give gathered weights back after a pass that no backward pass followed."""
        for module in self._modules:
            module.reshard()

    def distributed(self, own: Tensor, like: nn.Parameter) -> DTensor:
        """The rows of this rank as a part of a tensor of the shape of `like`, a parameter of the model."""
        shape, stride = like.shape, like.stride()
        return DTensor.from_local(own, self._mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)

    def whole(self, own: Tensor, like: nn.Parameter) -> Tensor:
        """The whole tensor on the CPU of rank 0, from the rows of all ranks; all call it. `like` is a
        parameter of the model. Other ranks get an empty tensor."""
        full = self.distributed(own, like).full_tensor()
        return full.cpu() if self._ranks.rank == 0 else full.new_empty(0, device="cpu")

    def part(self, full: Tensor) -> Tensor:
        """The rows of a whole tensor that this rank keeps."""
        rows = -(-len(full) // self._ranks.world)
        return full[rows * self._ranks.rank : rows * (self._ranks.rank + 1)]

    def saved_model(self) -> dict[str, Tensor]:
        """What the state of the model is without shards; see `whole`."""
        return {name: self.whole(_rows(value), value) for name, value in self.model.named_parameters()}

    @torch.no_grad()
    def load_model(self, saved: Mapping[str, Tensor]) -> None:
        """Take the weights of a model without shards."""
        for name, value in self.model.named_parameters():
            _rows(value).copy_(self.part(saved[name]))

    def copy_own(self, _: str, own: nn.Parameter, full: Tensor) -> None:
        """Copy the rows of this rank of a whole tensor into a parameter of the model."""
        _rows(own).copy_(self.part(full))

    def saved_moments(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """What `optimizer.saved_moments` returns without shards; see `whole`."""
        states: dict[int, dict[str, Any]] = {}
        for place, own in enumerate(parameter for g in optimizer.param_groups for parameter in g["params"]):
            like = self._sharded[own]
            states[place] = {
                name: self.whole(value, like) if value.ndim else value.cpu()
                for name, value in optimizer.state[own].items()
            }
        return {"state": states}

    def own_moments(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """The part of this rank of what `optimizer.saved_moments` returned without shards."""
        return {
            "state": {
                place: {name: self.part(value) if value.ndim else value for name, value in moments.items()}
                for place, moments in saved["state"].items()
            }
        }


class ShardedGradient(FlatGradient):
    """The rows of this rank of all gradients, as one vector. Each backward pass of a last piece adds the sum
    over the ranks to it."""

    def __init__(self, sharding: Sharding, ranks: RankGroup) -> None:
        parameters = list(sharding.model.parameters())
        self.local = sharding.local(parameters)
        super().__init__(self.local, ranks=ranks)
        self._sharding = sharding
        for parameter, part in zip(parameters, self._parts, strict=True):
            parameter.grad = sharding.distributed(part, parameter)  # which FSDP2 adds to in place

    def before_piece(self, *, last: bool) -> None:
        self._sharding.exchanging(last=last)

    def exchange(self) -> None:
        """Nothing is left to do: the last backward pass has summed over the ranks."""

    def norm(self) -> Tensor:
        squares = self.flat.square().sum()
        self._ranks.add(squares)
        return squares.sqrt()


def _rows(tensor: Tensor) -> Tensor:
    """The rows of this rank, in place."""
    detached = tensor.detach()
    assert isinstance(detached, DTensor)
    rows: Tensor = detached.to_local()
    return rows
