"""Which ranks share a compile cache: one of them compiles, and the others load its kernels.

Without this each rank measures for itself. A rank that chose a slower kernel would delay every collective.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence

import torch
from torch.compiler import config

from hoptui_trainer.common.heartbeat import machine

FOLDER = "TORCHINDUCTOR_CACHE_DIR"

Cache = tuple[str, ...]


def kernel_cache(device: torch.device) -> Cache | None:
    """Equal for processes that compile the same and find what the others compiled on disk; None if none
    does.

    That is on one machine, for GPUs of one kind that have the same index in their processes, and with one
    folder for what torch.compile keeps there: graphs, kernels, and for each kernel the blocks that were
    measured to be fastest, which another process takes over. On a CPU nothing is measured, and compiling is
    seldom asked for.
    """
    if device.type != "cuda" or config.force_disable_caches:
        return None
    folder = os.environ.get(FOLDER, tempfile.gettempdir())
    return machine(), torch.cuda.get_device_name(device), str(device), folder


def followers(caches: Sequence[Cache | None]) -> list[bool]:
    """For each rank, whether one before it has the same cache, and so compiles for it."""
    return [cache is not None and cache in caches[:rank] for rank, cache in enumerate(caches)]
