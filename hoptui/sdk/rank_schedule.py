"""The boundary at which all ranks exchange commands next: a joint boundary.

The threads of the ranks agree on it over the store, while training goes on. Rank 0 proposes a boundary that
is a little ahead. Each rank accepts, or refuses if it has passed that boundary. Then rank 0 decides: a joint
boundary, or none, and another proposal. If the joint boundary does not come in time, because boundaries have
become slower, it proposes a nearer one, which takes its place if all ranks accept. A rank that comes to a
proposed boundary before the decision waits for it. So a boundary without a proposal costs a look at one
attribute.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import msgspec

from hoptui.domain.facts import Fact, fact
from hoptui.sdk.rank_session import RankSession
from hoptui.sdk.rank_store import SILENT_S, CallWatch, Presence, RankStore, SharingError

POLL_S = 0.1
"""How often a rank looks for a proposal."""
SLOW_POLL_S = 0.4
"""How often it does so during a long iteration."""
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
LEAVING_S, LEAVE_AGAIN_S = 30.0, 0.5
"""How long, and how often, a rank tries to write that it takes no part."""
MOVED_S = 30.0
"""Training that has not moved for so long may wait for a silent rank, which may go on later."""
PACE_S = 1.0
"""The time over which the pace of the boundaries is measured. After a burst the last `AHEAD_S` count."""


class BoundaryProposal(NamedTuple):
    """A boundary at which the ranks may meet. Both numbers count from 1."""

    number: int
    boundary: int


class RankMember(Protocol):
    """What a rank has to do with the others. The thread of the schedule calls it, `pending` others too."""

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
        session: Where the ranks meet first. None: they have met.
        watch: Notices that the store answers no more. None: nothing does.
    """

    def __init__(
        self,
        store: RankStore,
        prefix: str,
        presence: Presence,
        identity: bytes | None,
        member: RankMember,
        session: RankSession | None = None,
        watch: CallWatch | None = None,
    ) -> None:
        self.passed = 0
        self._store, self._prefix, self._presence = store, prefix, presence
        self._identity, self._member = identity, member
        self._session, self._pending_since = session, math.inf
        self._watch = watch
        self._identified = False
        self._attention = False  # whether the training thread has to look
        self._proposal: BoundaryProposal | None = None
        self._decision = 0  # the number of the last proposal that was decided
        self._joint: BoundaryProposal | None = None  # the last that became a joint boundary
        self._nearer_at = 0.0  # when rank 0 proposes a nearer one
        self._decided = threading.Event()
        self.finished = 0
        self._seen = 0  # the number of the last proposal that the training thread came to
        self._broken = ""
        self._next = self._oldest = 1
        self._requested, self._requested_at = 0, 0.0
        self._ahead_s = AHEAD_S
        self._started = time.monotonic()
        self._again_s, self._again_at = LATE_AGAIN_S, 0.0
        self._absence_told: Fact | None = None
        self._furthest = 0  # the boundary that the rank had come to which refused the last proposal
        self._pace: deque[tuple[float, int]] = deque()
        self._moved_at = self._started
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

    def watch(self) -> None:
        """Give the other ranks up if the store answers no more. Called once a second in a third thread.

        A store that hangs while nothing waits for it may answer again later.
        """
        if self._broken or self._watch is None or not self._watch.hangs(self._thread.ident):
            return
        proposal = self._proposal
        if self._member.pending() or (proposal is not None and self._decision < proposal.number):
            self._break(f"the store has not answered for {SILENT_S:g} s")

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
        while proposal is not None and self._decision < proposal.number and self.passed >= proposal.boundary:
            if self._broken:
                raise SharingError(self._broken)
            self._decided.wait(POLL_S)
            self._decided.clear()
        joint = self._joint
        if joint is None or joint.number <= self._seen or self.passed < joint.boundary:
            return False
        self._seen = joint.number
        return True

    def _main(self) -> None:
        leads = self._store.rank == 0
        try:
            while not (self._closing or self._broken):
                if self._session is not None and not self._session.meet(self._presence):
                    self._await_meeting()
                    continue
                self._presence.live()
                self._note_pace()
                self._identify()
                joint = self._joint
                if joint is not None and self.finished < joint.number:
                    self._lead_nearer(joint) if leads else self._follow()
                else:
                    self._attention = False  # nothing is proposed
                    self._lead() if leads else self._follow_or_request()
                self._wake.wait(self._poll_s())
                self._wake.clear()
        except SharingError as error:
            self._break(str(error))
        except Exception as error:
            self._member.failed(error)
            self._break(f"{type(error).__name__}: {error}")
        finally:
            self._leave()

    def _leave(self) -> None:
        """Write that this rank takes no part. A store that fails may work again a little later."""
        until = time.monotonic() + LEAVING_S
        session = self._session
        leave = self._presence.leave if session is None or session.met else session.part
        while time.monotonic() <= until:
            with contextlib.suppress(Exception):
                leave()
                return
            time.sleep(LEAVE_AGAIN_S)

    def _await_meeting(self) -> None:
        """Wait for an answer of rank 0.

        Raises:
            SharingError: there is none, and this rank has something for the others.
        """
        now = time.monotonic()
        self._pending_since = min(self._pending_since, now) if self._member.pending() else math.inf
        if now - self._pending_since > ANSWERS_S:
            raise SharingError("rank 0 takes no part")
        self._wake.wait(POLL_S)
        self._wake.clear()

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
        if not pace or pace[-1][1] != self.passed:
            self._moved_at = now
        pace.append((now, self.passed))
        while now - pace[0][0] > PACE_S and len(pace) > 2:
            pace.popleft()

    def _boundaries_in(self, seconds: float) -> int:
        """Return how many boundaries pass in this time, at least one."""
        (then, first), (now, last) = self._pace[0], self._pace[-1]
        late, at = next(((t, n) for t, n in reversed(self._pace) if now - t >= AHEAD_S), (then, first))
        # After a suspension two looks may be milliseconds apart, with a boundary between them. The boundary
        # that is under way counts in the short time: else a steady pace would look slow in it.
        rate = min((last - first) / max(now - then, AHEAD_S), (last - at + 1) / max(now - late, AHEAD_S))
        return max(1, math.ceil(rate * seconds))

    def _poll_s(self) -> float:
        """Return the time until the next look. A long iteration needs few: its boundary is far."""
        return min(max(POLL_S, 0.1 * (time.monotonic() - self._moved_at)), SLOW_POLL_S)

    def _accept(self, proposal: BoundaryProposal) -> bool:
        """Make the training thread wait at the proposed boundary. Return False if it has passed it."""
        self._proposal = proposal
        self._attention = True
        # The training thread counts first and looks then. If it has not counted here, it will look there.
        return self.passed < proposal.boundary

    def _settle(self, proposal: BoundaryProposal, joint: bool) -> None:
        if joint:
            self._joint = proposal
        self._decision = proposal.number
        self._decided.set()
        self._next += 1

    # rank 0 -------------------------------------------------------------------------------------------------

    def _lead(self) -> None:
        """Propose a boundary if a rank has something for one, and decide."""
        if not self._member.pending() and self._store.get(self._key("request", self._next)) is None:
            return
        now = time.monotonic()
        why = self._absence(range(1, self._store.world))
        if why is not None and why.code == "ranks.missing" and now - self._started <= JOIN_S:
            return
        self._tell_absence(why)
        if why is not None:
            self._member.unanswered(why)
            return
        if now < self._again_at:
            self._member.unanswered(None)
            return
        furthest = max(self.passed, self._furthest)
        expected_s = self._ahead_s
        joint, missing = self._propose(furthest + self._boundaries_in(expected_s))
        if joint:
            self._ahead_s, self._again_s = AHEAD_S, LATE_AGAIN_S
            self._nearer_at = now + expected_s / 2 + AHEAD_S  # the pace may be that of a burst
        elif not missing:
            self._ahead_s = min(2 * self._ahead_s, MOST_AHEAD_S)
            self._wake.set()  # at once
        else:
            self._again_at = time.monotonic() + self._again_s
            self._again_s = min(2 * self._again_s, LONGEST_AGAIN_S)
            self._member.unanswered(None)

    def _lead_nearer(self, joint: BoundaryProposal) -> None:
        """Propose a boundary before the joint one, which has not come in the time in which it should.

        If a rank refuses it or does not answer, the joint boundary stays where it is.
        """
        now, nearer = time.monotonic(), self.passed + self._boundaries_in(AHEAD_S)
        if now < self._nearer_at or nearer >= joint.boundary:
            return
        found, missing = self._propose(nearer)
        self._nearer_at = math.inf if missing else now + AHEAD_S * (1 + found)

    def _propose(self, boundary: int) -> tuple[bool, bool]:
        """Propose a boundary. Return whether it is a joint one now, and whether an answer is missing."""
        proposal = BoundaryProposal(self._next, boundary)
        accepted = self._accept(proposal)
        self._store.set(self._key("proposal", proposal.number), str(proposal.boundary).encode())
        answers = self._answers(proposal)
        joint = accepted and all(answer == YES for answer in answers)
        self._store.set(self._key("decision", proposal.number), YES if joint else NO)
        self._settle(proposal, joint)
        # Ranks that do not wait for each other in their training may be far apart.
        self._furthest = max((int(answer) for answer in answers if answer not in (None, YES)), default=0)
        missing = None in answers
        if not missing:  # so all have read what was before
            self._forget_before(proposal.number)
        return joint, missing

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
            silent_s = self._presence.silent_s(rank)
            if silent_s is None:
                return fact("ranks.missing", rank=rank)
            if silent_s > SILENT_S and time.monotonic() - self._moved_at < MOVED_S:
                return fact("ranks.silent", rank=rank, seconds=SILENT_S)
        return None

    def _tell_absence(self, why: Fact | None) -> None:
        """Tell ranks that ask for a joint boundary why there will be none."""
        if why == self._absence_told:
            return
        key = self._key("absence", self._next)
        if why is not None:
            self._store.set(key, msgspec.msgpack.encode(why))
        else:
            self._store.delete(key)
        self._absence_told = why

    def _answer(self, number: int, rank: int) -> str:
        return f"{self._key('answer', number)}/{rank}"

    def _forget_before(self, number: int) -> None:
        while self._oldest < number:
            for kind in ("request", "absence", "proposal", "decision"):
                self._store.delete(self._key(kind, self._oldest))
            for rank in range(1, self._store.world):
                self._store.delete(self._answer(self._oldest, rank))
            self._oldest += 1

    # the others ---------------------------------------------------------------------------------------------

    def _follow_or_request(self) -> None:
        if self._member.pending():
            self._request()
        self._follow()

    def _follow(self) -> None:
        """Answer a proposal, and wait for its decision."""
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
        """Ask rank 0 for a joint boundary, once for each number, and read its answer that there will be none.

        Raises:
            SharingError: rank 0 takes no part, or another one does not and this rank does not wait for it.
        """
        now = time.monotonic()
        if self._requested < self._next:
            self._requested, self._requested_at = self._next, now
            self._store.set(self._key("request", self._next), b"")
        elif now - self._requested_at > ANSWERS_S:
            if self._absence([0]):
                raise SharingError("rank 0 takes no part")
            if raw := self._store.get(self._key("absence", self._next)):
                self._member.unanswered(msgspec.msgpack.decode(raw, type=Fact))
