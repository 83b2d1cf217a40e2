"""A value that a knob reads back survives the wire, the recording and a restart of the daemon."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from hoptui.daemon.recordings import History, RetentionLimits
from hoptui.domain.knobs import LONGEST_TEXT, KnobError, KnobValue, kind_of, same
from hoptui.domain.tuning import Change
from hoptui.node.addresses import Addresses
from hoptui.presentation import numbers
from hoptui.protocol import codec, messages
from hoptui.recording import Recording, library
from hoptui.recording.library import RUN, KnownRun
from hoptui.sdk.knob_declarations import Knob, knob_spec
from hoptui.sdk.knobs import LiveKnob, SetterError
from tests import factories
from tests.daemon.test_recordings import NODE

ODD = st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e308, "", "\0", "é\u202e", "null"])
VALUES = st.booleans() | st.integers(-(1 << 65), 1 << 65) | st.floats() | st.text() | ODD
HELLO = messages.RunHello(protocol=1, run="r", name="toy", epoch=1, nonce="n", pid=7, started=1)


def live(value: KnobValue, read_back: object) -> LiveKnob[Any]:
    return LiveKnob(knob_spec(Knob(), "k", value), value, apply=lambda _: None, read=lambda: read_back)


def restored(state: messages.RunState, record: messages.CommandRecord) -> Any:
    """What a new daemon reads, after the recording was closed."""
    with tempfile.TemporaryDirectory() as folder:
        where = Addresses(Path(folder), Path(folder))
        history = History(where, RetentionLimits())
        history.remember(KnownRun(state=state, nonce="n", process_started=1), NODE)
        history.command(record)
        history.close(state.run)
        assert [entry.problem for entry in library.entries(Path(folder))] == [""]
        (found,) = History(where, RetentionLimits()).restore()
        return found


@settings(max_examples=60, deadline=None)
@given(VALUES)
@pytest.mark.guarantee("value-survives")
def test_whatever_is_read_back_survives_or_is_refused(value: KnobValue) -> None:
    start: KnobValue = {"bool": True, "int": 1, "float": 0.5, "str": "a"}[kind_of(value)]  # type: ignore[assignment]
    knob = live(start, value)
    try:
        knob.set(start, "ana")
    except SetterError:
        assert not isinstance(value, float)
        assert same(knob.value, start)
    else:
        assert same(knob.value, value)
    sent = messages.Declare(knobs=(knob.state(),))
    told = codec.from_run([codec.encode(sent)])
    assert isinstance(told, messages.Declare)
    assert same(told.knobs[0].value, knob.value)
    change = Change(knob="other", before=start, value=knob.value)
    done = factories.change("c", "r", effective=knob.value, followed=(change,), seq=1, fields={"x": value})
    done = done if not isinstance(value, int) else structs.replace(done, fields={})
    found = restored(factories.run("r", knobs=told.knobs), done)
    assert same(found.state.knobs[0].value, knob.value)
    (record,) = found.commands
    assert same(record.effective, knob.value)
    assert same(record.followed[0].value, knob.value)
    assert all(same(record.fields[name], given) for name, given in done.fields.items())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_diverged_value_is_not_the_wanted_one_and_is_shown(value: float) -> None:
    knob = live(0.5, value)
    knob.set(0.25, "ana")
    assert not knob.in_effect
    assert same(knob.value, value)
    assert not knob.refresh()  # NaN again is no change
    assert numbers.value(value) == numbers.alike(value, 1.0)[0] != numbers.UNKNOWN


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1])
def test_an_integer_that_no_message_carries_is_refused(value: int) -> None:
    with pytest.raises(SetterError):
        live(1, value).set(2, "ana")


@pytest.mark.parametrize("value", ["\ud800", "x" * (LONGEST_TEXT + 1)])
def test_a_text_that_no_message_carries_is_refused(value: str) -> None:
    with pytest.raises(SetterError):
        live("a", value).set("b", "ana")
    with pytest.raises(KnobError):
        knob_spec(Knob(), "k", value)


def test_a_recording_of_an_older_version_with_null_for_nan_is_read(tmp_path: Path) -> None:
    lr = structs.replace(factories.knob("lr", 0.5), value=math.nan)
    known = KnownRun(state=factories.run("r", knobs=(lr,)), nonce="n", process_started=1)
    with Recording.create(tmp_path / "r.hoptui") as recording:
        recording.remember(RUN, msgspec.json.encode(known))
    (entry,) = library.entries(tmp_path)
    assert entry.problem == ""
    assert entry.state is not None
    assert same(entry.state.knobs[0].value, math.nan)
