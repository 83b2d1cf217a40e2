"""Numbers that cannot be stored or sent on are refused where they come in."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoptui.domain import devices
from hoptui.domain.columns import Columns, pack
from hoptui.domain.knobs import KnobSpec, KnobState
from hoptui.protocol import codec, messages
from hoptui.protocol.codec import WireError
from hoptui.protocol.ranges import INT64, MOST_COUNT, MOST_STAMP, check_ranges

HELLO = messages.RunHello(protocol=1, run="r", name="toy", epoch=1, nonce="n", pid=7, started=1)
LR = KnobState(spec=KnobSpec(name="lr", kind="int", default=1), value=1)
REFUSED: dict[str, messages.FromRun] = {
    "epoch": msgspec.structs.replace(HELLO, epoch=INT64 * 2 - 1),
    "step": msgspec.structs.replace(HELLO, step=MOST_COUNT + 1),
    "total": msgspec.structs.replace(HELLO, total=INT64),
    "knob": msgspec.structs.replace(HELLO, knobs=(msgspec.structs.replace(LR, value=INT64),)),
    "note": messages.Note(t=INT64 * 2 - 1, step=1),
    "fields": messages.Note(t=1, step=1, code="x", fields={"a": [{"b": INT64}]}),
    "date": messages.Note(t=1, step=1, fields={"when": msgspec.msgpack.Ext(5, b"x")}),
    "outcome": messages.Outcome(id="c", stage="applied", t=MOST_STAMP + 1),
    "pulse": messages.Pulse(step=1, dropped=INT64),
}


@pytest.mark.parametrize("message", REFUSED.values(), ids=REFUSED)
@pytest.mark.guarantee("number-range")
def test_a_number_out_of_range_is_refused(message: messages.FromRun) -> None:
    with pytest.raises(WireError) as error:
        codec.from_run([codec.encode(message)])
    assert error.value.code == "malformed"


@pytest.mark.parametrize(
    ("t", "step"), [(MOST_STAMP + 1, 1), (-MOST_STAMP - 1, 1), (1, MOST_COUNT + 1), (1, -MOST_COUNT - 1)]
)
def test_a_row_out_of_range_is_refused(t: int, step: int) -> None:
    """Its run would take over its iteration, and no event of that run could be read from a recording."""
    for message, decode in (
        (messages.Rows(parts=(pack("run/r", [(t, step, {"x": 1.0})]),)), codec.from_run),
        (devices.Sample(parts=(pack("host", [(t, step, {"x": 1.0})]),)), codec.from_sampler),
    ):
        with pytest.raises(WireError, match="out of range"):
            decode([codec.encode(message)])


def test_rows_of_the_largest_numbers_are_accepted() -> None:
    rows = pack("run/r", [(-MOST_STAMP, -1, {"x": 1.0}), (MOST_STAMP, MOST_COUNT, {})])
    message = messages.Rows(parts=(rows, pack("run/r", [])))
    assert codec.from_run([codec.encode(message)]) == message


def test_a_sampler_is_held_to_it_too() -> None:
    """What a driver says that does not know the size of its memory."""
    with pytest.raises(WireError):
        codec.from_sampler([codec.encode(devices.HostInfo(cpus=1, memory_total_bytes=INT64 * 2 - 1))])


@pytest.mark.guarantee("number-range")
def test_a_viewer_is_held_to_it_too() -> None:
    with pytest.raises(WireError):
        codec.from_viewer([codec.encode(messages.Fetch(id=INT64))])


def test_the_largest_numbers_in_range_are_accepted() -> None:
    hello = msgspec.structs.replace(
        HELLO, epoch=MOST_COUNT, knobs=(msgspec.structs.replace(LR, value=-INT64),)
    )
    for message in (hello, messages.Note(t=MOST_STAMP, step=-1)):
        assert codec.from_run([codec.encode(message)]) == message


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-INT64 * 2, INT64 * 2) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN)
def test_what_passes_can_be_sent(value: Any) -> None:
    try:
        check_ranges({"any": value})
    except ValueError:
        return
    msgspec.msgpack.encode(value)
    msgspec.json.encode(value)


def kinds(union: Any) -> list[type[msgspec.Struct]]:
    """The structs of a union, and those within them."""
    found: dict[type[msgspec.Struct], None] = {}

    def visit(kind: Any) -> None:
        for inner in get_args(kind):
            visit(inner)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in found:
            found[kind] = None
            for field in msgspec.structs.fields(kind):
                visit(field.type)

    visit(union)
    return [kind for kind in found if kind is not Columns]


def too_large(kind: Any) -> Any:
    """A value of this type with a number that no field may have, None if it cannot have one."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is int:
        return INT64
    inner = next((found for found in map(too_large, args) if found is not None), None)
    if inner is None or origin is Literal:
        return None
    return (inner,) if origin is tuple else {"x": inner} if origin is dict else inner


RECORDS = (
    messages.FromRun | messages.FromViewer | messages.CommandRecord | messages.Event | messages.NodeState
)
CASES = [
    (kind, field.name, value)
    for kind in kinds(RECORDS)
    for field in msgspec.structs.fields(kind)
    if (value := too_large(field.type)) is not None
]


@pytest.mark.parametrize(("kind", "field", "value"), CASES, ids=[f"{k.__name__}.{f}" for k, f, _ in CASES])
@pytest.mark.guarantee("number-range")
def test_each_number_of_each_message_is_checked(
    kind: type[msgspec.Struct], field: str, value: object
) -> None:
    required = [f for f in msgspec.structs.fields(kind) if f.required]
    plain = {f.name: 0 if f.type is int else None for f in required}
    check_ranges(kind(**plain))
    with pytest.raises(ValueError, match=f"{field} is out of range"):
        check_ranges(kind(**plain | {field: value}))
