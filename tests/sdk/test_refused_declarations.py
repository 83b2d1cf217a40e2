"""What a script gets wrong raises nothing, costs nothing else, and is reported to viewers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

import hoptui
from hoptui.domain.facts import Fact
from hoptui.protocol import codec, messages
from hoptui.sdk.daemon_link import DaemonLink
from hoptui.sdk.run import Run
from tests.run_state import run_state
from tests.sdk.unit_run import rows, send

pytestmark = pytest.mark.usefixtures("off")


def refused(run: Run) -> list[Fact]:
    return list(run_state(run).declarations.refused)


def declare(run: Run) -> messages.Declare:
    """What the link would send, as it arrives."""
    frame = codec.encode(DaemonLink(run_state(run))._declare())
    found = codec.from_run([frame])
    assert isinstance(found, messages.Declare)
    return found


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("effect", "fast", ("speed", "learning")),
        ("scale", "logarithmic", ("linear", "log", "pow2")),
        ("cost", "cheap", ("free", "shape", "rebuild", "restart")),
        ("unit", 5, ("5",)),
        ("keeps", ["a"], ("a",)),
        ("description", b"x", ("x",)),
    ],
)
def test_a_misspelt_word_concerns_its_knob_alone(
    run: Run, field: str, value: Any, named: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    run.knob("good", 1, min=1, max=9)
    handle = run.knob("bad", 4, **{field: value})
    (found,) = refused(run)
    assert (found.code, found.fields["knob"]) == ("knob.refused", "bad")
    assert field in found.fields["problem"]
    assert all(word in found.fields["problem"] for word in named)
    assert len(caplog.records) == 1
    assert handle.value == 4
    said = declare(run)
    assert [knob.spec.name for knob in said.knobs] == ["good"]
    assert said.refused == (found,)
    assert [outcome.stage for outcome in send(run, knob="good", value=2)] == ["accepted", "scheduled"]


def test_a_misspelt_word_in_a_dataclass(run: Run) -> None:
    @dataclass
    class Config:
        good: Annotated[int, hoptui.Knob(1, 9)] = 4
        bad: Annotated[int, hoptui.Knob(effect="fast")] = 4
        none: Annotated[Any, hoptui.Knob()] = None

    Config.__annotations__ = {
        "good": Annotated[int, hoptui.Knob(1, 9)],
        "bad": Annotated[int, hoptui.Knob(effect="fast")],  # type: ignore[arg-type]
        "none": Annotated[Any, hoptui.Knob()],
    }
    assert set(run.knobs(Config())) == {"good"}
    assert [found.fields["knob"] for found in refused(run)] == ["bad", "none"]


@pytest.mark.parametrize("field", ["unit", "keeps", "description"])
def test_no_text_is_an_empty_one(run: Run, field: str) -> None:
    run.knob("good", 4, **{field: None})  # type: ignore[arg-type]
    assert refused(run) == []
    assert declare(run).knobs[0].spec.unit == ""


def test_a_text_that_no_message_carries_is_cleaned(run: Run) -> None:
    run.knob("good", 4, description="\ud800")
    assert declare(run).knobs[0].spec.description == "?"


CALLS: dict[str, Callable[[Any], object]] = {
    "phase_seconds": lambda run: run.phase_seconds("a", None),
    "gpus": lambda run: run.gpus(3),
    "knobs": lambda run: run.knobs({"lr": 1}),
    "flops": lambda run: run.flops(1e9, precision="int8"),
    "metric": lambda run: run.metric(Unnamed()),
    "event": lambda run: run.event(Unnamed()),
    "log": lambda run: run.log(5),
    "bind": lambda run: run.bind({}, apply=5),
}


class Unnamed:
    def __str__(self) -> str:
        raise ValueError("it has no text")


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_makes_no_sense_is_reported(
    run: Run, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    run.boundary(0)
    for _ in range(3):
        CALLS[call](run)
    assert [(found.code, found.fields["call"]) for found in refused(run)] == [("call.refused", call)]
    assert len(caplog.records) == 1, "once, not in each iteration"
    run.boundary(1)
    assert run_state(run).alive


@pytest.mark.parametrize("arguments", [{"resume": 5}, {"resume": [1]}, {"ranks": 5}])
def test_connect_takes_anything(arguments: dict[str, Any]) -> None:
    run = hoptui.connect("unit", **arguments)
    assert [found.fields["call"] for found in refused(run)] == ["connect"]
    assert run.boundary(0)


@pytest.mark.parametrize("values", [5, [1, 2], "loss", object(), [("a", 1)], Unnamed()])
def test_log_takes_anything_and_keeps_the_rest(run: Run, values: Any) -> None:
    run.boundary(0)
    run.log(values, loss=0.5)
    run.log(x=1)
    run.boundary(1)
    assert {name: rows(run)[0][name] for name in ("loss", "x")} == {"loss": 0.5, "x": 1.0}
    assert run_state(run).alive
    assert run_state(run).converter.bad == 1


@pytest.mark.parametrize("value", ["3", b"3", bytearray(b"3"), None, {}, [], 1j])
def test_what_is_no_number_is_counted(run: Run, value: Any) -> None:
    run.boundary(0)
    run.log(version=value, loss=0.5)
    run.boundary(1)
    assert "version" not in rows(run)[0]
    assert rows(run)[0]["loss"] == 0.5
    assert run_state(run).converter.bad == 1


def test_the_second_knob_of_a_name_counts_and_the_first_handle_follows(run: Run) -> None:
    first = run.knob("lr", 0.1, min=0.0, max=1.0)
    send(run, knob="lr", value=0.2)
    run.boundary(0)
    second = run.knob("lr", 0.3, min=0.0, max=1.0)
    assert (first.value, first.version) == (second.value, second.version) == (0.3, 1)
    send(run, knob="lr", value=0.4)
    run.boundary(1)
    assert first.value == second.value == 0.4
    assert refused(run) == [Fact("knob.again", {"knob": "lr"})]


def test_what_an_object_is_can_be_read(run: Run) -> None:
    run.boundary(7)
    assert {"unit", run.id, "7"} <= set(repr(run).strip("<>").replace("'", "").replace(",", "").split())
    assert "0.1" in repr(run.knob("lr", 0.1))
