"""The knob `gradient_checkpointing` of a model of transformers: activations are recomputed, or kept."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

import hoptui

NAME = "gradient_checkpointing"
FLAG = "gradient_checkpointing"
"""The attribute of the modules of a model that recompute their activations."""
FUNCTION = "_gradient_checkpointing_func"
"""The attribute with the function that recomputes. It is called while the flag is set."""


class ActivationCheckpointing:
    """Whether the layers of a model recompute their activations in the backward pass.

    Only the flags of the layers change. `gradient_checkpointing_enable` also adds hooks to the embeddings,
    once more with each call. Recomputation that is not reentrant does not need them.

    Args:
        model: The model, which may be a part of another module.
        on_gpu: Whether activations take memory of a GPU.
    """

    def __init__(self, model: Any, *, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self._layers = [module for module in model.modules() if hasattr(module, FLAG)]
        self._flags = [bool(getattr(layer, FLAG)) for layer in self._layers]  # while it is on
        self._began_on, self._offered = self.on, False

    @property
    def on(self) -> bool:
        """Whether a layer recomputes its activations."""
        return any(getattr(layer, FLAG) for layer in self._layers)

    def offer(self, run: hoptui.Run, reason: str) -> None:
        """Declare the knob, or the reason why there is none."""
        if reason:
            run.decline(NAME, reason)
            return
        if not self._began_on:
            self._flags = [True] * len(self._layers)
            for layer in self._layers:
                setattr(layer, FUNCTION, functools.partial(checkpoint, use_reentrant=False))
        self._offered = True
        run.knob(
            NAME,
            self.on,
            effect="speed",
            description="recompute activations in the backward pass: slower, with less memory",
            apply=self.set,
            read=lambda: self.on,
        )

    def set(self, on: bool) -> None:
        """Recompute activations, or keep them.

        Raises:
            ValueError: they may not fit into the memory of the GPU. The text is for users.
        """
        if on == self.on:
            return
        if not on and self._on_gpu:
            self.check_memory()
        self.switch(on)

    def check_memory(self) -> None:
        """Refuse to keep activations on a GPU unless the training began with that.

        Raises:
            ValueError: it did not. The text is for users.
        """
        if self._began_on:
            raise ValueError("the memory that a step needs without recomputation is not known")

    def restore(self) -> None:
        """Leave the model as it was before the training."""
        if self._offered:
            self.switch(self._began_on)

    def switch(self, on: bool) -> None:
        """Set the flags of the layers, without a check."""
        for layer, flag in zip(self._layers, self._flags, strict=True):
            setattr(layer, FLAG, on and flag)


def model_obstacle(model: Any) -> str:
    """Return why the layers of a model cannot be recomputed with the same result, "" if they can be."""
    modules = list(model.modules())
    found = next((module for module in modules if _offers(module)), None)
    layers = [module for module in modules if hasattr(module, FLAG)]
    if found is None or not found.supports_gradient_checkpointing or not layers:
        return f"{type(found).__name__ if found is not None else 'the model'} does not support it"
    if "value" in inspect.signature(found._set_gradient_checkpointing).parameters:
        return f"{type(found).__name__} supports it in a way that is outdated"
    if any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in modules):
        return "BatchNorm would count each batch twice"
    hooks = (
        hook
        for module in modules
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    )
    if not all(str(getattr(hook, "__module__", "")).startswith("transformers.") for hook in hooks):
        return "the model has forward hooks, which recomputation would call twice"
    if any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in modules
    ):
        return "a compiled model would be compiled again, and round otherwise"
    frozen = not all(parameter.requires_grad for parameter in model.parameters())
    functions = (getattr(layer, FUNCTION, None) for layer in layers if getattr(layer, FLAG))
    if frozen and any(
        getattr(function, "keywords", {}).get("use_reentrant") is not False for function in functions
    ):
        return "reentrant recomputation may leave out gradients of a model that is partly frozen"
    return ""


def wrapper_obstacle(wrapped: Any) -> str:
    """Return why the wrapper around a model prevents recomputation, "" if it does not."""
    if any(
        isinstance(module, torch.distributed.fsdp.FullyShardedDataParallel)
        or hasattr(module, "set_requires_gradient_sync")
        for module in wrapped.modules()
    ):
        return "it is not tested with FSDP, which would gather the weights of each layer once more"
    if isinstance(wrapped, torch.nn.DataParallel):
        return "it is not tested with DataParallel"
    if getattr(wrapped, "static_graph", False):
        return "DistributedDataParallel has a static graph"
    return ""


def _offers(module: Any) -> bool:
    """Whether a module is a model of transformers. A wrapper such as PEFT's only passes its attributes on."""
    kind = type(module)
    return hasattr(kind, "_set_gradient_checkpointing") and hasattr(kind, "supports_gradient_checkpointing")
