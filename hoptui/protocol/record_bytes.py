"""Records as bytes: encoded and compressed, and checked when they are read.

A record may come from another node, or from a file that somebody else has written. Its size is bounded before
and after it is decompressed, msgspec decodes it, and every number must be in the range of its field. Never
pickle.
"""

from __future__ import annotations

import re
import zlib
from typing import Any, TypeVar

import msgspec

from hoptui.domain import enumerations
from hoptui.protocol.ranges import check_ranges

MOST_BYTES = 8 << 20
"""The largest record when it is decompressed."""
LONGEST_REASON = 200
"""Characters of an error."""

T = TypeVar("T")


class RecordError(ValueError):
    """Bytes that are no valid record. The text is one sentence."""

    @property
    def cause(self) -> str:
        """The part of the text that no record decides on: one of a few."""
        return re.split(r"[:\d]", str(self), maxsplit=1)[0].strip()


def compressed(record: object, level: int = 1) -> bytes:
    """Encode and compress a record."""
    return zlib.compress(msgspec.msgpack.encode(record), level)


def decompressed(body: bytes, most: int, most_plain: int = MOST_BYTES) -> bytes:
    """Decompress a record of at most so many bytes, which are at most `most_plain` then.

    Raises:
        RecordError: it is too large, or damaged.
    """
    if len(body) > most:
        raise RecordError(f"a record has {len(body)} bytes; the limit is {most}")
    try:
        plain = (opened := zlib.decompressobj()).decompress(body, most_plain)
    except zlib.error as error:
        raise RecordError(f"a record is damaged: {error}") from None
    if opened.unconsumed_tail or not opened.eof:
        raise RecordError("a record is too large, or cut")
    return plain


def checked(plain: bytes, kind: type[T]) -> T:
    """Decode a record that is not compressed, and check its numbers.

    Raises:
        RecordError: it is no valid record.
    """
    try:
        try:
            found = msgspec.msgpack.decode(plain, type=kind)
        except msgspec.ValidationError:  # perhaps with words of a newer hoptui
            raw: Any = msgspec.msgpack.decode(plain)
            found = enumerations.convert(raw, kind)
        check_ranges(found)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise RecordError(f"a record is no {kind.__name__}: {error}"[:LONGEST_REASON]) from None
    return found
