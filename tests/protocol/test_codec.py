"""Bytes to messages: everything we say is understood, everything else is a WireError."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoptui.domain import devices
from hoptui.domain.columns import Columns, pack
from hoptui.domain.facts import Fact
from hoptui.protocol import codec, messages
from hoptui.protocol.codec import MAX_BYTES, MAX_FRAMES, MAX_VIEWER_BYTES, Framer, WireError, encode, framed
from tests.protocol.conftest import EVENT, RECORD, REPORTS, RUN, VITAL

Decode = Callable[[Sequence[bytes]], object]
Decoders = list[tuple[object, Decode]]
GOLDEN = Path(__file__).parent / "golden"


def members(union: object) -> tuple[object, ...]:
    return get_args(union) or (union,)


def as_map(message: messages.Message) -> dict[str, object]:
    found: dict[str, object] = msgspec.msgpack.decode(encode(message))
    return found


def code_of(decode: Decode, *frames: bytes) -> str:
    with pytest.raises(WireError) as error:
        decode(frames)
    assert len(str(error.value)) <= 200
    return error.value.code


# what we say ------------------------------------------------------------------------------------------------


def test_there_is_an_example_of_every_message(examples: list[messages.Message]) -> None:
    assert {type(example) for example in examples} == set(get_args(messages.Message))


def test_an_example_leaves_no_field_at_its_default(example: messages.Message) -> None:
    """A field at its default would not be missed if it got lost on the way."""
    for field in msgspec.structs.fields(type(example)):
        assert getattr(example, field.name) != field.default, field.name


@pytest.mark.parametrize("part", [RUN, VITAL, EVENT, RECORD, REPORTS], ids=lambda part: type(part).__name__)
def test_what_a_delta_has_leaves_no_field_at_its_default(part: msgspec.Struct) -> None:
    for field in msgspec.structs.fields(type(part)):
        assert getattr(part, field.name) != field.default, field.name


def test_each_direction_understands_its_own_messages_and_no_others(
    example: messages.Message, decoders: Decoders
) -> None:
    for union, decode in decoders:
        if type(example) in members(union):
            assert decode([encode(example)]) == example
        else:
            assert code_of(decode, encode(example)) == "unsupported"


def test_golden_bytes_are_still_understood(example: messages.Message, decoders: Decoders) -> None:
    """What an older hoptui sends, down to the last field. These files never change; HOPTUI_GOLDEN=write adds
    those of new messages."""
    path = GOLDEN / f"{type(example).__struct_config__.tag}.bin"
    if os.environ.get("HOPTUI_GOLDEN") == "write" and not path.exists():
        path.write_bytes(encode(example))
    sent = path.read_bytes()
    for union, decode in decoders:
        if type(example) in members(union):
            found = decode([sent])
            assert type(found) is type(example)
            now = msgspec.msgpack.decode(msgspec.msgpack.encode(found))
            assert contains(now, without_removed(msgspec.msgpack.decode(sent)))


REMOVED = {
    "lease.state": ("holder", "viewer", "left_s"),
    "delta": ("node.runs.lease", "node.gpu_reason", "node.sampler", "node.gpus.reason", "vitals.r1.why"),
    "sampler.devices": ("reason", "gpus.reason", "gpus.missing"),
}
"""Fields of older peers that are ignored, by message: those of exclusive control of a run, and sentences
about hardware."""


def without_removed(sent: dict[str, Any]) -> dict[str, Any]:
    """A message as it was sent, without the fields that were removed since."""
    for path in REMOVED.get(sent["type"], ()):
        *parents, field = path.split(".")
        found: list[Any] = [sent]
        for name in parents:
            found = [
                item for one in found for item in (one[name] if isinstance(one[name], list) else [one[name]])
            ]
        for one in found:
            del one[field]
    return sent


def contains(now: object, then: object) -> bool:
    """Whether everything that was said then is still there; fields may have come."""
    if isinstance(now, dict) and isinstance(then, dict):
        return all(key in now and contains(now[key], value) for key, value in then.items())
    if isinstance(now, list) and isinstance(then, list):
        return len(now) == len(then) and all(map(contains, now, then))
    return type(now) is type(then) and now == then


def test_unknown_fields_are_ignored(example: messages.Message, decoders: Decoders) -> None:
    newer = msgspec.msgpack.encode({**as_map(example), "field_of_a_newer_hoptui": {"a": [1, 2.5, None]}})
    for union, decode in decoders:
        if type(example) in members(union):
            assert decode([newer]) == example


def test_a_verdict_of_a_newer_daemon_leaves_the_message_readable(examples: list[messages.Message]) -> None:
    (delta,) = [example for example in examples if isinstance(example, messages.Delta)]
    sent = msgspec.msgpack.decode(encode(delta))
    sent["node"]["runs"][0]["diagnosis"]["verdict"] = "moon-bound"
    found = codec.to_viewer([msgspec.msgpack.encode(sent)])
    assert isinstance(found, messages.Delta)
    assert found.node is not None
    diagnosis = found.node.runs[0].diagnosis
    assert diagnosis is not None
    assert (diagnosis.verdict, diagnosis.facts[0].fields) == ("unknown", {"verdict": "moon-bound"})


def test_fields_with_defaults_may_be_missing() -> None:
    assert codec.from_viewer([msgspec.msgpack.encode({"type": "fetch", "id": 3})]) == messages.Fetch(id=3)


def test_nan_and_infinity_travel_in_rows() -> None:
    part = pack("run/r1", [(1, 1, {"x": float("nan"), "y": float("inf")}), (2, 2, {"x": float("-inf")})])
    found = codec.from_run([encode(messages.Rows(parts=(part,)))])
    assert isinstance(found, messages.Rows)
    assert found.parts == (part,)
    assert list(found.parts[0].rows()) == [(1, 1, {"y": float("inf")}), (2, 2, {"x": float("-inf")})]


@pytest.mark.parametrize("value", [True, 0, -(1 << 63), (1 << 63) - 1, 1.0, 3e-4, "bf16"])
def test_a_knobs_value_keeps_its_type(value: bool | int | float | str) -> None:
    command = messages.Command(id="c", run="r", epoch=1, verb="set", value=value)
    found = codec.to_run([encode(command)])
    assert isinstance(found, messages.Command)
    assert found.value == value
    assert type(found.value) is type(value)


# what anybody may send --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"type": "run.warp"}, "unsupported"),
        ({"type": "x" * 100_000}, "too_large"),
        ({"type": "x" * 10_000}, "unsupported"),
        ({"type": "fetch"}, "malformed"),
        ({"type": "fetch", "id": "3"}, "malformed"),
        ({"type": "fetch", "id": 3, "wait_s": "soon"}, "malformed"),
        ({"type": "fetch", "id": 3, "cursors": [1]}, "malformed"),
        ({"type": "command", "id": "c", "run": "r", "epoch": 1, "verb": "explode"}, "unsupported"),
        ({"type": 7}, "malformed"),
        ({"id": 3}, "malformed"),
        ({}, "malformed"),
        ([1, 2], "malformed"),
        (None, "malformed"),
        ("fetch", "malformed"),
    ],
)
@pytest.mark.guarantee("message-limits")
def test_bad_messages_are_told_apart(body: object, code: str) -> None:
    assert code_of(codec.from_viewer, msgspec.msgpack.encode(body)) == code


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x81\xa4type\xa2\xff\xfe",
        b"\x81\xa2\xff\xfe\xc0",
        b"\xd6\xff\x00\x00\x00\x00",
        encode(messages.Shutdown(id=1)) + b"\x00",
        encode(messages.Shutdown(id=1))[:-1],
    ],
)
def test_bytes_that_are_no_message(frame: bytes) -> None:
    assert code_of(codec.from_viewer, frame) == "malformed"


@pytest.mark.parametrize("levels", [5_000, 60_000])
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1k"])
@pytest.mark.parametrize("field", ["cursors", "of_a_newer_hoptui"])
def test_deep_nesting_is_refused(field: str, opening: bytes, levels: int) -> None:
    start = msgspec.msgpack.encode({"type": "fetch", "id": 1, field: 0})
    frame = start[:-1] + opening * (levels // len(opening)) + b"\xc0"
    if field == "cursors":
        assert code_of(codec.from_viewer, frame) == "malformed"
    else:  # how deep an unknown field may be skipped depends on the Python
        with contextlib.suppress(WireError):
            assert codec.from_viewer([frame]) == messages.Fetch(id=1)


class NotDecoded:
    """Stands in for msgspec's decoder where a limit must act before it."""

    def decode(self, frame: bytes) -> object:
        raise AssertionError(f"{len(frame)} bytes were decoded")


