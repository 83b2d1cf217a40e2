"""No message of a run exceeds the limit, whatever the run declares, logs or answers."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoptui.domain.knobs import KnobSpec, KnobState
from hoptui.protocol import codec, messages
from hoptui.protocol.codec import MAX_BYTES
from hoptui.sdk import message_size
from hoptui.sdk.send_buffer import MESSAGE_BYTES, SendBuffer
from tests.conftest import TestNode, until
from tests.run_state import queued


def _knobs(count: int, description: int) -> tuple[KnobState, ...]:
    return tuple(
        KnobState(spec=KnobSpec(name=f"k{i}", kind="int", default=1, description="d" * description), value=1)
        for i in range(count)
    )


@settings(max_examples=30, deadline=None)
@given(
    count=st.sampled_from([0, 10, 1500, 9000, 30_000]),
    description=st.sampled_from([0, 100, 2000]),
    units=st.sampled_from([0, 100, 40_000]),
)
@pytest.mark.guarantee("run-size")
def test_a_declaration_fits_and_says_what_is_left_out(count: int, description: int, units: int) -> None:
    if count * description > 20_000_000:
        count //= 10
    full = messages.Declare(
        knobs=_knobs(count, description), units={f"metric {i}": "s" for i in range(units)}
    )
    found = message_size.declared(full)
    assert len(codec.encode(found.declare)) <= message_size.DECLARED_BYTES
    assert (found.left_out is None) == (found.declare == full)
    if found.left_out is not None and found.left_out.code == "knobs.undescribed":
        assert [k.spec.name for k in found.declare.knobs] == [k.spec.name for k in full.knobs]


def test_an_outcome_that_is_too_large_is_sent_without_its_details() -> None:
    large = messages.Outcome(id="a", stage="failed", code="raised", fields={"error": "e" * (2 * MAX_BYTES)})
    found = message_size.outcome(large)
    assert (found.id, found.stage, found.code, found.fields) == (
        "a",
        "failed",
        "too_large",
        {"code": "raised"},
    )


@pytest.mark.parametrize("names", [10, 1000, 5000])
def test_parts_of_wide_rows_fit_into_a_message(names: int) -> None:
    buffer = SendBuffer("run/r")
    row = {f"metric/{i}": 1.0 for i in range(names)}
    rows = [queued(t, t, row) for t in range(1, 301)]
    buffer.collect(deque(rows), len(rows), 400)
    sent = 0
    while batch := buffer.batch():
        assert len(codec.encode(messages.Rows(parts=batch))) <= 2 * MESSAGE_BYTES
        sent += sum(map(len, batch))
        buffer.sent(batch)
    assert sent == len(rows)


WIDE = """
import hoptui
run = hoptui.connect("wide")
for n in range(3000):
    run.knob(f"k{n}", 1, min=0, max=9, effect="speed", description="d" * 400)
for i in run.iterations():
    __import__("time").sleep(0.02)
"""


@pytest.mark.guarantee("run-size")
def test_a_run_with_very_many_described_knobs_is_there_and_says_what_is_left_out(node: TestNode) -> None:
    node.start(WIDE)
    viewer = node.viewer()
    found = until(lambda: (r := viewer.run("wide")) and len(r.knobs) == 3000 and r, what="all knobs")
    assert not any(knob.spec.description for knob in found.knobs)
    until(lambda: [e for e in viewer.fetch().events if e.code == "knobs.undescribed"], what="the note")
