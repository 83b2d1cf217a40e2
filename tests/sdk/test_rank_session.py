"""The ranks of a run find each other in a store that has what ranks before them have written."""

from __future__ import annotations

import pytest

from hoptui.sdk import rank_session
from hoptui.sdk.rank_session import RankSession
from hoptui.sdk.rank_store import Presence, SharingError


class Shared:
    """A `RankStore` in a dictionary."""

    def __init__(self, keys: dict[str, bytes], rank: int, world: int = 2) -> None:
        self.keys, self.rank, self.world = keys, rank, world
        self.reads = 0

    def set(self, key: str, value: bytes) -> None:
        self.keys[key] = value

    def get(self, key: str) -> bytes | None:
        self.reads += 1
        return self.keys.get(key)

    def delete(self, key: str) -> None:
        self.keys.pop(key, None)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(rank_session, "time", found)
    return found


def sessions(keys: dict[str, bytes], world: int = 2) -> list[RankSession]:
    return [RankSession(Shared(keys, rank, world), "0/") for rank in range(world)]


def meet(session: RankSession) -> bool:
    return session.meet(Presence(session, ""))


def test_ranks_have_the_same_keys_once_they_have_met(clock: Clock) -> None:
    first, second = sessions({})
    assert not meet(second), "nobody has answered"
    with pytest.raises(SharingError):
        second.set("identity", b"x")
    assert meet(first)
    assert meet(second)
    first.set("identity", b"run")
    assert second.get("identity") == b"run"
    second.delete("identity")
    assert first.get("identity") is None


@pytest.mark.parametrize("leader_first", [True, False])
def test_what_ranks_before_have_written_is_not_read(clock: Clock, leader_first: bool) -> None:
    keys: dict[str, bytes] = {}
    old = sessions(keys)
    for session in (old[1], old[0], old[1]):
        meet(session)
    old[0].set("identity", b"old")
    Presence(old[0], "").leave()
    Presence(old[1], "").live()
    assert old[1].get("identity") == b"old"

    first, second = sessions(keys)
    if leader_first:
        meet(first)  # it answers the old hello, too
    assert not meet(second), "the answer to an old hello is none"
    clock.now += 1.0
    meet(first)
    assert meet(second)
    assert second.get("identity") is None
    assert not Presence(second, "").left(0)
    assert not Presence(first, "").joined(1)
    first.set("identity", b"new")
    assert second.get("identity") == b"new"


def test_a_rank_is_looked_for_until_it_has_come_and_seldom_if_it_does_not(clock: Clock) -> None:
    keys: dict[str, bytes] = {}
    store = Shared(keys, 0, 512)
    first, second = RankSession(store, "0/"), RankSession(Shared(keys, 1, 512), "0/")
    for _ in range(1200):  # two minutes
        meet(first)
        clock.now += 0.1
    before = store.reads
    for _ in range(600):
        meet(first)
        clock.now += 0.1
    assert store.reads - before < 60 * 120, "about a hundred reads a second"
    assert not meet(second)
    for _ in range(100):
        meet(first)
        clock.now += 0.1
    assert meet(second), "within some seconds"


def test_rank_0_looks_no_more_once_all_are_there(clock: Clock) -> None:
    keys: dict[str, bytes] = {}
    store = Shared(keys, 0)
    first, second = RankSession(store, "0/"), RankSession(Shared(keys, 1), "0/")
    for _ in range(10):
        meet(first)
        if meet(second):
            Presence(second, "").live()
        clock.now += 0.5
    before = store.reads
    for _ in range(10):
        meet(first)
        clock.now += 10.0
    assert store.reads == before


def test_a_rank_that_leaves_before_it_has_met_rank_0_has_left_until_it_says_hello_again(clock: Clock) -> None:
    keys: dict[str, bytes] = {}
    first, second = sessions(keys)
    second.part()
    meet(first)
    assert Presence(first, "").left(1)
    later = RankSession(Shared(keys, 1), "0/")
    assert not meet(later)
    clock.now += 1.0
    meet(first)
    assert meet(later)
    assert not Presence(first, "").left(1)
