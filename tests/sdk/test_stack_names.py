"""Names of the places in stack samples: none is lost, and what is remembered is bounded."""

from __future__ import annotations

import dis
from collections.abc import Callable
from types import CodeType

import pytest

from hoptui.domain.stacks import ENGINE, PHASE_FILE
from hoptui.sdk import stack_names
from hoptui.sdk.installed_packages import InstalledPackages
from hoptui.sdk.stack_names import MOST_TAKES, Chain, StackNames

NO_LIMIT = 1 << 62
"""The CPU time until which names are given."""


def train() -> int:
    return len("".join(("a", "b")))


def made(number: int) -> CodeType:
    """Return the code of a function that is like no other one."""
    space: dict[str, Callable[[], int]] = {}
    exec(compile(f"def made_{number}():\n    return len(str({number}))\n", "/job/made.py", "exec"), space)
    return space[f"made_{number}"].__code__


def chain(*codes: CodeType, phase: str = "", sleeps: bool | None = False, at: int = 0) -> Chain:
    """Return a chain of these functions, the innermost first, each at an instruction."""
    frames = [part for code in codes for part in (code, at)]
    return [*frames, phase, sleeps, "__main__"]


def fresh() -> StackNames:
    return StackNames(InstalledPackages())


def calls_of(code: CodeType) -> list[int]:
    return [each.offset for each in dis.get_instructions(code) if each.opname in ("CALL", "PRECALL")]


def test_a_stack_that_comes_again_is_counted_again() -> None:
    names, code = fresh(), train.__code__
    for times in (1, 3):
        names.add([chain(code, phase="update")] * times)
        counts, asleep, left_out = names.stacks(NO_LIMIT)
        ((stack, count),) = counts.items()
        assert [frame.function for frame in stack] == ["update", "train"]
        assert stack[0].file == PHASE_FILE
        assert (count, asleep, left_out) == (times, None, 0)


def test_instructions_with_the_same_names_are_one_stack() -> None:
    names, outer, inner = fresh(), train.__code__, made(0)
    first, last = calls_of(outer)[0], calls_of(outer)[-1]
    assert first != last
    names.add([[inner, 0, outer, at, "", False, "__main__"] for at in (first, last)])
    counts, _, _ = names.stacks(NO_LIMIT)
    assert [*counts.values()] == [2]


def test_how_often_a_thread_slept_is_known_for_stacks_in_a_backward_pass_alone() -> None:
    space: dict[str, Callable[[], None]] = {}
    exec(f"def {ENGINE}(): pass", space)
    engine, other = space[ENGINE].__code__, train.__code__
    names = fresh()
    names.add([chain(engine, sleeps=True), chain(engine, sleeps=False), chain(other, sleeps=False)])
    counts, asleep, _ = names.stacks(NO_LIMIT)
    assert asleep is not None
    assert {stack[-1].function: (counts[stack], count) for stack, count in asleep.items()} == {ENGINE: (2, 1)}
    names.add([chain(engine, sleeps=None), chain(engine, sleeps=True)])
    assert names.stacks(NO_LIMIT)[1] is None


@pytest.mark.parametrize("limit", ["MOST_CHAINS", "MOST_STACKS", "MOST_PLACES", "MOST_WAITING"])
def test_what_is_remembered_is_bounded_and_every_sample_is_counted(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(stack_names, limit, 8)
    names, added, counted = fresh(), 0, 0
    codes = [made(number) for number in range(100)]
    for take in range(40):
        chains = [chain(codes[(5 * take + i) % 100], train.__code__) for i in range(5)]
        names.add(chains)
        added += len(chains)
        counts, _, left_out = names.stacks(0 if take % 2 else NO_LIMIT)
        counted += counts.total() + left_out
        for stack in counts:
            assert stack[0].function == "train"
            assert stack[-1].function.startswith("made_")
    for _ in range(MOST_TAKES + 1):
        counts, _, left_out = names.stacks(0)
        counted += counts.total() + left_out
    assert counted == added
    remembered = {
        "MOST_CHAINS": names._chains,
        "MOST_STACKS": names._stacks,
        "MOST_PLACES": names._places,
        "MOST_WAITING": names._samples,
    }
    assert len(remembered[limit]) <= 8 + 2 * 5, "those of one message may come to the limit"
