"""The stack samples of a minute as a value of a recording: of all ranks, compressed.

The table `meta` holds them, because older versions ignore keys that they do not know there. A value is zlib
of msgpack. Its stamps are milliseconds before the stamp in its key.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from hoptui.domain import stacks
from hoptui.domain.stack_merger import Frame, RankCounts, SharedStacks, StackMerger, samples_of
from hoptui.domain.stacks import MOST_DEPTH, StackSamples
from hoptui.protocol.ranges import MOST_STAMP
from hoptui.recording import limits

PREFIX, END = "stacks/", "stacks0"
"""Of the keys in `meta`, and what follows all of them. The rest of a key is a stored stamp in 20 digits."""
MINUTE_BYTES = 15_000
"""The most bytes of a minute: 0.9 MB an hour, whatever the number of ranks."""
MOST_RANKS = 128
"""Ranks of a minute. Those with higher numbers are left out and counted."""
RANK_BYTES = 48
"""Bytes that each rank of a minute needs at least. Where there are fewer, ranks are left out."""
RAW_BYTES = 64 << 10
"""Estimated bytes of a minute before compression, at first."""
MOST_STORED, MOST_RAW = 64 << 10, 256 << 10
"""The most bytes that are read of a value, and that it may have without compression."""
MOST_LENGTH_MS = 31 * 86_400_000
_MS = 1_000_000


class StackMinute(NamedTuple):
    """The samples of each process over about a minute. `ranks_left_out` are those of which none are kept."""

    ranks: dict[int, StackSamples]
    ranks_left_out: int


class _Rank(msgspec.Struct, frozen=True, array_like=True):
    rank: int
    began: int
    ended: int
    stacks: tuple[int, ...]
    counts: tuple[int, ...]
    left_out: int
    cost_ppm: int


class _Content(msgspec.Struct, frozen=True, array_like=True):
    names: tuple[str, ...]
    frames: tuple[Frame, ...]
    stacks: tuple[tuple[int, ...], ...]
    ranks: tuple[_Rank, ...]
    ranks_left_out: int
    packages: tuple[tuple[int, int], ...] = ()  # as in `StackSamples`


_decoder = msgspec.msgpack.Decoder(_Content)


def encode(parts: Mapping[int, Sequence[StackSamples]], t: int, most_bytes: int = MINUTE_BYTES) -> bytes:
    """Encode the samples of each rank up to the stamp `t` in at most `most_bytes`.

    What does not fit is left out and counted: rare stacks first, then ranks with high numbers.
    """
    merger = StackMerger()
    kept = sorted(parts)[: min(MOST_RANKS, max(1, most_bytes // RANK_BYTES))]
    for rank in kept:
        for part in parts[rank]:
            merger.add(rank, part)
    budget = RAW_BYTES
    while True:
        body = _encoded(merger, merger.shared(budget), t, len(parts) - len(kept))
        if len(body) <= most_bytes or not budget:
            return body
        budget = int(budget * min(0.9, most_bytes / len(body))) if budget > RANK_BYTES else 0


def decode(body: bytes, t: int) -> StackMinute:
    """Return the samples of a value whose key has the stamp `t`.

    Raises:
        ValueError: it is damaged.
    """
    raw = limits.inflated_start(body, MOST_RAW + 1)
    if len(raw) > MOST_RAW:
        raise ValueError(f"stack samples of more than {MOST_RAW} bytes")
    try:
        content = _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    _check(content)
    shared = SharedStacks(
        content.names,
        content.frames,
        content.stacks,
        {each.rank: RankCounts(each.stacks, each.counts, each.left_out) for each in content.ranks},
        content.packages,
    )
    found = {
        each.rank: samples_of(
            shared, each.rank, t - each.began * _MS, t - each.ended * _MS, each.cost_ppm / 1e6
        )
        for each in content.ranks
    }
    for samples in found.values():
        stacks.check(samples)
    return StackMinute(found, content.ranks_left_out)


def key(t: int) -> str:
    """Return the key of a stored stamp. A negative one is stored as 0."""
    return f"{PREFIX}{max(0, t):020d}"


def stamp(text: object) -> int | None:
    """Return the stored stamp in a key, None if it has none."""
    digits = text.removeprefix(PREFIX) if isinstance(text, str) else ""
    if len(digits) != 20 or not (digits.isascii() and digits.isdigit()):
        return None
    return t if (t := int(digits)) <= MOST_STAMP else None


def _encoded(merger: StackMerger, shared: SharedStacks, t: int, ranks_left_out: int) -> bytes:
    ranks = []
    for rank, found in shared.ranks.items():
        whole = merger.spans[rank]
        began, ended = (min(max(0, (t - at) // _MS), MOST_LENGTH_MS) for at in (whole.began, whole.ended))
        ppm = round(1e6 * min(max(0.0, whole.cost), 1.0))
        ranks.append(_Rank(rank, began, ended, found.stacks, found.counts, found.left_out, ppm))
    content = _Content(
        shared.names, shared.frames, shared.stacks, tuple(ranks), ranks_left_out, shared.packages
    )
    return zlib.compress(msgspec.msgpack.encode(content), 6)


def _check(content: _Content) -> None:
    """Check what `stacks.check` does not see. Raises ValueError."""
    ranks = content.ranks
    if len(ranks) > MOST_RANKS or len({each.rank for each in ranks}) < len(ranks):
        raise ValueError("stack samples with a rank twice, or with too many")
    if any(len(stack) > MOST_DEPTH for stack in content.stacks):
        raise ValueError(f"a stack of more than {MOST_DEPTH} frames")
    if content.ranks_left_out < 0:
        raise ValueError("a negative number of ranks")
    for each in ranks:
        if each.rank < 0 or not 0 <= each.ended <= each.began <= MOST_LENGTH_MS:
            raise ValueError("stack samples of no time")
        if not 0 <= each.cost_ppm <= 1_000_000 or each.left_out < 0:
            raise ValueError("stack samples with a negative number")
        if any(not 0 <= index < len(content.stacks) for index in each.stacks):
            raise ValueError("a rank has the index of no stack")
        if len(set(each.stacks)) < len(each.stacks):
            raise ValueError("a rank has a stack twice")
