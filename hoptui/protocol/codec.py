"""Encoding and decoding of messages. Limits are checked before anything is decoded. Never pickle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar, get_args

import msgspec

from hoptui.domain import columns, devices, enumerations, line_counts, outputs, stacks
from hoptui.domain.targets import SetTargets
from hoptui.domain.tuning import Tune
from hoptui.protocol import messages
from hoptui.protocol.ranges import check_ranges

MAX_FRAMES = 4
MAX_BYTES = 1 << 20
MAX_VIEWER_BYTES = 64 << 10
MAX_ANSWER_BYTES = 4 << 20
"""The largest message to a viewer."""
LONGEST_S = 1e9

T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder()


class WireError(Exception):
    """Bytes that are not a valid message. `code` is `too_large`, `malformed` or `unsupported`."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def encode(message: messages.Message) -> bytes:
    """Encode one message as one frame."""
    return _encoder.encode(message)


class Decoder(Generic[T]):
    """Decodes the messages of one direction. Any other bytes raise a WireError.

    Values of enumerations that only a newer hoptui knows are kept as in `enumerations`. Requests of the
    types `strict` with such a value are refused: nobody can carry them out. With `ranges`, every number must
    be in the range of its field (see `hoptui.protocol.ranges`).
    """

    def __init__(
        self,
        union: Any,
        limit: int = MAX_BYTES,
        strict: tuple[type, ...] = (),
        *,
        ranges: bool = False,
    ) -> None:
        self._union, self._strict = union, strict
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)
        self._tag = msgspec.msgpack.Decoder(_Tag)
        self._known = frozenset(_tags(union))
        self._limit = limit
        self._ranges = ranges

    def __call__(self, frames: Sequence[bytes]) -> T:
        """Return the message in `frames`.

        Raises:
            WireError: too many or too large frames, not a message, or a message of another direction or a
                newer protocol.
        """
        if len(frames) > MAX_FRAMES or sum(map(len, frames)) > self._limit:
            size = sum(map(len, frames))
            raise WireError("too_large", f"{len(frames)} frames of {size} bytes; the limit is {self._limit}")
        if len(frames) != 1:
            raise WireError("malformed", f"a message is one frame, not {len(frames)}")
        try:
            message = self._decoded(frames[0])
            _check(message)
            if self._ranges:
                check_ranges(message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            raise self._reason(frames[0], error) from None
        return message

    def _decoded(self, frame: bytes) -> T:
        try:
            return self._decoder.decode(frame)
        except msgspec.ValidationError:
            if self._tag.decode(frame).type not in self._known:
                raise
            message: T = enumerations.convert(msgspec.msgpack.decode(frame), self._union)
            if isinstance(message, self._strict):
                raise
            return message

    def _reason(self, frame: bytes, error: Exception) -> WireError:
        try:
            tag = self._tag.decode(frame).type
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return WireError("malformed", f"no message: {error}"[:200])
        if tag not in self._known:
            return WireError("unsupported", f"no message of the kind {tag[:40]!r} is understood here")
        if "Invalid enum value" in str(error):
            return WireError("unsupported", f"this {tag} is of a newer hoptui: {error}"[:200])
        return WireError("malformed", f"a bad {tag}: {error}"[:200])


class _Tag(msgspec.Struct):
    type: str


def _tags(union: object) -> list[str]:
    return [str(member.__struct_config__.tag) for member in get_args(union) or (union,)]


def _check(message: object) -> None:
    kind = type(message)
    if kind in _COLUMNS:
        for part in getattr(message, _COLUMNS[kind]):
            columns.check(part)
    elif kind in _DURATIONS:
        for name in _DURATIONS[kind]:
            if not 0 <= getattr(message, name) <= LONGEST_S:  # false for NaN
                raise ValueError(f"{name} is no duration")
    elif isinstance(message, messages.Stacks):
        stacks.check(message.samples)
    elif isinstance(message, messages.Output):
        outputs.check(message.part)
    elif isinstance(message, messages.RunOutput):
        for part in message.parts:
            outputs.check(part)
    elif isinstance(message, messages.RunStacks):
        for each in message.ranks:
            stacks.check(each.samples)
    elif isinstance(message, messages.RunLines):
        for line in message.ranks:
            line_counts.check(line.counts)
    elif isinstance(message, messages.Buckets):
        figures = (message.low, message.high, message.mean)
        raw = (message.t, message.step, *message.low, *message.high, *message.mean)
        if any(len(f) != len(message.names) for f in figures) or {len(r) for r in raw} != {len(message.t)}:
            raise ValueError("buckets of different lengths")
        if len(message.t) % 8:
            raise ValueError("buckets that are no 8-byte numbers")


_COLUMNS: dict[type, str] = {messages.Rows: "parts", devices.Sample: "parts", messages.Delta: "columns"}
_DURATIONS: dict[type, tuple[str, ...]] = {
    kind: tuple(n for n in kind.__struct_fields__ if n.endswith("_s") or n == "seconds")
    for kind in (
        messages.Command,
        messages.Fetch,
        messages.FetchLines,
        messages.FetchStacks,
        messages.Lease,
        messages.Hold,
        messages.Pulse,
    )
}

from_run: Decoder[messages.FromRun] = Decoder(messages.FromRun, ranges=True)
to_run: Decoder[messages.ToRun] = Decoder(messages.ToRun)
from_viewer: Decoder[messages.FromViewer] = Decoder(
    messages.FromViewer,
    MAX_VIEWER_BYTES,
    strict=(messages.Command, messages.Lease, Tune, SetTargets),
    ranges=True,
)
to_viewer: Decoder[messages.ToViewer] = Decoder(messages.ToViewer, MAX_ANSWER_BYTES)
from_sampler: Decoder[devices.FromSampler] = Decoder(devices.FromSampler, ranges=True)
to_sampler: Decoder[devices.ToSampler] = Decoder(devices.ToSampler)


class Framer:
    """Splits a byte stream into frames: four bytes of big-endian length, then the frame."""

    def __init__(self, limit: int = MAX_BYTES) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that `data` completes.

        Raises:
            WireError: a frame is longer than the limit. The stream cannot be used after that.
        """
        self._buffer += data
        frames = []
        while len(self._buffer) >= 4:
            length = int.from_bytes(self._buffer[:4], "big")
            if length > self._limit:
                raise WireError("too_large", f"a frame of {length} bytes; the limit is {self._limit}")
            if len(self._buffer) < 4 + length:
                break
            frames.append(bytes(self._buffer[4 : 4 + length]))
            del self._buffer[: 4 + length]
        return frames


def framed(message: messages.Message) -> bytes:
    """Encode one message as a length-prefixed frame for a pipe."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "big") + body
