"""Which ranks a schedule no longer waits for."""

from __future__ import annotations

import pytest

from hoptui.domain.facts import Fact
from hoptui.sdk import rank_schedule, rank_store
from hoptui.sdk.rank_schedule import RankSchedule
from hoptui.sdk.rank_store import Presence
from tests.sdk.test_rank_session import Clock, Shared


class Member:
    """A rank without commands."""

    def pending(self) -> bool:
        return False

    def identified(self, identity: bytes) -> None: ...

    def unanswered(self, why: Fact | None) -> None: ...

    def failed(self, error: Exception) -> None: ...


class Pair:
    """Rank 0 of two, without its thread, and the presence of rank 1."""

    def __init__(self, clock: Clock) -> None:
        keys: dict[str, bytes] = {}
        self.clock = clock
        self.other = Presence(Shared(keys, 1), "")
        self.schedule = RankSchedule(store := Shared(keys, 0), "", Presence(store, ""), b"", Member())

    def wait(self, seconds: int, *, trains: bool = True, beats: bool = False) -> str:
        """Look twice a second. Return why rank 0 does not wait for rank 1, "" if it does."""
        for _ in range(2 * seconds):
            self.clock.now += 0.5
            self.schedule.passed += trains
            self.schedule._note_pace()
            if beats:
                self.other.live()
            found = self.schedule._absence([1])
        return found.code if found is not None else ""


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Pair:
    clock = Clock()
    monkeypatch.setattr(rank_store, "time", clock)
    monkeypatch.setattr(rank_schedule, "time", clock)
    return Pair(clock)


def test_a_silent_rank_takes_no_part_until_it_writes_again(two: Pair) -> None:
    assert two.wait(1) == "ranks.missing"
    assert two.wait(120, beats=True) == ""
    assert two.wait(58) == ""
    assert two.wait(5) == "ranks.silent"
    assert two.wait(3600) == "ranks.silent"
    assert two.wait(1, beats=True) == ""
    assert two.wait(58) == ""


def test_a_suspension_of_all_ranks_is_no_silence(two: Pair) -> None:
    two.wait(10, beats=True)
    two.clock.now += 3600.0
    assert two.wait(1) == "", "the thread of the other rank has had no time to write"
    assert two.wait(10, beats=True) == ""


def test_a_rank_for_which_training_waits_may_only_be_suspended(two: Pair) -> None:
    two.wait(10, beats=True)
    assert two.wait(300, trains=False) == ""
    assert two.wait(1, beats=True) == ""
    two.wait(300, trains=False)
    assert two.wait(1) == "ranks.silent", "this rank trains without it"


class Stopping(Member):
    """A rank whose script asks for a stop."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def pending(self) -> bool:
        return True

    def unanswered(self, why: Fact | None) -> None:
        self.told.append(f"{why.code} {why.fields['rank']}" if why is not None else "late")


class Three:
    """Three ranks without their threads. Rank 2 asks for a stop, and rank 1 only shows that it lives."""

    def __init__(self, clock: Clock) -> None:
        keys: dict[str, bytes] = {}
        self.clock, self.asks = clock, Stopping()
        stores = [Shared(keys, rank, world=3) for rank in range(3)]
        self.one = Presence(stores[1], "")
        self.zero = RankSchedule(stores[0], "", Presence(stores[0], ""), b"", Member())
        self.two = RankSchedule(stores[2], "", Presence(stores[2], ""), b"", self.asks)

    def pass_time(self, seconds: int, *, beats: bool) -> None:
        """Let ranks 0 and 2 train and look at each other's keys twice a second."""
        for _ in range(2 * seconds):
            self.clock.now += 0.5
            for schedule in (self.zero, self.two):
                schedule.passed += 1
                schedule._note_pace()
                schedule._presence.live()
            if beats:
                self.one.live()
            self.zero._lead()
            self.two._request()


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Three:
    clock = Clock()
    monkeypatch.setattr(rank_store, "time", clock)
    monkeypatch.setattr(rank_schedule, "time", clock)
    monkeypatch.setattr(RankSchedule, "_propose", lambda *_: (False, True))  # no answer comes in time
    return Three(clock)


def test_a_rank_that_asks_for_a_stop_learns_that_a_third_one_is_silent(three: Three) -> None:
    three.pass_time(120, beats=True)
    assert three.asks.told == []
    three.pass_time(70, beats=False)
    assert set(three.asks.told) == {"ranks.silent 1"}


def test_a_rank_that_asks_for_a_stop_learns_that_a_third_one_has_left(three: Three) -> None:
    three.pass_time(10, beats=True)
    three.one.leave()
    three.pass_time(5, beats=False)
    assert set(three.asks.told) == {"ranks.left 1"}


def test_what_was_true_of_a_rank_that_is_back_is_no_longer_told(three: Three) -> None:
    three.pass_time(10, beats=True)
    three.pass_time(70, beats=False)
    three.pass_time(2, beats=True)
    three.asks.told.clear()
    three.pass_time(60, beats=True)
    assert three.asks.told == []


def test_a_rank_that_has_not_connected_yet_holds_a_stop_only_at_the_start(three: Three) -> None:
    three.pass_time(4, beats=False)
    assert three.asks.told == []
    three.pass_time(4, beats=False)
    assert set(three.asks.told) == {"ranks.missing 1"}
