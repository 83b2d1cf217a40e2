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
