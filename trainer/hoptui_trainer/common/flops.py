"""What the hardware could do and what the model needs: FLOPs by convention, never by a profiler.

Only the matrix products of the model count, forward and backward, each multiplication and addition as one
(PaLM, arXiv:2204.02311, appendix B); what checkpointing computes twice is not counted twice.
"""

from __future__ import annotations

import torch

from hoptui.telemetry.gpu_specs import peak_flops
from hoptui_trainer.common.modes import Precision

CONVENTION = (
    "MFU: model FLOPs over the GPU's dense peak in the precision used (989 TFLOP/s for bf16 on H100 and "
    "H200 SXM); FLOPs per token = 6·N + 12·L·d·T; none is given under FP8"
)


def conventions(device: torch.device, unit: str = "") -> tuple[str, ...]:
    """What MFU means, with more on a `unit`; nothing on a CPU, which has no MFU."""
    return (CONVENTION + unit,) if device.type == "cuda" else ()


def transformer_flops(parameters: int, layers: int, width: int, length: int) -> float:
    """FLOPs of training on one token of a sequence of `length`: 6·N + 12·L·d·T, attention not halved for
    causality.

    `parameters` are those in matrix products: with the output head, without a table of embeddings.
    """
    return 6 * parameters + 12 * layers * width * length


def mfu(
    flops_per_unit: float, units_per_s: float, device: torch.device, precision: Precision, world: int = 1
) -> float | None:
    """Model FLOPs utilization of `world` GPUs together, as a fraction; None where it would mean nothing.

    That is on a CPU, on a GPU whose peak is not known, and under FP8, where part of the work has another
    peak.
    """
    if device.type != "cuda" or precision == "fp8":
        return None
    peak = peak_flops(torch.cuda.get_device_name(device), precision)
    return None if peak is None else flops_per_unit * units_per_s / (peak * world)
