"""What is refused with its reason and changes nothing: one run for all of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hoptui.presentation import sentences
from hoptui.protocol import codec, messages
from hoptui.protocol.messages import RunState
from hoptui.protocol.ranges import MOST_COUNT
from tests.conftest import RawViewer, new_node
from tests.daemon.quiet_node import RUN, QuietNode


@pytest.fixture(scope="module")
def shared_run() -> Iterator[tuple[RawViewer, RunState]]:
    with new_node() as node:
        node.start()
        viewer = node.viewer()
        yield viewer, viewer.run()


@pytest.mark.parametrize(
    ("knob", "value", "code", "says"),
    [
        ("grad_accum", 65, "out_of_range", "65"),
        ("grad_accum", 0, "out_of_range", "grad_accum"),
        ("grad_accum", 2.5, "bad_type", "whole number"),
        ("grad_accum", True, "bad_type", "whole number"),
        ("grad_accum", "many", "bad_type", "'many'"),
        ("lr", float("nan"), "bad_type", "finite"),
        ("lr", float("inf"), "bad_type", "finite"),
        ("grad_acum", 8, "unknown_knob", "did you mean grad_accum"),
    ],
)
@pytest.mark.guarantee("declared-only")
def test_bad_values_change_nothing(
    shared_run: tuple[RawViewer, RunState], knob: str, value: Any, code: str, says: str
) -> None:
    viewer, run = shared_run
    outcome = viewer.outcome(viewer.command(run, knob=knob, value=value))
    assert (outcome.stage, outcome.code) == ("rejected", code)
    assert says in sentences.reason(outcome)
    assert sentences.reason(outcome).count("\n") == 0
    assert {k.spec.name: k.version for k in viewer.run().knobs} == {"grad_accum": 0, "lr": 0}


def test_unknown_run_and_stale_epoch(shared_run: tuple[RawViewer, RunState]) -> None:
    viewer, run = shared_run
    send = {"id": "u1", "run": "nosuchid", "epoch": 1, "verb": "set", "knob": "lr", "value": 1e-3}
    viewer.send(messages.Command(**send))  # type: ignore[arg-type]
    assert viewer.outcome("u1").code == "no_such_run"
    assert viewer.outcome(viewer.command(run, knob="lr", value=1e-3, epoch=7)).code == "stale_epoch"


@pytest.mark.guarantee("future-stamp")
def test_a_note_of_the_future_gets_the_time_of_its_arrival(quiet: QuietNode) -> None:
    for t in (quiet.now - 5, 1 << 62):
        quiet.runs.receive(b"n1", None, messages.Note(t=t, step=1, text="x"))
    assert [event.t for event in quiet.node.events if event.kind == "note"] == [quiet.now - 5, quiet.now]


def test_a_restart_counter_at_its_limit_stays_in_range(quiet: QuietNode) -> None:
    """A command for the run must pass the codec, and so must every answer to viewers."""
    for nonce in ("n2", "n3", "n4"):
        hello = messages.RunHello(
            protocol=1, run=RUN, name="lm", epoch=MOST_COUNT, nonce=nonce, pid=1, started=0
        )
        quiet.runs.end(quiet.run, "killed", "")
        quiet.runs.receive(nonce.encode(), None, hello)
        epoch = quiet.run.state.epoch
        command = messages.Command(id="c", run=RUN, epoch=epoch, verb="pause")
        assert codec.from_viewer([codec.encode(command)]) == command
    assert epoch == MOST_COUNT


def test_a_restart_counter_of_a_recording_is_brought_into_range() -> None:
    state = RunState(run=RUN, name="lm", epoch=2**64 - 1, pid=1, started_wall=1.0)
    found = QuietNode(state=state)
    assert found.run.state.epoch == MOST_COUNT
    found.hello(nonce="another")
    assert found.run.state.epoch <= MOST_COUNT


@pytest.mark.guarantee("future-stamp")
def test_an_outcome_of_the_future_gets_the_time_of_its_arrival(quiet: QuietNode) -> None:
    command = quiet.person("lr", 0.5, stage="sent")
    quiet.outcome(command, t=1 << 61)
    assert quiet.node.book.of(RUN)[-1].settled == quiet.now