@pytest.mark.parametrize(
    ("decoder", "limit"), [(codec.from_run, MAX_BYTES), (codec.from_viewer, MAX_VIEWER_BYTES)]
)
@pytest.mark.guarantee("message-limits")
def test_limits_act_before_anything_is_decoded(
    decoder: codec.Decoder[object], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert code_of(decoder, bytes(limit)) == "malformed"
    monkeypatch.setattr(decoder, "_decoder", NotDecoded())
    monkeypatch.setattr(decoder, "_tag", NotDecoded())
    assert code_of(decoder, bytes(limit + 1)) == "too_large"
    assert code_of(decoder, bytes(limit), b"1") == "too_large"
    assert code_of(decoder, *[b""] * (MAX_FRAMES + 1)) == "too_large"
    assert code_of(decoder, *[b""] * MAX_FRAMES) == "malformed"
    assert code_of(decoder) == "malformed"


@pytest.mark.parametrize(
    "part",
    [
        Columns(source="s", names=(), t=bytes(8), step=bytes(16), values=()),
        Columns(source="s", names=(), t=bytes(7), step=bytes(7), values=()),
        Columns(source="s", names=("x",), t=bytes(8), step=bytes(8), values=()),
        Columns(source="s", names=("x",), t=bytes(8), step=bytes(8), values=(bytes(16),)),
        Columns(source="s", names=("x", "x"), t=bytes(8), step=bytes(8), values=(bytes(8), bytes(8))),
        pack("s", [(2, 1, {}), (1, 2, {})]),
    ],
)
def test_rows_that_do_not_fit_together_are_refused_everywhere(part: Columns) -> None:
    assert code_of(codec.from_run, encode(messages.Rows(parts=(part,)))) == "malformed"
    assert code_of(codec.from_sampler, encode(devices.Sample(parts=(part,)))) == "malformed"
    delta = messages.Delta(id=1, now=1, state=1, columns=(part,))
    assert code_of(codec.to_viewer, encode(delta)) == "malformed"


@pytest.mark.parametrize(
    "change",
    [
        {"t": bytes(8)},
        {"step": bytes(24)},
        {"low": (bytes(8),)},
        {"high": ()},
        {"mean": (bytes(16), bytes(16))},
        {"names": ("x", "y")},
        {"t": bytes(7), "step": bytes(7), "low": (bytes(7),), "high": (bytes(7),), "mean": (bytes(7),)},
    ],
)
def test_buckets_that_do_not_fit_together_are_refused(change: dict[str, object]) -> None:
    two = (bytes(16),)
    good = messages.Buckets(
        id=1, source="s", names=("x",), t=bytes(16), step=bytes(16), low=two, high=two, mean=two
    )
    assert codec.to_viewer([encode(good)]) == good
    assert code_of(codec.to_viewer, encode(msgspec.structs.replace(good, **change))) == "malformed"


def mutated(chance: Random, frame: bytes, other: bytes) -> bytes:
    """A frame with a few bytes flipped, cut out, doubled, put in, or with the end of another frame."""
    found = bytearray(frame)
    for _ in range(chance.choice((1, 1, 2, 4))):
        a, b = sorted(chance.randint(0, len(found)) for _ in range(2))
        b = min(b, a + 40)
        match chance.randrange(8):
            case 1:
                del found[a:b]
            case 2:
                found[a:a] = found[a:b]
            case 3:
                found[a:a] = chance.randbytes(chance.randint(1, 8))
            case 4:
                found[a:] = other[chance.randint(0, len(other)) :]
            case 5:
                found[a : a + 1] = chance.choice([b"\xc0", b"\xcf" + b"\xff" * 8, b"\xd3\x80" + b"\x00" * 7])
            case _ if found:
                found[chance.randrange(len(found))] = chance.randrange(256)
    return bytes(found)


def understood_or_refused(frame: bytes, decoders: Decoders) -> int:
    """How many directions understood it; whatever they understood can be used."""
    count = 0
    for union, decode in decoders:
        try:
            found = decode([frame])
        except WireError:
            continue
        count += 1
        assert type(found) in members(union)
        if isinstance(found, messages.Rows | devices.Sample):
            assert all(len(list(part.rows())) == len(part) for part in found.parts)
    return count


def test_mutated_messages_are_understood_or_refused(
    examples: list[messages.Message], decoders: Decoders
) -> None:
    frames = [encode(example) for example in examples]
    understood = 0

    @given(st.integers(0, 1 << 32))
    @settings(max_examples=100, deadline=None, database=None)
    def run(seed: int) -> None:
        nonlocal understood
        chance = Random(seed)
        for frame in frames:
            understood += understood_or_refused(mutated(chance, frame, chance.choice(frames)), decoders)

    run()
    assert understood > 50  # the mutations are gentle enough to get past the first checks


@given(frame=st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_understood_or_refused(frame: bytes) -> None:
    for decode in (codec.from_run, codec.to_run, codec.from_viewer, codec.to_viewer, codec.from_sampler):
        assert code_of(decode, frame) in ("malformed", "unsupported")


# a byte stream ----------------------------------------------------------------------------------------------


def test_a_stream_may_be_split_at_any_byte() -> None:
    sent: list[messages.Message] = [
        devices.Watch(hz=1.0),
        devices.Devices(problem=Fact("driver.no_gpu")),
        devices.Watch(hz=2.0, pids={"r": 1}),
    ]
    stream = b"".join(map(framed, sent))
    frames = [encode(message) for message in sent]
    for at in range(len(stream) + 1):
        framer = Framer()
        assert framer.feed(stream[:at]) + framer.feed(stream[at:]) == frames
    framer = Framer()
    assert [f for i in range(len(stream)) for f in framer.feed(stream[i : i + 1])] == frames


@given(st.lists(st.binary(max_size=20), max_size=8), st.lists(st.integers(0, 300), max_size=8))
@settings(max_examples=100, deadline=None)
def test_any_frames_in_any_pieces(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    framer = Framer()
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert [frame for piece in pieces for frame in framer.feed(piece)] == bodies


def test_a_frame_over_the_limit_is_refused_before_it_arrives() -> None:
    framer = Framer(limit=10)
    assert framer.feed(b"\x00\x00\x00\x0a0123456789") == [b"0123456789"]
    with pytest.raises(WireError, match="11 bytes") as error:
        framer.feed(b"\x00\x00\x00\x0b")
    assert error.value.code == "too_large"


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1.0, 1e300])
@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (codec.from_viewer, lambda s: messages.Fetch(id=1, wait_s=s)),
        (codec.from_viewer, lambda s: messages.Lease(id=1, run="r", op="renew", seconds=s)),
        (codec.from_viewer, lambda s: messages.Command(id="c", run="r", epoch=1, verb="pause", hold_s=s)),
        (codec.to_run, lambda s: messages.Command(id="c", run="r", epoch=1, verb="set", ttl_s=s)),
        (codec.to_run, lambda s: messages.Hold(seconds=s)),
        (codec.from_run, lambda s: messages.Pulse(step=1, progress_age_s=s)),
    ],
)
def test_durations_are_durations(
    decode: Callable[[list[bytes]], object], message: Callable[[float], messages.Message], seconds: float
) -> None:
    with pytest.raises(codec.WireError, match="is no duration"):
        decode([codec.encode(message(seconds))])
