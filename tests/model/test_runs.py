from __future__ import annotations

import pytest

from hoptui.model.runs import Ambiguous, NoSuchRun, find_run
from hoptui.protocol.messages import RunState, Vital
from tests import factories

LIVE = Vital(state="live")
RUNS = (
    factories.run("aaaa1111", "ppo", pid=1),
    factories.run("aaab2222", "lm", pid=2),
    factories.run("cccc3333", "ppo", pid=3, exit_reason="finished"),
    factories.run("dddd4444", "old", pid=4, exit_reason="finished"),
    factories.run("eeee5555", "old", pid=5, exit_reason="killed"),
)
VITALS = {run.run: Vital(state="exited") if run.exit_reason else LIVE for run in RUNS}


def find(text: str, *runs: RunState) -> str:
    return find_run(factories.node(*(runs or RUNS)), VITALS, text).run


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ("cccc3333", "cccc3333"),
        ("lm", "aaab2222"),
        ("dd", "dddd4444"),
        ("ppo", "aaaa1111"),  # the one that lives
        ("aaaa", "aaaa1111"),
    ],
)
def test_names_ids_and_prefixes(text: str, run: str) -> None:
    assert find(text) == run


def test_a_name_goes_before_the_beginning_of_an_id() -> None:
    assert find("dd", *RUNS, factories.run("ffff6666", "dd")) == "ffff6666"


@pytest.mark.parametrize("text", ["nope", "", "pp", "\x1b[2J"])
def test_no_such_run(text: str) -> None:
    with pytest.raises(NoSuchRun) as caught:
        find(text)
    assert str(caught.value).isprintable()
    assert str(caught.value).endswith(" ppo, lm")


def test_nothing_is_there() -> None:
    with pytest.raises(NoSuchRun, match=r"^no run 'x' on this node$"):
        find_run(factories.node(), {}, "x")


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("old", ("2 runs that have exited", "dddd4444 (pid 4), eeee5555 (pid 5);")),
        ("aaa", ("2 live runs", "aaaa1111 (pid 1), aaab2222 (pid 2);")),
    ],
)
def test_several_are_named(text: str, ids: tuple[str, ...]) -> None:
    with pytest.raises(Ambiguous, match="say which by its id") as caught:
        find(text)
    assert all(each in str(caught.value) for each in ids)


def test_two_live_runs_of_one_name() -> None:
    with pytest.raises(Ambiguous, match=r"2 live runs: aaaa1111 \(pid 1\), gggg7777 \(pid 9\);"):
        find("ppo", *RUNS[:3], factories.run("gggg7777", "ppo", pid=9))
