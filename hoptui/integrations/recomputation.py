"""The knob `gradient_checkpointing` of `transformers.Trainer`, with the memory that activations need."""

from __future__ import annotations

from typing import Any

import torch

from hoptui.integrations.activation_recomputation import (
    ActivationCheckpointing,
    model_obstacle,
    wrapper_obstacle,
)
from hoptui.integrations.micro_batch_split import MEMORY_MARGIN, MicroBatchSplit
from hoptui.integrations.micro_batches import cut, row_count, row_length
from hoptui.integrations.trainer_internals import size_of


class GradientCheckpointing(ActivationCheckpointing):
    """Whether the layers of the model of one `Trainer` recompute their activations."""

    def __init__(self, trainer: Any, split: MicroBatchSplit) -> None:
        super().__init__(trainer.model, on_gpu=trainer.args.device.type == "cuda")
        self._trainer, self._split = trainer, split

    def check_memory(self) -> None:
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
        self._split.measured = False

    def _kept_of_one_row(self, inputs: Any) -> int:
        """Return the bytes of activations that a forward pass of one row keeps without recomputation."""
        trainer, device = self._trainer, self._trainer.args.device
        prepared = trainer._prepare_inputs(inputs)
        rows = row_count(prepared) or 0
        row = cut(prepared, [1, rows - 1])[0] if rows > 1 else prepared
        self.switch(False)
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
            self.switch(True)
        return max(0, taken)


def obstacle(trainer: Any) -> str:
    """Return why recomputation cannot be switched in this training, "" if it can be."""
    args = trainer.args
    if getattr(trainer, "is_deepspeed_enabled", False):
        return "it is not tested with DeepSpeed"
    if args.n_gpu > 1:
        return "it is not tested with DataParallel"
    if args.device.type == "xla" or getattr(trainer, "is_fsdp_xla_enabled", False):
        return "XLA compiles each step as a whole"
    if args.torch_compile:
        return "a compiled model would be compiled again, and round otherwise"
    if any(size_of(trainer, name) > 1 for name in ("get_tp_size", "get_cp_size", "get_sp_size")):
        return "it is not tested with a model or sequences that are spread over ranks"
    if getattr(trainer.accelerator, "mixed_precision", "") == "fp8":
        return "fp8 scales by every forward pass, and recomputation adds some"
    return wrapper_obstacle(trainer.model_wrapped) or model_obstacle(trainer.model)
