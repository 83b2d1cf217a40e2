"""Several runs in one process: at once, one after another, and again under the same name."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Iterator

import pytest

import hoptui
from hoptui.daemon.state.registry import Registry
from hoptui.protocol.messages import RunHello
from hoptui.sdk import run_core
from hoptui.sdk.run import Run
from tests.run_state import run_state
from tests.sdk.unit_run import rows, send

pytestmark = pytest.mark.usefixtures("off", "forgotten")


@pytest.fixture
def forgotten() -> Iterator[None]:
    run_core._runs.clear()
    yield
    run_core._runs.clear()


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)


def place(run: Run) -> tuple[str, int]:
    return run.id, run_state(run).epoch


def test_connecting_again_closes_the_run_and_is_its_next_restart() -> None:
    first = hoptui.connect("nb")
    first.boundary(0)
    second = hoptui.connect("nb")
    assert place(second) == (first.id, 2)
    assert not run_state(first).alive
    assert first.boundary(1), "a loop that goes on is not disturbed"
    first.log(loss=1.0)
    assert run_state(second).alive
    third = hoptui.connect("nb")
    assert place(third) == (first.id, 3)


def test_other_names_are_other_runs() -> None:
    first, second = hoptui.connect("a"), hoptui.connect("b")
    assert first.id != second.id
    assert run_state(first).alive


def test_a_run_that_was_closed_is_over_in_a_script() -> None:
    first = hoptui.connect("nb")
    first.close()
    second = hoptui.connect("nb")
    assert second.id != first.id
    assert run_state(second).epoch == 1


def test_a_notebook_continues_a_run_whose_loop_has_ended(notebook: None) -> None:
    first = hoptui.connect("nb")
    for _ in first.iterations(2):
        first.log(x=1)
    assert not run_state(first).alive, "the end of the loop is the end of the run"
    assert len(rows(first)) == 2
    name = first.id
    del first
    second = hoptui.connect("nb")
    assert place(second) == (name, 2)


def test_a_stop_ends_a_run_in_a_notebook(notebook: None) -> None:
    run = hoptui.connect("nb")
    for step in run.iterations():
        if step == 1:
            run.stop()
    assert not run_state(run).alive


def test_the_end_of_a_loop_is_not_the_end_of_a_script() -> None:
    run = hoptui.connect("nb")
    for _ in range(2):
        for _ in run.iterations(2):
            run.log(x=1)
    assert run_state(run).alive
    assert len(rows(run)) == 4


def test_what_is_given_to_resume_counts() -> None:
    first = hoptui.connect("nb")
    second = hoptui.connect("nb", resume={"run": "abcdefgh", "epoch": 6})
    assert place(second) == ("abcdefgh", 7)
    assert not run_state(first).alive


def test_runs_in_two_threads_do_not_disturb_each_other() -> None:
    barrier = threading.Barrier(2, timeout=20)
    found: dict[int, tuple[Run, list[int]]] = {}

    def train(number: int) -> None:
        run = hoptui.connect("same name")
        knob = run.knob("n", 4, min=1, max=64)
        values = []
        for step in run.iterations(50):
            if step == 10:
                barrier.wait()
                send(run, knob="n", value=10 + number)
            with run.phase(f"phase{number}"):
                run.log(x=number)
            values.append(knob.value)
        found[number] = run, values
        barrier.wait()

    threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found[0][0].id != found[1][0].id
    for number, (run, values) in found.items():
        assert values == [4] * 11 + [10 + number] * 39
        assert {row["x"] for row in rows(run)} == {number}
        assert all(f"phase/phase{number}" in row for row in rows(run))
        assert run_state(run).alive


def test_the_daemon_takes_the_next_restart_before_the_goodbye_of_the_former_run() -> None:
    registry = Registry()
    hello = RunHello(protocol=1, run="r", name="nb", epoch=1, nonce="a", pid=7, started=0)
    registry.hello(b"a", hello, 0.0)
    again = RunHello(protocol=1, run="r", name="nb", epoch=2, nonce="b", pid=7, started=0)
    run, kind = registry.hello(b"b", again, 1.0)
    assert (kind, run.state.epoch) == ("epoch", 2)
