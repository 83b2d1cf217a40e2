"""The knob `gradient_checkpointing` of `transformers.Trainer`: activations are recomputed, or kept."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

import hoptui
from hoptui.integrations.micro_batch_split import MEMORY_MARGIN, MicroBatchSplit
from hoptui.integrations.micro_batches import cut, row_count, row_length
from hoptui.integrations.trainer_internals import size_of

NAME = "gradient_checkpointing"
FLAG = "gradient_checkpointing"
"""The attribute of the modules of a model that recompute their activations."""
FUNCTION = "_gradient_checkpointing_func"
"""The attribute with the function that recomputes. It is called while the flag is set."""


class GradientCheckpointing:
    """Whether the layers of the model of one training recompute their activations in the backward pass.

    Only the flags of the layers change. `gradient_checkpointing_enable` also adds hooks to the embeddings,
    once more with each call. Recomputation that is not reentrant does not need them.
    """

    def __init__(self, trainer: Any, split: MicroBatchSplit) -> None:
        self._trainer, self._split = trainer, split
        self._layers = [module for module in trainer.model.modules() if hasattr(module, FLAG)]
        self._flags = [bool(getattr(layer, FLAG)) for layer in self._layers]  # while it is on
        self._began_on, self._offered = self.on, False

    @property
    def on(self) -> bool:
        """Whether a layer recomputes its activations."""
        return any(getattr(layer, FLAG) for layer in self._layers)

    def offer(self, run: hoptui.Run) -> None:
        """Declare the knob, or the reason why there is none."""
        if reason := obstacle(self._trainer):
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
            ValueError: they would not fit into the memory of the GPU. The text is for users.
        """
        if on == self.on:
            return
        if not on and self._trainer.args.device.type == "cuda":
            self._check_memory()
            self._split.measured = False
        self._switch(on)

    def restore(self) -> None:
        """Leave the model as it was before the training."""
        if self._offered:
            self._switch(self._began_on)

    def _switch(self, on: bool) -> None:
        for layer, flag in zip(self._layers, self._flags, strict=True):
            setattr(layer, FLAG, on and flag)

    def _check_memory(self) -> None:
        """Refuse to keep activations that would not fit, by those of one row.

        The estimate is too high rather than too low: the peak so far includes what was kept of each layer.
        """
        device, inputs = self._trainer.args.device, self._split.seen
        if inputs is None:
            raise ValueError("no batch has been seen yet: set it again after the first iteration")
        rows, taken = row_count(inputs) or 0, self._kept_of_one_row(inputs)
        longer = max(1.0, self._split.longest / max(1, row_length(inputs)))
        most = self._split.largest or rows
        # The scores of attention grow with the square of the length.
        needed = torch.cuda.max_memory_allocated(device) + taken * most * longer**2
        free, total = torch.cuda.mem_get_info(device)
        available = MEMORY_MARGIN * (free + torch.cuda.memory_reserved(device))
        if needed > available:
            gib = 1 << 30
            raise ValueError(
                f"without recomputation a step would need about {needed / gib:.1f} GiB, and "
                f"{available / gib:.1f} GiB of {total / gib:.1f} GiB are available"
            )

    def _kept_of_one_row(self, inputs: Any) -> int:
        """Return the bytes of activations that a forward pass of one row keeps without recomputation."""
        trainer, device = self._trainer, self._trainer.args.device
        prepared = trainer._prepare_inputs(inputs)
        rows = row_count(prepared) or 0
        row = cut(prepared, [1, rows - 1])[0] if rows > 1 else prepared
        self._switch(False)
        try:
            with (
                torch.random.fork_rng([device]),
                torch.compiler.set_stance("force_eager"),
                trainer.compute_loss_context_manager(),
            ):
                before = torch.cuda.memory_allocated(device)
                kept = trainer.model(**row)
                taken = torch.cuda.memory_allocated(device) - before
                del kept
        except Exception as error:
            why = "it does not fit" if isinstance(error, torch.OutOfMemoryError) else str(error)
            raise ValueError(f"the memory of a row without recomputation was not measured: {why}") from None
        finally:
            self._switch(True)
        return max(0, taken)


def obstacle(trainer: Any) -> str:
    """Return why recomputation cannot be switched in this training, "" if it can be."""
    args, model = trainer.args, trainer.model
    modules = list(model.modules())
    if getattr(trainer, "is_deepspeed_enabled", False):
        return "it is not tested with DeepSpeed"
    if any(
        isinstance(module, FullyShardedDataParallel) or hasattr(module, "set_requires_gradient_sync")
        for module in (trainer.model_wrapped, *modules)
    ):
        return "it is not tested with FSDP, which would gather the weights of each layer once more"
    if args.n_gpu > 1:
        return "it is not tested with DataParallel"
    if args.device.type == "xla" or getattr(trainer, "is_fsdp_xla_enabled", False):
        return "XLA compiles each step as a whole"
    if args.torch_compile or any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in (trainer.model_wrapped, *modules)
    ):
        return "a compiled model would be compiled again, and round otherwise"
    if any(size_of(trainer, name) > 1 for name in ("get_tp_size", "get_cp_size", "get_sp_size")):
        return "it is not tested with a model or sequences that are spread over ranks"
    if getattr(trainer.model_wrapped, "static_graph", False):
        return "DistributedDataParallel has a static graph"
    if getattr(trainer.accelerator, "mixed_precision", "") == "fp8":
        return "fp8 scales by every forward pass, and recomputation adds some"
    return _obstacle_of(model, modules)


def _obstacle_of(model: Any, modules: list[Any]) -> str:
    """Return why the layers of this model cannot be recomputed with the same result."""
    found = next((module for module in modules if isinstance(module, PreTrainedModel)), None)
    layers = [module for module in modules if hasattr(module, FLAG)]
    if found is None or not found.supports_gradient_checkpointing or not layers:
        return f"{type(found or model).__name__} does not support it"
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
    frozen = not all(parameter.requires_grad for parameter in model.parameters())
    functions = (getattr(layer, FUNCTION, None) for layer in layers if getattr(layer, FLAG))
    if frozen and any(
        getattr(function, "keywords", {}).get("use_reentrant") is not False for function in functions
    ):
        return "reentrant recomputation may leave out gradients of a model that is partly frozen"
    return ""
