"""Of ranks that compile the same, one goes first; whatever happens to it, nobody waits for ever."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import torch

from hoptui_trainer.common.compile_cache import FOLDER, Cache, followers, kernel_cache
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.memory import on_all_ranks, prove_first_step
from hoptui_trainer.common.ranks import ALONE, RankGroup
from tests.conftest import until
from tests.trainer.warm import ranks

pytestmark = pytest.mark.slow

T = TypeVar("T")
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
HERE, THERE = ("here",), ("there",)
LIMIT_S = 30.0


@pytest.mark.parametrize(
    ("caches", "follow"),
    [
        ([HERE, HERE, HERE], [False, True, True]),
        ([HERE, HERE, THERE, THERE], [False, True, False, True]),  # two machines, or two kinds of GPU on one
        ([HERE, THERE, HERE], [False, False, True]),
        ([HERE, THERE], [False, False]),
        ([None, None], [False, False]),
        ([None, HERE, None, HERE], [False, False, False, True]),
    ],
)
def test_the_first_rank_with_a_cache_compiles_for_the_others(
    caches: list[Cache | None], follow: list[bool]
) -> None:
    assert followers(caches) == follow


def test_kernels_are_the_same_for_one_kind_of_gpu_with_one_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = ["H100"]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: kind[0])
    monkeypatch.setenv(FOLDER, "/scratch/kernels")
    cache = kernel_cache(GPU)
    assert cache is not None
    assert cache == kernel_cache(GPU)
    others = [kernel_cache(torch.device("cuda", 1))]
    kind[0] = "H200"
    others.append(kernel_cache(GPU))
    kind[0] = "H100"
    monkeypatch.setenv(FOLDER, "/scratch/kernels-1")
    others.append(kernel_cache(GPU))
    assert len({cache, *others}) == 4
    # torch's own object cannot be patched and put back by monkeypatch.
    monkeypatch.setattr(
        "hoptui_trainer.common.compile_cache.config", SimpleNamespace(force_disable_caches=True)
    )
    assert kernel_cache(GPU) is None
    assert kernel_cache(CPU) is None


class Meeting:
    """Where ranks that are threads wait for each other; `waiting` are those that do."""

    def __init__(self, world: int) -> None:
        self._barrier = threading.Barrier(world, timeout=LIMIT_S)
        self._values: list[Any] = [None] * world

    @property
    def waiting(self) -> int:
        return self._barrier.n_waiting

    def gather(self, rank: int, value: T) -> list[T]:
        self._values[rank] = value
        self._barrier.wait()
        found = list(self._values)
        self._barrier.wait()
        return found


class Rank(RankGroup):
    """One of them."""

    def __init__(self, rank: int, caches: Sequence[Cache | None], meeting: Meeting) -> None:
        super().__init__(rank, len(caches), rank, len(caches))
        self.meeting = meeting
        follow = followers(caches)
        self._turns, self._follows = any(follow), follow[rank]

    def all(self, ok: bool) -> bool:
        return all(self.gather(ok))

    def gather(self, value: object) -> list[Any]:
        return self.meeting.gather(self.rank, value)


def together_as(caches: Sequence[Cache | None], work: Callable[[Rank], T]) -> list[T | Exception]:
    """What `work` returns or raises on each rank."""
    meeting = Meeting(len(caches))

    def be(rank: int) -> T | Exception:
        try:
            return work(Rank(rank, caches, meeting))
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(caches)) as threads:
        return list(threads.map(be, range(len(caches))))


def test_the_others_come_in_when_those_that_compile_for_them_have_left() -> None:
    events: list[tuple[str, int]] = []
    first = threading.Barrier(2, timeout=LIMIT_S)

    def work(rank: Rank) -> None:
        with rank.turn(compiles=True):
            events.append(("in", rank.rank))
            if rank.rank in (0, 2):
                first.wait()  # they are in there at the same time
                until(lambda: rank.meeting.waiting >= 2, what="the other two at the door")
                first.wait()
            events.append(("out", rank.rank))

    assert together_as([HERE, HERE, THERE, HERE], work) == [None] * 4
    before, after = events[:4], events[4:]
    assert sorted(before) == sorted(itertools.product(("in", "out"), (0, 2)))
    assert sorted(after) == sorted(itertools.product(("in", "out"), (1, 3)))


@pytest.mark.parametrize(
    ("caches", "compiles"), [([HERE, HERE], False), ([HERE, THERE], True), ([None, None], True)]
)
def test_nobody_waits_where_nobody_compiles_for_another(caches: list[Cache | None], compiles: bool) -> None:
    inside = threading.Barrier(2, timeout=LIMIT_S)

    def work(rank: Rank) -> int:
        with rank.turn(compiles=compiles):
            inside.wait()
            return rank.meeting.waiting

    assert together_as(caches, work) == [0, 0]


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize(
    ("error", "own", "others"),
    [
        (torch.OutOfMemoryError("made up"), MemoryError, MemoryError),
        (UsageError("--compile: made up"), UsageError, UsageError),
        (ValueError("made up"), ValueError, RuntimeError),
    ],
)
def test_what_fails_in_the_turn_of_one_fails_on_all(
    failing: int, error: Exception, own: type[Exception], others: type[Exception]
) -> None:
    entered: list[int] = []

    def work(rank: Rank) -> int:
        def compile_it() -> int:
            entered.append(rank.rank)
            if rank.rank == failing:
                raise error
            return 5

        return on_all_ranks(rank, CPU, compile_it, compiles=True)

    found = together_as([HERE, HERE], work)
    assert entered == [0, 1]
    assert isinstance(found[1 - failing], others)
    assert "on another rank" in str(found[1 - failing])
    assert isinstance(found[failing], own)


def test_who_is_interrupted_in_the_turn_asks_nobody() -> None:
    """It ends, and the heartbeat tells the others why; in a last question it would wait for machines that
    still compile."""
    rank = Rank(0, [HERE, HERE], Meeting(2))
    with pytest.raises(KeyboardInterrupt), rank.turn(compiles=True):
        raise KeyboardInterrupt
    assert rank.meeting.waiting == 0


def test_before_the_first_iteration_only_those_compile_that_do_it_for_others() -> None:
    tried_out: list[int] = []

    def work(rank: Rank) -> None:
        prove_first_step(rank, lambda: tried_out.append(rank.rank))

    together_as([HERE, THERE], work)
    prove_first_step(ALONE, lambda: tried_out.append(9))
    assert tried_out == []
    together_as([HERE, HERE], work)
    assert sorted(tried_out) == [0, 1]

    def short() -> None:
        raise MemoryError

    prove_first_step(Rank(0, [HERE, HERE], Meeting(2)), short)  # the iteration itself gives way


KILLED = """
import os, sys
import torch
from hoptui_trainer.common import ranks
from hoptui_trainer.common.memory import on_all_ranks

torch.set_num_threads(1)
ranks.kernel_cache = lambda device: ("here",)
dying = int(sys.argv[1])
with ranks.join("cpu") as joined:
    def compile_it():
        print("in", flush=True)
        if joined.rank == dying:
            os.kill(os.getpid(), 9)
    on_all_ranks(joined, torch.device("cpu"), compile_it, compiles=True)
"""


@pytest.mark.parametrize("dying", [0, 1])
def test_a_rank_that_dies_in_its_turn_ends_the_other_with_the_reason(dying: int) -> None:
    with ranks("-c", KILLED, str(dying)) as children:
        said = [child.communicate(timeout=LIMIT_S) for child in children]
    assert children[dying].returncode == -9
    out, err = said[1 - dying]
    assert children[1 - dying].returncode == 1
    assert f"rank {dying} vanished" in err
    assert out == ("in\n" if dying else "")  # who waits for another does not come in
