"""The keys of one meeting of the ranks, in a store that may hold those of an earlier one.

With torchrun, the ranks of an elastic restart find the store of the ranks before them, with all that these
have written. So each meeting has keys of its own: rank 0 makes up their prefix, and hands it to each rank
that says hello. A rank knows the answer to its own hello from an old one by a number that it has made up.
"""

from __future__ import annotations

import os
import time

from hoptui.sdk.rank_store import Presence, RankStore, SharingError

LOOK_S, LEAST_S, OF_RANK_S = 0.05, 0.25, 0.01
"""How often rank 0 looks for ranks that it has not met: each time it waits twice as long, up to a time that
grows with their number. Some scripts connect on rank 0 alone."""
NONCE = 16
"""Characters of the number of a hello."""
PARTED = b"parted "
"""Before the number of a rank that has left before it met rank 0."""


class RankSession:
    """A `RankStore` with the keys of one meeting. Until this rank has met rank 0, a call raises SharingError.

    Args:
        store: The store.
        prefix: Of the keys of this run.
    """

    def __init__(self, store: RankStore, prefix: str) -> None:
        self.rank, self.world = store.rank, store.world
        self._store, self._prefix = store, prefix
        self._nonce = os.urandom(NONCE // 2).hex()
        self._keys = f"{prefix}{self._nonce}/" if self.rank == 0 else ""
        self._unmet = set(range(1, self.world)) if self.rank == 0 else set()
        self._answered: dict[int, bytes] = {}
        self._look_s, self._look_at = LOOK_S, 0.0
        self._greeted = False

    @property
    def met(self) -> bool:
        """Whether this rank knows the keys."""
        return bool(self._keys)

    def meet(self, presence: Presence) -> bool:
        """Go on with the meeting: call it from time to time. Return whether this rank knows the keys.

        Args:
            presence: Which ranks take part, under the keys of this meeting.

        Raises:
            SharingError: the store raised.
        """
        if self.rank == 0:
            self._answer(presence)
        elif not self._keys:
            self._ask()
        return self.met

    def part(self) -> None:
        """Write that this rank takes no part. It has not met rank 0."""
        self._store.set(f"{self._prefix}hello/{self.rank}", PARTED + self._nonce.encode())

    def set(self, key: str, value: bytes) -> None:
        """See RankStore."""
        self._store.set(self._key(key), value)

    def get(self, key: str) -> bytes | None:
        """See RankStore."""
        return self._store.get(self._key(key))

    def delete(self, key: str) -> None:
        """See RankStore."""
        self._store.delete(self._key(key))

    def _key(self, key: str) -> str:
        if not self._keys:
            raise SharingError("rank 0 has not answered yet")
        return f"{self._keys}{key}"

    def _ask(self) -> None:
        if not self._greeted:
            self._store.set(f"{self._prefix}hello/{self.rank}", self._nonce.encode())
            self._greeted = True
        answer = (self._store.get(f"{self._prefix}answer/{self.rank}") or b"").decode(errors="replace")
        if answer.startswith(self._nonce):
            self._keys = f"{self._prefix}{answer[NONCE:]}/"

    def _answer(self, presence: Presence) -> None:
        now = time.monotonic()
        if not self._unmet or now < self._look_at:
            return
        before = len(self._unmet)
        for rank in sorted(self._unmet):
            hello = self._store.get(f"{self._prefix}hello/{rank}")
            if hello is not None and hello != self._answered.get(rank):  # it may be an old one
                if hello.startswith(PARTED):
                    presence.leave(rank)
                else:
                    presence.back(rank)
                    self._store.set(f"{self._prefix}answer/{rank}", hello + self._nonce.encode())
                self._answered[rank] = hello
                self._look_s = LOOK_S
            elif hello is not None and presence.joined(rank):
                self._unmet.discard(rank)
        longest = max(LEAST_S, OF_RANK_S * len(self._unmet))
        self._look_s = LOOK_S if len(self._unmet) < before else min(2 * self._look_s, longest)
        self._look_at = now + self._look_s
