"""The states of a run on several nodes as values of a recording: one a minute, of the last hours.

The table `meta` holds them, because older versions ignore keys that they do not know there. A value is the
stored stamp in 8 bytes, and the state as `hoptui.protocol.recorded_jobs` encodes it.
"""

from __future__ import annotations

from typing import NamedTuple

MINUTE_NS = 60_000_000_000
SLOTS = 240
"""Minutes that are kept. A later state replaces the one of the same slot."""
KEYS = tuple(f"job/{slot:03}" for slot in range(SLOTS))
LOOKED_AT = 3
"""Minutes before a moment in which a state still says what was then."""
MOST_STORED = 256 << 10


class StoredState(NamedTuple):
    """The stored stamp of a state, and the state."""

    t: int
    body: bytes


def key(t: int) -> str:
    """Return the key of the state at a stored stamp."""
    return KEYS[t // MINUTE_NS % SLOTS]


def pack(t: int, body: bytes) -> bytes:
    """Return a value."""
    return t.to_bytes(8, "big", signed=True) + body


def unpack(value: bytes | str | None) -> StoredState | None:
    """Return what a value holds, None if it is none."""
    if not isinstance(value, bytes) or not 8 < len(value) <= MOST_STORED:
        return None
    return StoredState(int.from_bytes(value[:8], "big", signed=True), value[8:])
