"""What the hardware could do and what the model needs: FLOPs by convention, never by a profiler.

Only the matrix products of the model count, forward and backward, each multiplication and addition as one
(PaLM, arXiv:2204.02311, appendix B); what checkpointing computes twice is not counted twice.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from hoptui.telemetry.gpu_specs import peak_flops
from hoptui_trainer.common.modes import Precision

CONVENTION = (
    "MFU: model FLOPs over the GPU's dense peak in the precision used (989 TFLOP/s for bf16 on H100 and "
    "H200 SXM); FLOPs per token = 6·N + 12·L·d·T; under FP8 each part counts against its own peak"
)


class Cost(NamedTuple):
    """FLOPs of a unit of work, and the precision whose peak they are held against. 0: unknown."""

    flops: float
    precision: Precision


def conventions(device: torch.device, unit: str = "") -> tuple[str, ...]:
    """What MFU means, with more on a `unit`; nothing on a CPU, which has no MFU."""
    return (CONVENTION + unit,) if device.type == "cuda" else ()


def transformer_flops(parameters: int, layers: int, width: int, length: int) -> float:
    """FLOPs of training on one token of a sequence of `length`: 6·N + 12·L·d·T, attention not halved for
    causality.

    `parameters` are those in matrix products: with the output head, without a table of embeddings.
    """
    return 6 * parameters + 12 * layers * width * length


def mixed_cost(flops: float, in_float8: float, device: torch.device) -> Cost:
    """The cost of a unit of `flops`, of which `in_float8` are computed in FP8 and the others in bf16.

    It is the FLOPs that bf16's peak allows in the shortest time for both parts, one after the other:
    `in_float8` over the peak of FP8, and the others over the peak of bf16.
    """
    name = torch.cuda.get_device_name(device)
    slow, fast = peak_flops(name, "bf16"), peak_flops(name, "fp8")
    if slow is None or fast is None:
        return Cost(0.0, "bf16")
    return Cost(flops - in_float8 + in_float8 * slow / fast, "bf16")


def mfu(cost: Cost, units_per_s: float, device: torch.device, world: int = 1) -> float | None:
    """Model FLOPs utilization of `world` GPUs together, as a fraction; None where it would mean nothing: on a
    CPU, and on a GPU whose peak is not known."""
    if device.type != "cuda" or not cost.flops:
        return None
    peak = peak_flops(torch.cuda.get_device_name(device), cost.precision)
    return None if peak is None else cost.flops * units_per_s / (peak * world)
