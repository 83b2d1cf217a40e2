"""Every enumeration of every message and record: a value of a newer hoptui damages nothing else."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import pytest

from hoptui.domain import devices
from hoptui.domain.enumerations import PREFIX, ByValue, unknown
from hoptui.domain.targets import SetTargets
from hoptui.domain.tuning import Tune
from hoptui.protocol import codec, messages
from hoptui.recording import stored_json
from hoptui.recording.library import KnownRun
from hoptui.tuner.prior_results import TunerResult

NEW = "of_tomorrow"
Path = tuple[str, ...]
STORED = (messages.Event, messages.CommandRecord, messages.NodeState, KnownRun, TunerResult)
DIRECTIONS = (
    (messages.FromRun, codec.from_run),
    (messages.ToRun, codec.to_run),
    (messages.FromViewer, codec.from_viewer),
    (messages.ToViewer, codec.to_viewer),
    (devices.FromSampler, codec.from_sampler),
    (devices.ToSampler, codec.to_sampler),
)
STRICT = (messages.Command, messages.Lease, Tune, SetTargets)


def places(kind: Any) -> Iterator[Path]:
    """Where values of enumerations are in a type; `*` stands for an item."""
    if get_origin(kind) is Literal:
        yield ()
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            yield from ((field.encode_name, *rest) for rest in places(field.type))
    elif get_origin(kind) is tuple:
        yield from (("*", *rest) for rest in places(get_args(kind)[0]))
    elif get_origin(kind) is dict:
        yield from (("*", *rest) for rest in places(get_args(kind)[1]))
    elif get_origin(kind) in (Union, types.UnionType):
        for member in get_args(kind):
            yield from places(member)


def smallest(kind: Any, path: Path) -> Any:
    """The least that is a valid `kind`, with the new value at a place."""
    if get_origin(kind) is Literal:
        return NEW
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        made = {
            field.encode_name: smallest(field.type, path[1:])
            if path and field.encode_name == path[0]
            else sample(field.type)
            for field in msgspec.structs.fields(kind)
            if field.required or (path and field.encode_name == path[0])
        }
        tag = kind.__struct_config__.tag
        return {"type": tag, **made} if tag else made
    if get_origin(kind) is tuple:
        return [smallest(get_args(kind)[0], path[1:])]
    if get_origin(kind) is dict:
        return {"x": smallest(get_args(kind)[1], path[1:])}
    [member] = [member for member in get_args(kind) if path in list(places(member))]
    return smallest(member, path)


def sample(kind: Any) -> Any:
    """Any valid value."""
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {f.encode_name: sample(f.type) for f in msgspec.structs.fields(kind) if f.required}
    if get_origin(kind) in (Union, types.UnionType):
        return sample(get_args(kind)[0])
    if get_origin(kind) in (tuple, dict):
        return [] if get_origin(kind) is tuple else {}
    return {int: 1, float: 1.0, str: "s", bool: True, bytes: b""}[kind]


def found(value: Any, path: Path) -> Any:
    for name in path:
        if name == "*":
            value = next(iter(value.values() if isinstance(value, dict) else value))
        else:
            value = getattr(value, name)
    return value


SENT = [
    pytest.param(member, path, decode, id=f"{member.__name__}.{'.'.join(path)}")
    for union, decode in DIRECTIONS
    for member in (get_args(union) or (union,))
    for path in dict.fromkeys(places(member))
]
KEPT = [
    pytest.param(kind, path, id=f"{kind.__name__}.{'.'.join(path)}")
    for kind in STORED
    for path in dict.fromkeys(places(kind))
]


def test_every_enumeration_is_among_them() -> None:
    ids = {str(case.id) for case in SENT} | {str(case.id) for case in KEPT}
    assert {
        "Outcome.stage",
        "Command.verb",
        "Bye.reason",
        "Note.level",
        "ViewerHello.kind",
        "RunHello.knobs.*.spec.kind",
        "Delta.vitals.*.state",
        "Delta.node.runs.*.tuner.tried.*.result",
        "Delta.events.*.level",
        "CommandRecord.released.kind",
        "KnownRun.state.targets.*.standing",
        "TunerResult.objective",
    } <= ids
    assert len(ids) > 70


@pytest.mark.parametrize(("kind", "path", "decode"), SENT)
def test_a_message_with_a_new_value(kind: Any, path: Path, decode: codec.Decoder[Any]) -> None:
    frame = msgspec.msgpack.encode(smallest(kind, path))
    if decode is codec.from_viewer and kind in STRICT:  # nobody can carry it out: its sender is told so
        with pytest.raises(codec.WireError) as error:
            decode([frame])
        assert (error.value.code, NEW in str(error.value)) == ("unsupported", True)
        return
    value = found(decode([frame]), path)
    assert value == f"{PREFIX}{NEW}"
    again = decode([codec.encode(decode([frame]))])
    assert found(again, path) == value, "it is the same after another hop"


@pytest.mark.parametrize(("kind", "path"), KEPT)
def test_a_record_with_a_new_value(kind: Any, path: Path) -> None:
    read = stored_json.decode(msgspec.json.encode(smallest(kind, path)), kind)
    assert found(read, path) == f"{PREFIX}{NEW}"
    assert found(stored_json.decode(stored_json.encode(read), kind), path) == f"{PREFIX}{NEW}"


def test_other_errors_are_errors_all_the_same() -> None:
    bad = {"type": "outcome", "id": 7, "stage": NEW}
    with pytest.raises(codec.WireError, match="a bad outcome"):
        codec.from_run([msgspec.msgpack.encode(bad)])
    with pytest.raises(codec.WireError):
        codec.from_run([msgspec.msgpack.encode({"type": "outcome", "stage": NEW})])


def test_tables_have_something_for_new_values() -> None:
    table = ByValue({"a": 1}, len)
    assert (table["a"], table[f"{PREFIX}b"]) == (1, len(PREFIX) + 1)
    assert unknown(f"{PREFIX}b")
    assert not unknown("applied")
