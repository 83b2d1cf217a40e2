"""Random numbers without generators: a hash of a key, an index, a counter and a draw.

A number depends on what it is for and on nothing else: not on how many were drawn before it, for whom, in
which process or on which device (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). So
environment g draws the same numbers alone, among 65,536 others and on another rank, and a checkpoint holds a
counter where it would hold a generator. Nothing here keeps state, branches on data or waits for the device:
it may be compiled and captured in a CUDA graph.

All arithmetic is on 32-bit words held in int64 and never leaves 63 bits, so eager code, inductor and CUDA
give the same bits. Two (key, counter, draw)-dependent words key two rounds of a mixer that bijectively maps
the index: the numbers of one draw are all different.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

WORD = 0xFFFF_FFFF
GOLDEN = 0x9E37_79B9
PLASTIC = 0xC13F_A9A9
"""Odd words that set the draws apart: 2³² over the golden ratio and over its cousin in two dimensions."""
ROUNDS = 6
"""Rounds of the Feistel network of `permuted`; four make it pseudo-random (Luby and Rackoff 1988)."""
FLOAT_BITS = 24
"""A float32 in [0, 1) has so many bits of which every pattern is exact."""

Counter = Tensor | int


def key(seed: int, purpose: str) -> int:
    """The key (63 bits) of a purpose, such as `env`, in the run of a seed."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()) >> 1


def bits(key: int, index: Tensor, counter: Counter, draws: int = 1) -> Tensor:
    """Random words (…, draws) int64 in 0 … 2³² − 1.

    `index` (…) int64 in 0 … 2³² − 1, `counter` a number or 0-d int64 tensor on its device, not negative. The
    first k of n draws are those of k draws. At one key, counter and draw, different indices have different
    words.
    """
    # The mask changes nothing but what inductor makes of the product: without it, an index in 32 bits, which
    # it overflows.
    lane = torch.arange(2 * draws, device=index.device).view(draws, 2) & WORD
    word = _mixed(((lane * GOLDEN + (key & WORD)) & WORD) ^ (counter & WORD))
    word = _mixed((word + lane * PLASTIC + (key >> 32) + (counter >> 32)) & WORD)
    first, second = word.unbind(-1)
    return _mixed((_mixed(index[..., None] ^ first) + second) & WORD)


def uniform(key: int, index: Tensor, counter: Counter, draws: int = 1) -> Tensor:
    """Uniform numbers (…, draws) float32 in [0, 1), multiples of 2⁻²⁴; arguments as for `bits`."""
    return (bits(key, index, counter, draws) >> (32 - FLOAT_BITS)).to(torch.float32) * 2.0**-FLOAT_BITS


def normal(key: int, index: Tensor, counter: Counter, draws: int = 1) -> Tensor:
    """Standard normal numbers (…, draws) float32, none beyond ±5.8; arguments as for `bits`.

    Box and Muller's transform of two uniform numbers for two normal ones. Logarithm and cosine differ between
    devices in the last bits.
    """
    radius, angle = uniform(key, index, counter, draws + draws % 2).view(*index.shape, -1, 2).unbind(-1)
    radius = (-2 * (1 - radius).log()).sqrt()  # 1 − u is never 0
    angle = 2 * math.pi * angle
    return torch.stack((radius * angle.cos(), radius * angle.sin()), -1).flatten(-2)[..., :draws]


def sort_keys(key: int, index: Tensor, counter: Counter) -> Tensor:
    """Numbers (…) int32 of which no two are equal, for different indices: who sorts them draws an order."""
    return (bits(key, index, counter)[..., 0] - (1 << 31)).to(torch.int32)  # half the work of sorting int64


def shuffled(key: int, count: int, counter: Counter, device: torch.device | str) -> Tensor:
    """A random permutation (count,) int64 of 0 … count − 1; no two keys are equal, so every device sorts
    alike."""
    return torch.argsort(sort_keys(key, torch.arange(count, device=device), counter))


def permuted(key: int, count: int, counter: int, index: Tensor) -> Tensor:
    """Where a random permutation of 0 … count − 1 puts each `index` (n,) int64; `count` is at most 2³².

    The permutation is computed and not stored, so its memory is that of `index`, however large `count` is. It
    is a Feistel network over the next power of two, walked until it is below `count` (Black and Rogaway
    2002). On a GPU it waits for the device.
    """
    if not 1 <= count <= 1 << 32:
        raise ValueError(f"a permutation of {count} numbers")
    width = max(2, (count - 1).bit_length())
    words = bits(key, torch.arange(ROUNDS), counter, 2).tolist()
    found = _feistel(index, width, words)
    while len(beyond := (found >= count).nonzero().flatten()):
        found[beyond] = _feistel(found[beyond], width, words)
    return found


def _feistel(index: Tensor, width: int, words: list[list[int]]) -> Tensor:
    """A bijection of 0 … 2^width − 1, keyed by two words a round; an even number of rounds."""
    high, low = width // 2, width - width // 2  # bits of the two halves, which change places each round
    left, right = index >> low, index & ((1 << low) - 1)
    for first, second in words:
        drawn = _mixed((_mixed(right ^ first) + second) & WORD) & ((1 << high) - 1)
        left, right = right, left ^ drawn
        high, low = low, high
    return (left << low) | right


def _mixed(word: Tensor) -> Tensor:
    """A bijection of 32-bit words in which each bit of the input changes half of the output's.

    The triple (16, 15, 15) and the factors are of C. Wellons' search "hash-prospector"; both factors are
    below 2³¹, so no product reaches 2⁶³.
    """
    word = (word ^ (word >> 16)) * 0x21F0_AAAD & WORD
    word = (word ^ (word >> 15)) * 0x735A_2D97 & WORD
    return word ^ (word >> 15)
