"""No sender passes on a message that its receiver would not take: every type of message, of any size."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import pytest
import zmq

from hoptui.client.session import RefusedError, Session
from hoptui.daemon.server import Server
from hoptui.domain import devices
from hoptui.domain.columns import Columns, pack
from hoptui.protocol import codec, messages
from hoptui.sdk.daemon_link import DaemonLink
from hoptui.sdk.run import Run
from hoptui.telemetry import __main__ as sampler
from tests.run_state import run_state

TEXT = "x" * 3000
MANY = 1500
"""Items of a collection: with such texts, each of them exceeds the largest limit."""
WIDE = pack("run/x", [(1, 1, {f"{'n' * 90}{i}": 1.0 for i in range(60_000)})])


def huge(kind: Any, *, deep: bool = True) -> Any:
    """A value of a type with long texts and many items."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Columns:
        return WIDE if deep else pack("x", [(1, 1, {"n": 1.0})])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        made = {field.name: huge(field.type, deep=deep) for field in msgspec.structs.fields(kind)}
        return kind(**made)
    if origin is Literal:
        return inner[0]
    if origin in (Union, UnionType):
        return huge(next((one for one in inner if one is str), inner[0]), deep=deep)
    if origin is tuple and inner[0] is Columns:
        return (huge(Columns, deep=deep),)
    if origin is tuple:
        return (huge(inner[0], deep=False),) * (MANY if deep else 1)
    if origin is dict:
        count = MANY if deep else 1
        return {f"{i}{TEXT}": huge(inner[1], deep=False) for i in range(count)} if inner[0] is str else {}
    return {str: TEXT * (MANY if deep else 1), int: 1, float: 1.0, bool: True, bytes: b"x" * 8, Any: 1}[kind]


class Wire:
    """Keeps what it is asked to send."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def send(self, *parts: Any) -> bool:
        """As a socket or a doorway: the frame is the first argument of bytes that is not an identity."""
        self.frames.append(next(part for part in parts if isinstance(part, bytes) and part != b"id"))
        return True


def from_run(message: Any) -> list[bytes]:
    wire, link = Wire(), DaemonLink(run_state(Run("toy")))
    link._send(wire, zmq, message)
    return wire.frames


def to_run(message: Any) -> list[bytes]:
    wire = Wire()
    Server._to_run(SimpleNamespace(_runs=wire), b"id", message)  # type: ignore[arg-type]
    return wire.frames


def to_viewer(message: Any) -> list[bytes]:
    wire = Wire()
    Server._to_viewer(SimpleNamespace(_viewers=wire), b"id", message)  # type: ignore[arg-type]
    [frame] = wire.frames
    assert isinstance(codec.to_viewer([frame]), type(message) | messages.Error)
    return wire.frames


def from_viewer(message: Any) -> list[bytes]:
    session, wire = Session(), Wire()
    session._socket = wire  # type: ignore[assignment]
    try:
        session._send(message)
    except RefusedError:
        return []
    return wire.frames


def from_sampler(message: Any) -> list[bytes]:
    """What a sampler writes that has one message to send and whose daemon has gone."""
    ours, commands = os.pipe()
    os.close(commands)
    read, write = os.pipe()
    alone = SimpleNamespace(start=lambda: [message], due=0, tick=list)
    assert sampler._serve(alone, ours, write) == 0  # type: ignore[arg-type]
    os.close(write)
    with open(read, "rb") as pipe:  # noqa: PTH123 - a descriptor
        return codec.Framer().feed(pipe.read())


DIRECTIONS: tuple[tuple[Any, Callable[[Any], list[bytes]], int], ...] = (
    (messages.FromRun, from_run, codec.MAX_BYTES),
    (messages.ToRun, to_run, codec.MAX_BYTES),
    (messages.FromViewer, from_viewer, codec.MAX_VIEWER_BYTES),
    (messages.ToViewer, to_viewer, codec.MAX_ANSWER_BYTES),
    (devices.FromSampler, from_sampler, codec.MAX_BYTES),
)


def cases() -> Iterator[Any]:
    for union, sends, limit in DIRECTIONS:
        for kind in get_args(union) or (union,):
            yield pytest.param(kind, sends, limit, id=f"{sends.__name__}-{kind.__struct_config__.tag}")


@pytest.mark.guarantee("answer-size")
@pytest.mark.parametrize(("kind", "sends", "limit"), [*cases()])
def test_nothing_larger_than_its_receiver_takes_is_sent(
    kind: Any, sends: Callable[[Any], list[bytes]], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPTUI", "off")
    message = huge(kind)
    size, least = len(codec.encode(message)), len(codec.encode(huge(kind, deep=False)))
    assert size > limit or size == least, "it is as large as can be"
    for frame in sends(message):
        assert len(frame) <= limit
