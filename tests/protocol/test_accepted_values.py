"""Whatever the codec accepts from a run goes through the daemon, to viewers, and through JSON and SQLite."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hoptui.domain.columns import Columns, pack
from hoptui.protocol import codec, messages
from hoptui.protocol.messages import RunState
from hoptui.recording import Recording, stored_json
from tests.daemon.quiet_node import RUN, QuietNode

INTEGERS = st.integers(-5, 5) | st.integers(-(1 << 63), (1 << 64) - 1)
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=8),
    int: INTEGERS,
    float: st.floats(),
    bool: st.booleans(),
    bytes: st.binary(max_size=9),
    type(None): st.none(),
    Any: JSON,
}


def anything(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type of the protocol."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Columns:
        rows = st.lists(st.dictionaries(st.text(max_size=5), st.floats(), max_size=3), max_size=3)
        return rows.map(lambda found: pack(f"run/{RUN}", [(i + 1, i, row) for i, row in enumerate(found)]))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = {field.name: of_field(field) for field in msgspec.structs.fields(kind)}
        return st.builds(kind, **fields)
    if origin is Literal:
        return st.sampled_from(inner)
    if origin in (Union, UnionType):
        return st.one_of(*map(anything, inner))
    if origin is tuple:
        return st.lists(anything(inner[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(anything(inner[0]), anything(inner[1]), max_size=2)
    return SCALARS[kind]


def of_field(field: Any) -> st.SearchStrategy[Any]:
    """Any value of a field; durations are mostly durations."""
    sound = st.floats(0.0, 1e9) if field.name.endswith("_s") else st.nothing()
    return sound | anything(field.type)


def plain(value: object) -> str:
    """A record as text; each NaN is `nan`."""
    return repr(msgspec.to_builtins(value))


MESSAGES = get_args(messages.FromRun)


@pytest.mark.guarantee("value-survives")
@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: str(kind.__struct_config__.tag))
def test_what_is_accepted_survives_wire_json_and_sqlite(kind: Any) -> None:
    accepted = 0

    @settings(
        max_examples=40,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(anything(kind))
    def survives(sent: Any) -> None:
        nonlocal accepted
        quiet = QuietNode()
        quiet.hello()
        command = quiet.person("lr", 0.5, stage="accepted")
        if kind is messages.RunHello:
            sent = msgspec.structs.replace(sent, run=RUN, protocol=messages.PROTOCOL, nonce="n1")
        elif kind is messages.Outcome:
            sent = msgspec.structs.replace(sent, id=command.id)
        try:
            message = codec.from_run([codec.encode(sent)])
        except codec.WireError:
            return
        accepted += 1
        assert plain(message) == plain(sent)
        quiet.runs.receive(b"n1", None, message)
        quiet.runs.pump()
        node = quiet.node
        whole = messages.Delta(
            id=1,
            now=node.clock.t(),
            state=node.version,
            node=node.state(),
            vitals={run.id: run.vital(100.0) for run in node.registry},
            events=tuple(node.events_since(0)),
            commands=tuple(node.book.since(0)),
            columns=tuple(part for ring in node.rings for part in ring.parts()),
        )
        shown = codec.to_viewer([codec.encode(whole)])
        assert plain(shown) == plain(whole)
        state = quiet.run.state
        assert plain(stored_json.decode(stored_json.encode(state), RunState)) == plain(state)
        kept(whole)

    survives()
    assert accepted


def kept(whole: messages.Delta) -> None:
    """Events, commands and rows are in a recording as they were."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "r.hoptui")
        with Recording.create(path) as recording:
            for event in whole.events:
                recording.event(event)
            for record in whole.commands:
                recording.command(record)
            for part in whole.columns:
                recording.append(part)
            recording.flush()
            assert recording.missing == 0, recording.refused
        with Recording.open(path) as recording:
            assert plain(recording.events()) == plain(list(whole.events))
            assert plain({c.id: c for c in recording.commands()}) == plain({c.id: c for c in whole.commands})
