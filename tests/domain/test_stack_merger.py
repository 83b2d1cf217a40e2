"""Samples of several processes and spans of time in common tables."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoptui.domain import stack_merger
from hoptui.domain.hot_lines import sampled
from hoptui.domain.stack_merger import StackMerger
from hoptui.domain.stacks import Stack, StackFrame, StackSamples, check, merged, pack, unpack

FRAMES = st.builds(
    StackFrame, st.sampled_from(["a.py", "libs/b.py"]), st.sampled_from("fgh"), st.integers(0, 3)
).map(lambda frame: frame._replace(package_at=5 * frame.file.startswith("libs/")))
STACKS = st.lists(FRAMES, min_size=1, max_size=4).map(tuple)
COUNTS: st.SearchStrategy[dict[Stack, int]] = st.dictionaries(STACKS, st.integers(1, 9), max_size=6)
MUCH = 1 << 20


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), COUNTS, st.integers(0, 5)), max_size=8))
def test_each_rank_has_what_its_parts_have_together(parts: list[tuple[int, dict[Stack, int], int]]) -> None:
    merger = StackMerger()
    sent: dict[int, list[StackSamples]] = {}
    for number, (rank, counts, left_out) in enumerate(parts):
        samples = pack(counts, number, number + 1, left_out=left_out, cost=0.1)
        sent.setdefault(rank, []).append(samples)
        merger.add(rank, samples)
    for rank, each in sent.items():
        found, expected = merger.merged(rank, MUCH), merged(each, MUCH)
        check(found)
        assert unpack(found) == unpack(expected)
        assert (found.began, found.ended) == (expected.began, expected.ended)
        assert found.left_out == expected.left_out
        assert found.cost == pytest.approx(0.1)


@settings(deadline=None)
@given(COUNTS, st.integers(0, 200))
def test_what_does_not_fit_is_counted(counts: dict[Stack, int], most_bytes: int) -> None:
    merger = StackMerger()
    merger.add(0, pack(counts, 0, 1))
    found = merger.merged(0, most_bytes)
    check(found)
    assert sampled(found) == sum(counts.values())
    assert all(counts[stack] == count for stack, count in unpack(found).items())


def test_every_rank_gets_its_first_stack_before_any_gets_its_second() -> None:
    merger = StackMerger()
    for rank in range(4):
        merger.add(rank, pack({(StackFrame(f"{rank}.py", "f", n),): 10 - n for n in range(5)}, 0, 1))
    found = merger.shared(150)
    assert all(1 <= len(each.counts) <= 2 for each in found.ranks.values())


def test_memory_is_bounded_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_merger, "MOST_FRAMES", 10)
    merger = StackMerger()
    for number in range(100):
        merger.add(0, pack({(StackFrame("a.py", "f", number),) * 2: 1}, number, number + 1))
    found = merger.merged(0, MUCH)
    assert len(found.stacks) <= 5
    assert sampled(found) == 100
