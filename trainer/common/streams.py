"""Random numbers: one generator for each purpose, so that drawing for one never shifts another."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def stream(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on `device` that depends on the run's seed and on its purpose, and on nothing else.

    The global generators of torch are never drawn from: what else a process does cannot change a run's results.
    """
    return torch.Generator(device).manual_seed(_number(seed, purpose))


class Streams:
    """The generators that a training loop draws from, saved and restored together."""

    def __init__(self, seed: int, purposes: tuple[str, ...], device: torch.device) -> None:
        self._of = {purpose: stream(seed, purpose, device) for purpose in purposes}

    def __getitem__(self, purpose: str) -> torch.Generator:
        return self._of[purpose]

    def state_dict(self) -> dict[str, Tensor]:
        return {purpose: generator.get_state() for purpose, generator in self._of.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue exactly where `state` was taken; it must come from the same kind of device."""
        for purpose, generator in self._of.items():
            generator.set_state(state[purpose])

    def restart(self, seed: int, salt: str) -> None:
        """Begin anew, with numbers that depend on the seed and on `salt`: for a state from another kind of device."""
        for purpose, generator in self._of.items():
            generator.manual_seed(_number(seed, f"{purpose}/{salt}"))


def _number(seed: int, text: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{text}".encode(), digest_size=4).digest())
