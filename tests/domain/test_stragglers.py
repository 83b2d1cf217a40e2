"""The rank that the others wait for."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from hoptui.domain.activities import Activity, activities
from hoptui.domain.code_lines import CodeLine
from hoptui.domain.kind_rules import Kind
from hoptui.domain.stacks import Stack, StackFrame
from hoptui.domain.stragglers import LEAST_SAMPLES, find_straggler

SITE = "/opt/env/lib/python3.12/site-packages/"
MAIN = StackFrame("/a/train.py", "main", 9)
WORK: Stack = (MAIN, StackFrame("/a/model.py", "step", 20, call="sleep"))
DATA: Stack = (MAIN, StackFrame("/a/data.py", "read", 37, call="sleep"))
REDUCE: Stack = (
    MAIN,
    StackFrame(f"{SITE}torch/distributed/distributed_c10d.py", "all_reduce", 3, call="wait"),
)
BACKWARD: Stack = (
    MAIN._replace(line=10),
    StackFrame(
        f"{SITE}torch/autograd/graph.py",
        "_engine_run_backward",
        9,
        call="Variable._execution_engine.run_backward",
    ),
)


def samples(seed: int, count: int, **shares: float) -> Counter[Activity]:
    """Samples drawn at random with these shares; the rest works."""
    stacks = {"data": DATA, "reduce": REDUCE, "backward": BACKWARD}
    found: dict[Stack, int] = {}
    source = random.Random(seed)
    for _ in range(count):
        at = source.random()
        stack = WORK
        for name, share in shares.items():
            if 0 <= at < share:
                stack = stacks[name]
            at -= share
        found[stack] = found.get(stack, 0) + 1
    return activities(found)


@pytest.mark.parametrize("wait", ["reduce", "backward"])
@pytest.mark.parametrize("world", [2, 4, 8])
def test_the_rank_that_waits_least_is_named_with_its_line(world: int, wait: str) -> None:
    ranks = {rank: samples(rank, 200, **{wait: 0.35}) for rank in range(world)}
    ranks[1] = samples(1, 200, **{wait: 0.05, "data": 0.30})
    found = find_straggler(ranks)
    assert found is not None
    assert found.rank == 1
    assert found.where is not None
    assert (found.where.place.file, found.where.inside) == ("/a/data.py", "sleep")
    assert found.others_wait - found.waits > 0.2
    assert found.share - found.others_share > 0.2


def test_a_slower_core_has_no_line_of_its_own() -> None:
    ranks = {rank: samples(rank, 300, reduce=0.35) for rank in range(4)}
    ranks[2] = samples(2, 300, reduce=0.02)
    found = find_straggler(ranks)
    assert found is not None
    assert found.rank == 2
    assert found.where is None or found.where.place.file == "/a/model.py"


@pytest.mark.parametrize("wait", [0.0, 0.05, 0.3, 0.8])
@pytest.mark.parametrize("kind", ["reduce", "backward"])
def test_even_ranks_have_no_straggler(wait: float, kind: str) -> None:
    named = 0
    for trial in range(100):
        ranks = {rank: samples(1000 * trial + rank, 150, **{kind: wait}) for rank in range(4)}
        named += find_straggler(ranks) is not None
    assert named == 0


def line(number: int, kind: Kind = "script", inside: str = "") -> Activity:
    return Activity(kind, CodeLine("/a/train.py", number, "main"), inside)


RUN_BACKWARD = line(90, "compute", "Variable._execution_engine.run_backward")
LAYERS = [line(number, "compute", "F.linear") for number in range(10, 18)]


def iteration(late: Mapping[Activity, float], slower: float = 1.0) -> dict[Activity, float]:
    """The ms of an iteration by line, without waiting: layers, a batch, Python, and the backward pass."""
    usual = dict.fromkeys(LAYERS, 4.0) | {
        line(20, "input", "read"): 8.0,
        line(30): 8.0,
        RUN_BACKWARD: 30.0,
    }
    spent = {each: slower * ms for each, ms in usual.items()}
    return {each: spent.get(each, 0.0) + late.get(each, 0.0) for each in spent | dict(late)}


COMPUTES, ASLEEP = RUN_BACKWARD._replace(backward="computes"), RUN_BACKWARD._replace(backward="waits")


def under_ddp(
    ranks: list[dict[Activity, float]], count: int, seed: int, *, known: bool = False
) -> dict[int, Counter[Activity]]:
    """Samples of ranks that leave the backward pass together. Iterations vary by a tenth.

    `known`: whether it is known when a rank waits in the backward pass.
    """
    source = random.Random(seed)
    found: dict[int, Counter[Activity]] = {rank: Counter() for rank in range(len(ranks))}
    for _ in range(count):
        lasted = [
            {each: ms * max(0.2, source.gauss(1.0, 0.1)) for each, ms in spent.items()} for spent in ranks
        ]
        longest = max(sum(spent.values()) for spent in lasted)
        for rank, spent in enumerate(lasted):
            waits = longest - sum(spent.values())
            if known:
                spent |= {COMPUTES: spent.pop(RUN_BACKWARD), ASLEEP: waits}
            else:
                spent[RUN_BACKWARD] += waits
            found[rank][source.choices([*spent], [*spent.values()])[0]] += 1
    return found


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("cause", ["sleep", "input", "core", "python at several lines"])
def test_a_late_rank_under_ddp_is_named(world: int, cause: str, known: bool) -> None:
    late: dict[str, dict[Activity, float]] = {
        "sleep": {line(40, inside="time.sleep"): 24.0},
        "input": {line(20, "input", "read"): 24.0},
        "python at several lines": {line(number): 4.0 for number in range(50, 56)},
        "core": {},
    }
    named = []
    for seed in range(20):
        ranks = [iteration({}) for _ in range(world)]
        ranks[1] = iteration(late[cause], slower=1.6 if cause == "core" else 1.0)
        found = find_straggler(under_ddp(ranks, 300, seed, known=known))
        named.append(None if found is None else found.rank)
    assert named.count(1) >= 16
    assert set(named) <= {1, None}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("world", [2, 4, 8])
def test_even_ranks_under_ddp_have_no_straggler(world: int, known: bool) -> None:
    """As often as chance allows: 4.75 standard errors."""
    for seed in range(100):
        assert find_straggler(under_ddp([iteration({})] * world, 300, seed, known=known)) is None


SLOW_BACKWARD = [iteration({}), iteration({RUN_BACKWARD: 30.0})]


def test_a_slow_backward_pass_of_one_rank_names_no_other_rank() -> None:
    """All ranks are in the backward pass for as long then."""
    for seed in range(20):
        assert find_straggler(under_ddp(SLOW_BACKWARD, 300, seed)) is None


@pytest.mark.parametrize("world", [2, 4])
def test_a_slow_backward_pass_is_named_if_it_is_known_who_waits(world: int) -> None:
    for seed in range(20):
        ranks = [SLOW_BACKWARD[0]] * (world - 1) + [SLOW_BACKWARD[1]]
        found = find_straggler(under_ddp(ranks, 300, seed, known=True))
        assert found is not None
        assert (found.rank, found.where) == (world - 1, COMPUTES)
        assert found.others_wait - found.waits > 0.15


def test_a_few_samples_of_the_start_hide_no_straggler() -> None:
    """Before its first iteration has ended, it is unknown whether a rank computes alone."""
    for seed in range(20):
        found = under_ddp(SLOW_BACKWARD, 300, seed, known=True)
        for counts in found.values():
            counts[RUN_BACKWARD] += 10
        assert (straggler := find_straggler(found)) is not None
        assert straggler.rank == 1


def test_one_rank_whose_sleep_is_unknown_makes_no_straggler_of_it() -> None:
    """It has no sleep at all, so it seems to wait for nobody."""
    for seed in range(20):
        found = under_ddp(SLOW_BACKWARD, 300, seed)
        found[0] = under_ddp(SLOW_BACKWARD, 300, seed, known=True)[0]
        assert find_straggler(found) is None


def test_little_waiting_and_few_samples_are_not_reported() -> None:
    ranks = {rank: samples(rank, 2000, reduce=0.08) for rank in range(4)} | {1: samples(9, 2000)}
    assert find_straggler(ranks) is None
    ranks = {rank: samples(rank, LEAST_SAMPLES - 1, reduce=0.6) for rank in range(4)}
    assert find_straggler(ranks | {1: samples(9, LEAST_SAMPLES - 1)}) is None
    assert find_straggler({0: samples(0, 200, reduce=0.5)}) is None


def test_two_late_ranks_are_no_single_straggler() -> None:
    ranks = {rank: samples(rank, 300, reduce=0.4) for rank in range(2)}
    ranks |= {rank: samples(rank, 300, reduce=0.02) for rank in range(2, 4)}
    assert find_straggler(ranks) is None


def test_chance_makes_no_straggler_of_two_even_ranks() -> None:
    """A run is looked at every two seconds, so rare chances come."""
    named = 0
    for trial in range(1000):
        ranks = {rank: samples(2 * trial + rank, 300, reduce=0.5) for rank in range(2)}
        named += find_straggler(ranks) is not None
    assert named == 0


def test_a_line_that_one_rank_alone_has_is_found_beside_much_waiting() -> None:
    named = 0
    for trial in range(20):
        ranks = {rank: samples(100 * trial + rank, 110, reduce=0.5) for rank in range(8)}
        ranks[5] = samples(100 * trial + 99, 110, reduce=0.3, data=0.2)
        found = find_straggler(ranks)
        named += found is not None and (found.rank, found.where and found.where.inside) == (5, "sleep")
    assert named >= 18
