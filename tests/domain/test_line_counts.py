"""Stack samples by line: shares add up, and what another process may send."""

from __future__ import annotations

import msgspec
import pytest

from hoptui.domain.line_counts import (
    MOST_LINES,
    MOST_TEXT,
    CountedLine,
    LineCounts,
    check,
    count,
    kind_shares,
    shares,
)
from hoptui.domain.stacks import Stack, StackFrame, pack


def frame(line: int, function: str = "main", call: str = "", file: str = "/x/train.py") -> StackFrame:
    return StackFrame(file, function, line, call=call)


LOADS: Stack = (frame(10), frame(37, "get_batch"))
RANDOM: Stack = (frame(10), frame(37, "get_batch", "rand"))
WAITS: Stack = (frame(12, call="item"),)


def test_lines_have_their_samples_their_kind_and_what_they_call_most_often() -> None:
    counts = count(pack({LOADS: 2, RANDOM: 5, WAITS: 3}, 10, 20, left_out=10))
    assert counts == LineCounts(
        began=10,
        ended=20,
        samples=20,
        kinds={"input": 7, "wait": 3},
        lines=(
            CountedLine("input", "/x/train.py", 37, "get_batch", "rand", 7),
            CountedLine("wait", "/x/train.py", 12, "main", "item", 3),
        ),
    )


def test_a_run_of_many_lines_and_long_names_stays_within_bounds() -> None:
    file = f"/{'x' * 500}/train.py"
    stacks: dict[Stack, int] = {(frame(n, "f" * 500, "g" * 500, file),): 1000 - n for n in range(1, 200)}
    counts = count(pack(stacks, 0, 1, most_bytes=1 << 20))
    assert [line.line for line in counts.lines] == list(range(1, MOST_LINES + 1))
    assert counts.samples == sum(counts.kinds.values()) == sum(stacks.values())
    line = counts.lines[0]
    assert {len(line.file), len(line.function), len(line.inside)} == {MOST_TEXT}
    assert line.file.endswith("/train.py")
    check(counts)


def test_shares_of_several_ranks_are_of_all_their_samples() -> None:
    ranks = {
        0: count(pack({LOADS: 10, WAITS: 90}, 0, 1)),
        3: count(pack({LOADS: 80, WAITS: 20}, 0, 1, left_out=100)),
    }
    assert kind_shares(ranks) == {"wait": 110 / 300, "input": 90 / 300}
    waits, loads = shares(ranks)
    assert (waits.line.line, waits.share, waits.rank, waits.of_rank) == (12, 110 / 300, 0, 0.9)
    assert (loads.line.line, loads.share, loads.rank, loads.of_rank) == (37, 90 / 300, 3, 0.4)


def test_without_samples_there_are_no_shares() -> None:
    nothing = LineCounts(began=0, ended=0, samples=0)
    check(nothing)
    assert shares({0: nothing}) == []
    assert kind_shares({0: nothing}) == kind_shares({}) == {}


@pytest.mark.parametrize(
    "changed",
    [
        {"ended": 5},
        {"samples": 3},
        {"kinds": {"wait": 0}},
        {"kinds": {"wait": 21}},
        {"lines": (CountedLine("wait", "a.py", 1, "f", "", 0),)},
        {"lines": (CountedLine("wait", "a.py", 1, "f", "", 21),)},
    ],
)
def test_impossible_counts_are_refused(changed: dict[str, object]) -> None:
    good = count(pack({LOADS: 20}, 10, 20))
    check(good)
    with pytest.raises(ValueError, match=r"samples|count"):
        check(msgspec.structs.replace(good, **changed))
