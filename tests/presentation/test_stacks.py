"""The line that takes the most time, in one phrase, and what is missing."""

from __future__ import annotations

from hoptui.domain.stacks import StackFrame, StackSamples, pack
from hoptui.presentation import stacks

SECOND = 1_000_000_000


def test_the_phrase_has_kind_share_place_call_and_time() -> None:
    step, load = StackFrame("/x/train.py", "step", 120, call="item"), StackFrame("/x/data.py", "load", 3)
    samples = pack({(step,): 61, (load,): 39}, 0, 59 * SECOND)
    assert stacks.where(samples) == ("waits for the GPU 61 %, train.py:120 step (item), 100 samples in 59 s")


def test_a_thread_that_is_blocked_runs_no_python() -> None:
    sleeps, sorts = (
        StackFrame("/x/train.py", "wait", 4, call="time.sleep"),
        StackFrame("/x/t.py", "f", 9, call="sorted"),
    )
    assert stacks.where(pack({(sleeps,): 1}, 0, SECOND)).startswith("waits 100 %, train.py:4 wait")
    assert stacks.where(pack({(sorts,): 1}, 0, SECOND)).startswith("runs Python 100 %, t.py:9 f")
    assert stacks.does("script", "np.select") == "runs Python"
    assert stacks.does("script", "EpollSelector.select") == stacks.does("script", "select.select") == "waits"
    assert stacks.does("input", "recv") == "loads data"


def test_shares_are_of_all_samples_also_of_those_left_out() -> None:
    samples = pack({(StackFrame("/x/data.py", "load", 3),): 1}, 0, SECOND, left_out=3)
    assert stacks.where(samples) == "loads data 25 %, data.py:3 load, 4 samples in 1 s"


def test_nothing_is_said_without_a_place() -> None:
    assert stacks.where(StackSamples(began=0, ended=SECOND, left_out=5)) == ""


def test_ranks_that_have_begun_a_collective_less_often_come_first() -> None:
    assert stacks.uneven_text("AllReduce", {6: [2, 0], 5: [1]}) == (
        "NCCL: rank 1 has begun 5 × AllReduce, ranks 0, 2 have begun 6 ×"
    )


def test_names_are_made_safe_and_short() -> None:
    frame = StackFrame(f"/x/{'a' * 500}\x1b[31m.py", "\u202ef\n", 1, call="\x07" + "b" * 500)
    text = stacks.where(pack({(frame,): 1}, 0, SECOND))
    assert text.isprintable()
    assert len(text) < 300


def test_what_is_missing_is_counted() -> None:
    assert stacks.left_out(0, 0, 0) == []
    assert stacks.left_out(2, 1, 3) == [
        "2 ranks not recorded",
        "1 minute of samples damaged",
        "3 minutes of samples not read, as there are too many",
    ]
