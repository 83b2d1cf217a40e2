"""The optimizer of the language model and of vision, and a step of it that a lack of memory cannot tear
apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hoptui_trainer.common.errors import TornStepError
from hoptui_trainer.common.flat_gradient import FlatGradient
from hoptui_trainer.common.memory import insist, is_out_of_memory, release
from hoptui_trainer.common.modes import OptimizerName
from hoptui_trainer.common.moments import copy_moment, packed
from hoptui_trainer.common.torchao_library import torchao

BETAS = (0.9, 0.95)
MOMENTS = ("exp_avg", "exp_avg_sq")


def make_optimizer(
    name: OptimizerName, groups: Iterable[Mapping[str, Any]], device: torch.device
) -> torch.optim.Optimizer:
    """AdamW, its moments in float32 or in 8 bits. Its learning rate is one tensor, filled before each step.

    `adamw` takes its step in one fused kernel. `adamw8bit` is torchao's, whose step is always compiled, a
    parameter at a time; moments of fewer than 4,096 numbers stay in float32.

    The gradients of all parameters must be there, and zero: its moments are made here and not in its first
    step, so that the memory they take is taken before a micro-batch is chosen, and no step has to find any.

    Raises:
        UsageError: torchao is needed and not installed.
    """
    lr = torch.zeros((), device=device)
    own = [dict(group) for group in groups]
    optimizer: torch.optim.Optimizer
    if name == "adamw8bit":
        library = torchao("optim", "--optimizer adamw8bit", "--optimizer adamw")
        for group in own:
            # As a number it would be compiled in, and each change of it would compile again.
            group["weight_decay"] = torch.tensor(float(group["weight_decay"]), dtype=torch.float64)
        optimizer = library.AdamW8bit(own, lr=lr, betas=BETAS)
    else:
        optimizer = torch.optim.AdamW(own, lr=lr, betas=BETAS, fused=True)
    optimizer.step()  # of length 0: it leaves every weight to the bit as it is
    for moments in optimizer.state.values():
        moments["step"].zero_()
    return optimizer


def weight_decay(optimizer: torch.optim.Optimizer) -> float:
    """That of the first group."""
    return float(optimizer.param_groups[0]["weight_decay"])


def set_weight_decay(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Let the next step use it for the first group."""
    group = optimizer.param_groups[0]
    if isinstance(group["weight_decay"], Tensor):
        group["weight_decay"].fill_(value)
    else:
        group["weight_decay"] = value


def converted(
    optimizer: torch.optim.Optimizer, name: OptimizerName, device: torch.device
) -> torch.optim.Optimizer:
    """An optimizer `name` that goes on where `optimizer` is. Gradients must be zero.

    Raises:
        UsageError: torchao is needed and not installed.
    """
    groups = [
        {"params": group["params"], "weight_decay": float(group["weight_decay"])}
        for group in optimizer.param_groups
    ]
    found = make_optimizer(name, groups, device)
    _copy_moments(found, [optimizer.state[parameter] for parameter in _parameters(found)])
    return found


def take_step(
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    gradient: FlatGradient,
    *,
    lr: float,
    longest: float,
) -> Tensor:
    """Take a step along the gradient, clipped to the norm `longest` (0: as it is). Returns its norm before,
    0-d.

    Nothing in here waits for a GPU. Where memory runs out, the part that found none is done again once what
    is not needed was given back: each takes all its memory before it changes anything. No rank needs another
    one for that.

    Raises:
        torch.OutOfMemoryError: there is none left; no weight has changed.
        TornStepError: memory ran out after the first weights had changed.
    """
    device = gradient.flat.device
    insist(device, scaler.unscale_, optimizer)
    norm = insist(device, gradient.clip, longest)
    for group in optimizer.param_groups:
        group["lr"].fill_(lr)
    _descend(optimizer, scaler, device)
    insist(device, scaler.update)
    return norm


def saved_moments(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What a checkpoint holds of an optimizer: plain tensors, which are read without torchao too."""
    states = [optimizer.state[parameter] for parameter in _parameters(optimizer)]
    return {"state": {place: packed(moments) for place, moments in enumerate(states)}}


def restore(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Go on with the moments that `saved` holds, of either optimizer, and with this process's own learning
    rates and weight decays."""
    held = saved["state"]
    _copy_moments(optimizer, [held[place] for place in range(len(held))])


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


@torch.no_grad()
def _copy_moments(optimizer: torch.optim.Optimizer, held: Sequence[Mapping[str, Any]]) -> None:
    for parameter, theirs in zip(_parameters(optimizer), held, strict=True):
        own = optimizer.state[parameter]
        own["step"].copy_(theirs["step"])
        for name in MOMENTS:
            copy_moment(own[name], theirs[name])


def _descend(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, device: torch.device) -> None:
    """The step itself. torch counts it for a group of parameters before it changes the first of their
    weights, so the counts show whether it may be taken again."""
    counts = [moments["step"] for moments in optimizer.state.values()]
    before = insist(device, counts[0].clone)
    try:
        scaler.step(optimizer)
        return
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    release(device)
    if any(float(count) != float(before) for count in counts):
        raise TornStepError("memory ran out in the middle of an optimizer's step: go on from a checkpoint")
    scaler.step(optimizer)
