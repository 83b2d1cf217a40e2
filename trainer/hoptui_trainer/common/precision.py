"""The number format of matrix products: by name, or chosen by what the device can do."""

from __future__ import annotations

from typing import Literal

import torch

from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.modes import Precision

AMPERE, ADA = (8, 0), (8, 9)
"""The first compute capabilities with TF32 and bf16, and with FP8."""


def choose_precision(name: Precision | Literal["auto"], device: torch.device) -> Precision:
    """The precision to compute in; `auto` is bf16 where the GPU has it, fp16 on older ones, fp32 on the CPU.

    Raises:
        UsageError: the device cannot compute in the precision asked for.
    """
    if device.type != "cuda":
        if name in ("tf32", "fp8"):
            raise UsageError(f"--precision {name}: it needs a GPU")
        return "fp32" if name == "auto" else name
    capability = torch.cuda.get_device_capability(device)
    if name == "auto":
        return "bf16" if capability >= AMPERE else "fp16"
    needed = {"tf32": AMPERE, "bf16": AMPERE, "fp8": ADA}.get(name, (0, 0))
    if capability < needed:
        raise UsageError(
            f"--precision {name}: {torch.cuda.get_device_name(device)} has compute capability "
            f"{capability[0]}.{capability[1]}, and it needs {needed[0]}.{needed[1]}"
        )
    return name


def compute_dtype(precision: Precision) -> torch.dtype:
    """The format of activations where autocast applies."""
    return {"bf16": torch.bfloat16, "fp8": torch.bfloat16, "fp16": torch.float16}.get(
        precision, torch.float32
    )


def use(precision: Precision) -> None:
    """Let float32 products use TF32 unless `fp32` is asked for: matmuls, and convolutions, of which this
    trainer has none. For the whole process."""
    shorter = precision != "fp32"
    torch.set_float32_matmul_precision("high" if shorter else "highest")
    torch.backends.cudnn.allow_tf32 = shorter


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """The context in which forward passes run.

    Without the cache of cast weights: a cast inside of a CUDA graph must be repeated with every replay.
    """
    dtype = compute_dtype(precision)
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32, cache_enabled=False)


def grad_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler:
    """Scales losses under fp16, whose gradients would vanish; does nothing otherwise (bf16 has float32's
    range)."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")
