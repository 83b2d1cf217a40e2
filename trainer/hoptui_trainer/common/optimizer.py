"""The optimizer of the language model and of vision, and a step of it that a lack of memory cannot tear
apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from hoptui_trainer.common.errors import TornStepError
from hoptui_trainer.common.flat_gradient import FlatGradient
from hoptui_trainer.common.memory import insist, is_out_of_memory, release

BETAS = (0.9, 0.95)
OWN = ("lr", "weight_decay")
"""Fields of a parameter group that this process sets, whatever its checkpoint has."""


def adamw(groups: Iterable[Mapping[str, Any]], device: torch.device) -> torch.optim.AdamW:
    """AdamW in one fused kernel. Its learning rate is one tensor, filled before each step.

    The gradients of all parameters must be there, and zero: its moments are made here and not in its first
    step, so that the memory they take is taken before a micro-batch is chosen, and no step has to find any.
    """
    lr = torch.zeros((), device=device)
    optimizer = torch.optim.AdamW([dict(group) for group in groups], lr=lr, betas=BETAS, fused=True)
    optimizer.step()  # of length 0: it leaves every weight to the bit as it is
    for moments in optimizer.state.values():
        moments["step"].zero_()
    return optimizer


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


def restore(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Go on with the moments that `saved` holds, and with this process's own learning rates and weight
    decays."""
    own = [{name: group[name] for name in OWN} for group in optimizer.param_groups]
    optimizer.load_state_dict(dict(saved))
    for group, values in zip(optimizer.param_groups, own, strict=True):
        group.update(values)


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
