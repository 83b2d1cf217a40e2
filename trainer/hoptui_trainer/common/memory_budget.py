"""How much memory a run plans with, and the line that reports the memory of its device."""

from __future__ import annotations

import psutil
import torch

from hoptui_trainer.common.cgroups import granted_bytes
from hoptui_trainer.common.device import address_space_bytes, free_bytes
from hoptui_trainer.common.memory_limit import MemoryLimit, parse_limit

USABLE = 0.92
"""The part of the free memory that a run plans with if no limit is given."""

_limit: MemoryLimit | None = None


def set_limit(text: str | None) -> None:
    """Plan within this limit from now on; None removes it. It counts for the whole process.

    Raises:
        UsageError: see `parse_limit`.
    """
    global _limit
    _limit = None if text is None else parse_limit(text)


def held_bytes(device: torch.device) -> int:
    """The memory that this process uses: allocated by torch on a GPU, resident on a CPU."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return int(psutil.Process().memory_info().rss)


def total_bytes(device: torch.device, local_world: int) -> int:
    """The memory of the device. On a CPU: what the machine, the container and `ulimit -v` allow, in equal
    parts for the `local_world` ranks of the machine."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    shared, own = granted_bytes(), address_space_bytes()
    total = psutil.virtual_memory().total
    total = (total if shared is None else min(total, shared)) // local_world
    return total if own is None else min(total, own)


def usable_bytes(device: torch.device, free: int, limit: int | None) -> int:
    """How many of `free` bytes may be planned with, if `limit` bytes are allowed (None: no limit was given).

    A limit replaces `USABLE` on a GPU. On a CPU `USABLE` holds as well, because a process that takes too much
    is killed there.
    """
    if limit is None:
        return int(USABLE * free)
    return min(free if device.type == "cuda" else int(USABLE * free), limit)


def limit_bytes(device: torch.device, local_world: int) -> int:
    """The bytes that this process may use in all, with what it holds; one of `local_world` ranks of the
    machine."""
    limit = None if _limit is None else _limit.of(total_bytes(device, local_world))
    return usable_bytes(device, free_bytes(device, local_world) + held_bytes(device), limit)


def bytes_within_limit(device: torch.device, local_world: int) -> int | None:
    """The bytes that `--memory-limit` leaves beside what this process holds, 0 or more; None without it."""
    if _limit is None:
        return None
    return max(0, _limit.of(total_bytes(device, local_world)) - held_bytes(device))


def memory_line(device: torch.device, local_world: int) -> str:
    """The memory of the device, for the introduction of a run: total, allocated by this process, free, and
    how much the run plans with."""
    total, held = total_bytes(device, local_world), held_bytes(device)
    figures = (
        f"{total / 1e9:.1f} GB total",
        f"{held / 1e9:.1f} GB allocated",
        f"{free_bytes(device, local_world) / 1e9:.1f} GB free",
        f"{limit_bytes(device, local_world) / 1e9:.1f} GB planned with",
    )
    return f"memory: {', '.join(figures)}" + (f" (--memory-limit {_limit.text})" if _limit else "")
