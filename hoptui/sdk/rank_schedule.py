"""The boundary at which all ranks exchange commands next: a joint boundary.

The threads of the ranks agree on it over the store, while training goes on. Rank 0 proposes a boundary that
is a little ahead. Each rank accepts, or refuses if it has passed that boundary. Then rank 0 decides: a joint
boundary, or none, and another proposal. A rank that comes to a proposed boundary before the decision waits
for it. So a boundary without a proposal costs a look at one attribute.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from hoptui.domain.facts import Fact, fact
from hoptui.sdk.rank_store import Presence, RankStore, SharingError

POLL_S = 0.1
"""How often a rank looks for a proposal."""
FAST_POLL_S = 0.003
"""How often a rank looks for answers and for a decision."""
AHEAD_S = 0.25
"""How far ahead a boundary is proposed at first. After a refusal it is twice as far."""
MOST_AHEAD_S = 2.0
ANSWERS_S = 2.0
"""How long rank 0 waits for answers."""
HELD_S = 0.5
"""How long it waits once it has come to the proposed boundary itself."""
LATE_AGAIN_S, LONGEST_AGAIN_S = 1.0, 8.0
"""How long rank 0 proposes nothing after a rank did not answer. Each time in a row it is twice as long."""
JOIN_S = 5.0
"""How long commands wait at the start of a run for ranks that have not connected yet."""
YES, NO = b"yes", b"no"
"""Answers and decisions. A rank that refuses answers with the boundary that it has come to."""
PACE_S = 1.0
"""The time over which the pace of the boundaries is measured."""


class BoundaryProposal(NamedTuple):
    """A boundary at which the ranks may meet. Both numbers count from 1."""

    number: int
    boundary: int


class RankMember(Protocol):
    """What a rank has to do with the others. All of it is called in the thread of the schedule."""

    def pending(self) -> bool:
        """Whether this rank has something for a joint boundary."""
        ...

    def identified(self, identity: bytes) -> None:
        """Rank 0 has written the identity of the run."""
        ...

    def unanswered(self, why: Fact | None) -> None:
        """There is no joint boundary now. `why` is None if ranks may only be late, else there will be none.

        Raises:
            SharingError: this rank does not wait for the others.
        """
        ...

    def failed(self, error: Exception) -> None:
        """The schedule has a fault, and its thread ends."""
        ...


class RankSchedule:
    """Agrees with the other ranks on joint boundaries.

    The training thread calls `due`, `finish` and `close`. `passed` counts the boundaries that it has come to.
    `finished` is the number of the last proposal that became a joint boundary and has taken place. Each field
    is written by one of the two threads, so they need no lock.

    Args:
        store: What the ranks share.
        prefix: Of the keys of this run.
        presence: Which ranks take part.
        identity: What rank 0 writes about the run. None: this rank waits for it.
        member: This rank.
    """

    def __init__(
        self, store: RankStore, prefix: str, presence: Presence, identity: bytes | None, member: RankMember
    ) -> None:
        self.passed = 0
        self._store, self._prefix, self._presence = store, prefix, presence
        self._identity, self._member = identity, member
        self._identified = False
        self._attention = False  # whether the training thread has to look
        self._proposal: BoundaryProposal | None = None
        self._decision: tuple[int, bool] = (0, False)  # of the proposal with this number
        self._decided = threading.Event()
        self.finished = 0
        self._seen = 0  # the number of the last proposal that the training thread came to
        self._broken = ""
        self._next = self._oldest = 1
        self._requested, self._requested_at = 0, 0.0
        self._ahead_s = AHEAD_S
        self._started = time.monotonic()
        self._again_s, self._again_at = LATE_AGAIN_S, 0.0
        self._furthest = 0  # the boundary that the rank had come to which refused the last proposal
        self._pace: deque[tuple[float, int]] = deque()
        self._closing = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._main, name="hoptui-ranks", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    # called by the training thread --------------------------------------------------------------------------

    def due(self, passed: int) -> bool:
        """Come to the boundary of this number. Return whether it is a joint one; then call `finish` after it.

        Raises:
            SharingError: the ranks can no longer communicate.
        """
        self.passed = passed
        return self._attention and self._look()

    def finish(self) -> None:
        """The joint boundary has taken place on this rank."""
        self.finished = self._seen
        self._wake.set()

    def close(self, limit_s: float) -> None:
        """This rank passes no more boundaries. Return once the others can know it, or after `limit_s`."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(limit_s)

    # inside -------------------------------------------------------------------------------------------------

    def _look(self) -> bool:
        if self._broken:
            raise SharingError(self._broken)
        proposal = self._proposal
        if proposal is None or proposal.number <= self._seen or self.passed < proposal.boundary:
            return False
        while self._decision[0] < proposal.number:
            if self._broken:
                raise SharingError(self._broken)
            self._decided.wait(POLL_S)
            self._decided.clear()
        self._seen = proposal.number
        return self._decision[1]

    def _main(self) -> None:
        turn = self._lead if self._store.rank == 0 else self._follow
        try:
            while not self._closing:
                self._presence.live()
                self._note_pace()
                self._identify()
                number, joint = self._decision
                if not joint or self.finished >= number:
                    self._attention = False  # nothing is proposed
                    turn()
                self._wake.wait(POLL_S)
                self._wake.clear()
        except SharingError as error:
            self._break(str(error))
        except Exception as error:
            self._member.failed(error)
            self._break(f"{type(error).__name__}: {error}")
        finally:
            with contextlib.suppress(Exception):  # the store may have gone
                self._presence.leave()

    def _identify(self) -> None:
        if self._identified:
            return
        key = f"{self._prefix}identity"
        if self._identity is not None:
            self._store.set(key, self._identity)
        elif (written := self._store.get(key)) is not None:
            self._member.identified(written)
        else:
            return
        self._identified = True

    def _break(self, reason: str) -> None:
        self._broken = reason
        self._attention = True
        self._decided.set()

    def _key(self, kind: str, number: int) -> str:
        return f"{self._prefix}{kind}/{number}"

    def _note_pace(self) -> None:
        now, pace = time.monotonic(), self._pace
        pace.append((now, self.passed))
        while now - pace[0][0] > PACE_S and len(pace) > 2:
            pace.popleft()

    def _boundaries_in(self, seconds: float) -> int:
        """Return how many boundaries pass in this time, at least one."""
        (then, first), (now, last) = self._pace[0], self._pace[-1]
        # After a suspension the two may be milliseconds apart, with a boundary between them.
        rate = (last - first) / max(now - then, AHEAD_S)
        return max(1, math.ceil(rate * seconds))

    def _accept(self, proposal: BoundaryProposal) -> bool:
        """Make the training thread wait at the proposed boundary. Return False if it has passed it."""
        self._proposal = proposal
        self._attention = True
        # The training thread counts first and looks then. If it has not counted here, it will look there.
        return self.passed < proposal.boundary

    def _settle(self, proposal: BoundaryProposal, joint: bool) -> None:
        self._decision = (proposal.number, joint)
        self._decided.set()
        self._next += 1

    # rank 0 -------------------------------------------------------------------------------------------------

    def _lead(self) -> None:
        """Propose a boundary if a rank has something for one, and decide."""
        if not self._member.pending() and self._store.get(self._key("request", self._next)) is None:
            return
        now = time.monotonic()
        if why := self._absence(range(1, self._store.world)):
            if why.code == "ranks.left" or now - self._started > JOIN_S:
                self._member.unanswered(why)
            return
        if now < self._again_at:
            self._member.unanswered(None)
            return
        furthest = max(self.passed, self._furthest)
        proposal = BoundaryProposal(self._next, furthest + self._boundaries_in(self._ahead_s))
        accepted = self._accept(proposal)
        self._store.set(self._key("proposal", proposal.number), str(proposal.boundary).encode())
        answers = self._answers(proposal)
        joint = accepted and all(answer == YES for answer in answers)
        self._store.set(self._key("decision", proposal.number), YES if joint else NO)
        self._settle(proposal, joint)
        missing = None in answers
        # Ranks that do not wait for each other in their training may be far apart.
        self._furthest = max((int(answer) for answer in answers if answer not in (None, YES)), default=0)
        if joint:
            self._ahead_s, self._again_s = AHEAD_S, LATE_AGAIN_S
        elif not missing:
            self._ahead_s = min(2 * self._ahead_s, MOST_AHEAD_S)
            self._wake.set()  # at once
        else:
            self._again_at = time.monotonic() + self._again_s
            self._again_s = min(2 * self._again_s, LONGEST_AGAIN_S)
            self._member.unanswered(None)
        if not missing:  # so all have read what was before
            self._forget_before(proposal.number)

    def _answers(self, proposal: BoundaryProposal) -> list[bytes | None]:
        """Return the answers of ranks 1 and above, None of those that gave none in time."""
        ranks = range(1, self._store.world)
        found: dict[int, bytes] = {}
        until, held = time.monotonic() + ANSWERS_S, False
        while len(found) < len(ranks) and time.monotonic() < until and not self._closing:
            for rank in ranks:
                if rank not in found and (answer := self._store.get(self._answer(proposal.number, rank))):
                    found[rank] = answer
            if not held and self.passed >= proposal.boundary:
                held, until = True, min(until, time.monotonic() + HELD_S)
            if len(found) < len(ranks):
                time.sleep(FAST_POLL_S)
        return [found.get(rank) for rank in ranks]

    def _absence(self, ranks: Iterable[int]) -> Fact | None:
        """Return which of these ranks takes no part, None if they may only be late."""
        for rank in ranks:
            if self._presence.left(rank):
                return fact("ranks.left", rank=rank)
            if not self._presence.joined(rank):
                return fact("ranks.missing", rank=rank)
        return None

    def _answer(self, number: int, rank: int) -> str:
        return f"{self._key('answer', number)}/{rank}"

    def _forget_before(self, number: int) -> None:
        while self._oldest < number:
            for kind in ("request", "proposal", "decision"):
                self._store.delete(self._key(kind, self._oldest))
            for rank in range(1, self._store.world):
                self._store.delete(self._answer(self._oldest, rank))
            self._oldest += 1

    # the others ---------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Answer a proposal, and wait for its decision."""
        if self._member.pending():
            self._request()
        raw = self._store.get(self._key("proposal", self._next))
        if raw is None or self._closing:
            return
        proposal = BoundaryProposal(self._next, int(raw))
        accepted = self._accept(proposal)
        self._store.set(
            self._answer(proposal.number, self._store.rank), YES if accepted else str(self.passed).encode()
        )
        while (decision := self._store.get(self._key("decision", proposal.number))) is None:
            if self._closing:
                return
            self._presence.live()
            self._presence.require(0)
            time.sleep(FAST_POLL_S)
        self._settle(proposal, decision == YES)

    def _request(self) -> None:
        """Ask rank 0 for a joint boundary, once for each number.

        Raises:
            SharingError: rank 0 takes no part.
        """
        now = time.monotonic()
        if self._requested < self._next:
            self._requested, self._requested_at = self._next, now
            self._store.set(self._key("request", self._next), b"")
        elif now - self._requested_at > ANSWERS_S and self._absence([0]):
            raise SharingError("rank 0 takes no part")
