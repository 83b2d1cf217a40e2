"""The wheel of a run: exclusive control for some seconds, taken, kept and given back by one dashboard. No screen, no timer.

The daemon judges; here is kept what it said last. While this dashboard holds a wheel it renews it, so that it ends within
seconds of the dashboard. Times are seconds of the local monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hoptui.client.conversation import LEASE_S, LeaseOp
from hoptui.presentation import vocabulary
from hoptui.protocol.messages import LeaseState, Origin
from hoptui.tui.snapshot import Connection, View

RENEW_S = LEASE_S["wheel"] / 3


class Held(NamedTuple):
    """Who has the wheel, for how many seconds more unless it is renewed; `mine`: this dashboard."""

    mine: bool
    holder: Origin
    left_s: float

    def __str__(self) -> str:
        if self.mine:
            return "you have the wheel of this run: others are refused"
        return f"{vocabulary.who(self.holder)} has the wheel for {max(1.0, self.left_s):.0f} s more: others are refused"


@dataclass
class _Wish:
    """A wheel that this dashboard wants to have: `until` when it has it (0: no answer yet), `due` when to ask again.

    `before` is what the node said of the wheel when the newest answer was read.
    """

    op: LeaseOp
    until: float
    due: float
    asked: float
    before: LeaseState | None = None


class Wheel:
    """The wheels of one dashboard. Call `poll` about once a second."""

    def __init__(self, client: Connection) -> None:
        self._client = client
        self._wishes: dict[str, _Wish] = {}
        self._answers: dict[str, LeaseState] = {}  # the last one looked at, by run
        self._seen: dict[str, tuple[LeaseState, float]] = {}  # others' wheels, and until when they last
        self._viewer = ""  # what the daemon calls this dashboard

    @property
    def held(self) -> list[str]:
        """The runs whose wheel this dashboard has."""
        return [run for run, wish in self._wishes.items() if wish.until]

    def state(self, view: View, now: float) -> Held | None:
        """Who has the wheel of a run as far as is known, None: nobody."""
        if view.run is None or view.replay is not None:
            return None
        run, lease = view.run.run, view.run.lease
        wish = self._wishes.get(run)
        if wish is not None and wish.until > now:
            return Held(True, self._answers[run].holder or Origin(), wish.until - now)
        if lease is None or lease.holder is None or lease.viewer == self._viewer:
            return None
        known, until = self._seen.get(run, (None, 0.0))
        if known != lease:
            until = now + lease.left_s
            self._seen[run] = (lease, until)
        return Held(False, lease.holder, until - now) if until > now else None

    def take(self, run: str, now: float, *, steal: bool = False) -> None:
        """Ask for the wheel; `steal` it from whoever has it."""
        op: LeaseOp = "steal" if steal else "take"
        self._wishes[run] = _Wish(op, 0.0, now + RENEW_S, now)
        self._client.lease(run, op)

    def give_back(self, run: str) -> None:
        self._wishes.pop(run, None)
        self._client.lease(run, "release")

    def poll(self, now: float) -> list[str]:
        """Read what the daemon answered and renew what is due; what the person must be told, a sentence each."""
        told = []
        for run, answer in self._client.store.leases.items():
            if self._answers.get(run) is not answer:
                told += self._answered(run, answer, now)
        for run, wish in list(self._wishes.items()):
            taken = self._taken(run, wish)
            if taken:
                del self._wishes[run]
                told.append(taken)
            elif now >= (wish.until or wish.asked + LEASE_S["wheel"]):
                del self._wishes[run]
                lost, never = "the wheel is lost: it could not be renewed", "you do not have the wheel"
                told.append(lost if wish.until else f"nobody answered: {never}")
            elif now >= wish.due:
                wish.due = now + RENEW_S
                self._client.lease(run, wish.op)
        return told

    def _answered(self, run: str, answer: LeaseState, now: float) -> list[str]:
        if answer.granted and answer.holder is None:
            return []  # to a pause that was renewed, or to a wheel given back
        self._answers[run] = answer
        wish = self._wishes.get(run)
        if wish is None:
            return []
        if not answer.granted:
            del self._wishes[run]
            return [f"you do not have the wheel: {answer.reason}"]
        self._viewer = answer.viewer
        wish.op, wish.until, wish.before = "renew", now + answer.left_s, self._of_node(run)
        return []

    def _taken(self, run: str, wish: _Wish) -> str:
        """That somebody else has taken the wheel since it was granted, in one sentence."""
        lease = self._of_node(run)
        if not wish.until or lease is None or lease.holder is None:
            return ""
        if lease == wish.before or lease.viewer == self._viewer:
            return ""
        return f"{vocabulary.who(lease.holder)} has taken the wheel"

    def _of_node(self, run: str) -> LeaseState | None:
        """What the node says of the wheel: it may be a moment behind an answer."""
        found = self._client.store.run(run)
        return found.lease if found else None
