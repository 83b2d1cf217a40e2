"""Generators for initial weights, one per purpose. Numbers drawn in a loop come from `counter_rng.py`."""

from __future__ import annotations

import hashlib

import torch


def stream(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator on `device` that depends on the run's seed and on its purpose, and on nothing else.

    The global generators of torch are never drawn from: what else a process does cannot change a run's
    results.
    """
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=4).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest))
