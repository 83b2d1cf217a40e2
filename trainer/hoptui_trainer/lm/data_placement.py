"""Where tokens are while a run trains on them: on its device, or on disk."""

from __future__ import annotations

import torch
from torch import Tensor

from hoptui_trainer.common.device import free_bytes
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.memory_budget import bytes_within_limit
from hoptui_trainer.lm.sequence_sampler import Sampler, SequenceSampler
from hoptui_trainer.lm.streamed_sampler import StreamedSampler
from hoptui_trainer.lm.token_shards import TokenShards

SHARE = 0.1
"""Tokens are kept on a device if they take at most this part of its free memory."""
MOST_ON_CPU = 64 << 20
"""Bytes of tokens that are kept in the host's memory at most, for a run on the CPU."""


def place(
    tokens: TokenShards, device: torch.device, local_world: int, stream: bool | None
) -> tuple[TokenShards | Tensor, str]:
    """The tokens on the device, or in their files, and a few words on which and why.

    Args:
        stream: whether to leave them on disk; None: as they fit.

    Raises:
        UsageError: they are to be on the device, and do not fit.
    """
    size, free = tokens.nbytes, free_bytes(device, local_world)
    allowed = bytes_within_limit(device, local_world)
    free = free if allowed is None else min(free, allowed)
    most = int(SHARE * free)
    if device.type == "cpu":
        most = min(most, MOST_ON_CPU)
    if stream is False and size > free:
        raise UsageError(f"--no-stream: {_gb(size)} of tokens, and {_gb(free)} of memory are free")
    if size > most if stream is None else stream:
        reason = "--stream" if stream else f"more than the {_gb(most)} that may stay in memory"
        return tokens, f"read from disk while training ({_gb(size)}; {reason})"
    where = "in memory" if device.type == "cpu" else "on the GPU"
    return tokens.load(device), f"{where} ({_gb(size)})"


def make_sampler(tokens: TokenShards | Tensor, seed: int, block: int, device: torch.device) -> Sampler:
    """The stream of these tokens; see `BlockOrder` for `block`."""
    if isinstance(tokens, Tensor):
        return SequenceSampler(tokens.to(device), seed, block)
    return StreamedSampler(tokens, seed, block, device)


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 10_000_000 else f"{count / 1e6:.2f} MB"
