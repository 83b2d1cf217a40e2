"""What the adapter of `transformers.Trainer` has to know of its inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from transformers import Trainer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from hoptui.integrations.versions import older

KNOWS_FSDP2 = "1.6"
"""The first version of accelerate with FSDP2."""


def obstacle(trainer: Any) -> str:
    """Return why the batches of this trainer cannot be cut, "" if they may be."""
    if trainer is None:
        return "the trainer is unknown"
    kind, args = type(trainer), trainer.args
    if getattr(trainer, "is_deepspeed_enabled", False):
        return "DeepSpeed's engine decides when gradients are accumulated and exchanged"
    if kind.compute_loss is not Trainer.compute_loss or "compute_loss" in vars(trainer):
        return f"{kind.__name__} overrides compute_loss, so it is unknown how the loss is normalised"
    if args.n_gpu > 1:
        return "DataParallel cuts the batch itself"
    if args.device.type == "xla" or getattr(trainer, "is_fsdp_xla_enabled", False):
        return "XLA compiles each step as a whole"
    if hasattr(trainer.model, "set_requires_gradient_sync") and older("accelerate", KNOWS_FSDP2):
        return f"accelerate knows FSDP2 from {KNOWS_FSDP2} on; with an older one the weights would differ"
    if any(size_of(trainer, name) > 1 for name in ("get_cp_size", "get_sp_size")):
        return "the sequences are spread over ranks"
    if any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in trainer.model.modules()):
        return "BatchNorm takes its statistics over a whole batch"
    config = getattr(trainer.model, "config", None)
    if getattr(config, "output_router_logits", False):
        return "the loss of the router is taken over a whole batch"
    return ""


def size_of(trainer: Any, method: str) -> int:
    """Return how many ranks share a model or a sequence, by a method that not every version has."""
    function = getattr(trainer, method, None)
    return int(function()) if function is not None else 1


def replicas(trainer: Any) -> int:
    """Return how many ranks train on batches of their own."""
    found = int(trainer.args.world_size)
    for method in ("get_tp_size", "get_cp_size", "get_sp_size"):
        found //= size_of(trainer, method)
    return max(1, found)


def shifts_labels(trainer: Any) -> bool:
    """Whether the model predicts the next token, so the first label of a row counts in no loss."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    base = getattr(getattr(model, "base_model", None), "model", None)  # of an adapter of PEFT
    names = {type(each).__name__ for each in (model, base) if each is not None}
    return not names.isdisjoint(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())


def scaled_loss(compute_loss: Callable[..., Any], share: float) -> Callable[..., Any]:
    if share == 1.0:
        return compute_loss

    def scaled(*args: Any, **kwargs: Any) -> Any:
        found = compute_loss(*args, **kwargs)
        return (found[0] * share, *found[1:]) if isinstance(found, tuple) else found * share

    return scaled


def without_sync(trainer: Any, model: Any) -> AbstractContextManager[Any]:
    """Keep the gradients of one part on this rank."""
    accelerator = trainer.accelerator
    state = accelerator.gradient_state
    if not state.sync_gradients or getattr(state, "plugin_kwargs", {}).get("sync_each_batch", False):
        return nullcontext()  # the whole batch is kept already, or each backward pass has to synchronise
    if getattr(trainer, "is_distributed_loading_by_transformers", False) and hasattr(
        trainer.model, "set_requires_gradient_sync"
    ):
        return trainer._defer_fsdp_gradient_reduction()  # type: ignore[no-any-return]
    if hasattr(model, "set_requires_gradient_sync"):
        return _fsdp2_without_sync(model)
    return accelerator.no_sync(model)  # type: ignore[no-any-return]


@contextmanager
def _fsdp2_without_sync(model: Any) -> Iterator[None]:
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


@contextmanager
def repeatable(trainer: Any) -> Iterator[None]:
    """Compute losses that training does not see: without gradients and dropout, and with the same numbers of
    the random generators afterwards."""
    training = [module for module in trainer.model.modules() if module.training]
    device = trainer.args.device
    devices = [device] if device.type == "cuda" else []
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices),
        torch.compiler.set_stance("force_eager"),
        trainer.compute_loss_context_manager(),
    ):
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for module in training:
                module.training = True


class DecayGroups:
    """The parameter groups of an optimizer. Without weight decay, Trainer's second group stays without it.

    Trainer makes one group of matrices, and one of biases and norms that never decay.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        groups = optimizer.param_groups
        self._undecayed = (
            len(groups) == 2
            and not any(group.get("weight_decay") for group in groups)
            and all(parameter.dim() < 2 for parameter in groups[1]["params"])
        )

    @property
    def state(self) -> Any:
        """The state of the optimizer, by parameter."""
        return self._optimizer.state

    @property
    def param_groups(self) -> list[Any]:
        """The groups, in which a change takes effect."""
        groups = list(self._optimizer.param_groups)
        return [*groups[:1], *map(_UndecayedGroup, groups[1:])] if self._undecayed else groups


class _UndecayedGroup(MutableMapping[str, Any]):
    """A parameter group without its weight decay."""

    def __init__(self, group: MutableMapping[str, Any]) -> None:
        self._group = group

    def __getitem__(self, name: str) -> Any:
        if name == "weight_decay":
            raise KeyError(name)
        return self._group[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._group[name] = value

    def __delitem__(self, name: str) -> None:
        del self._group[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._group if name != "weight_decay")

    def __len__(self) -> int:
        return sum(1 for _ in self)
