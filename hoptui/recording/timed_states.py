"""States of a run or of its node as values of a recording: one for each slot of time, of the last hours.

The table `meta` holds them, because older versions ignore keys that they do not know there. A value is the
stored stamp in 8 bytes, and the encoded state.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

SECOND_NS = 1_000_000_000
MOST_STORED = 256 << 10


class StoredState(NamedTuple):
    """The stored stamp of a state, and the state."""

    t: int
    body: bytes


class StateKind:
    """A kind of state, and its slots. A later state replaces the one of the same slot.

    Args:
        prefix: begins its keys.
        every_s: the time that a slot stands for, in seconds.
        slots: how many are kept. The newest states replace the oldest.
        looked_at: a state says what was then for so many slots.
    """

    def __init__(self, prefix: str, every_s: int, slots: int, looked_at: int) -> None:
        self.every_ns = every_s * SECOND_NS
        self.looked_at = looked_at
        self._prefix, self._slots = prefix, slots

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """All its keys."""
        return tuple(f"{self._prefix}/{slot:03}" for slot in range(self._slots))

    def key(self, t: int) -> str:
        """Return the key of the state at a stored stamp."""
        return self.keys[t // self.every_ns % self._slots]


JOB = StateKind("job", every_s=60, slots=240, looked_at=3)
"""The run on all its nodes, as `hoptui.protocol.recorded_jobs` encodes it."""
PROCESSES = StateKind("processes", every_s=5, slots=2880, looked_at=12)
"""The processes on the GPUs of the node, as `hoptui.protocol.recorded_processes` encodes them."""


def pack(t: int, body: bytes) -> bytes:
    """Return a value."""
    return t.to_bytes(8, "big", signed=True) + body


def unpack(value: bytes | str | None) -> StoredState | None:
    """Return what a value holds, None if it is none."""
    if not isinstance(value, bytes) or not 8 < len(value) <= MOST_STORED:
        return None
    return StoredState(int.from_bytes(value[:8], "big", signed=True), value[8:])
