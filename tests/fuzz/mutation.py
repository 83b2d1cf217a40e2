"""Mutations of bytes and of trees of values. All of them are functions of a `Random`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")
INTEGERS = (
    0, 1, -1, 2, 7, 127, 255, 4096, 65535, 1 << 31, 1 << 53, 1 << 62, (1 << 63) - 1, -(1 << 63), 1 << 63,
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-308, 1e9, 1e18, 1e300, math.nan, math.inf, -math.inf)
TEXTS = (
    "", " ", "\0", "\x1b[2J", "…", "\U0001f525", "%s", "{x}", "../../x", "/", ":", "nan", "1e999", "a" * 70,
)  # fmt: skip
BLOBS = (b"", b"\0" * 8, b"\xff" * 8, b"\x7f" * 8, b"x" * 7)
KEYS = ("value", "fields", "code", "t", "step", "$float", "type", "names")


def mutated_bytes(data: bytes, random: Random, most: int = 1 << 16) -> bytes:
    """Return the bytes after one to four changes of single bytes or of ranges."""
    found = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randint(0, len(found))
        size = random.choice((1, 1, 2, 4, 8, random.randint(1, 64)))
        match random.randrange(7):
            case 0 if found:
                found[at % len(found)] ^= 1 << random.randrange(8)
            case 1 if found:
                found[at % len(found)] = random.randrange(256)
            case 2:
                found[at:at] = random.randbytes(size)
            case 3:
                del found[at : at + size]
            case 4:
                found[at:at] = found[at : at + size]
            case 5:
                found[at : at + size] = random.choice((b"\0", b"\xff", b"\x7f")) * size
            case _:
                start = random.randint(0, len(found))
                found[at : at + size] = found[start : start + size]
    return bytes(found[:most])


def mutated_tree(value: Any, random: Random) -> Any:
    """Return a copy of a tree of dicts and lists with one node changed, removed, doubled or exchanged."""
    places = list(_places(value))
    path = random.choice(places)
    return _at(value, path, lambda node: _changed(node, random, value, places))


def mutated_list(items: Sequence[T], random: Random, other: Sequence[T]) -> list[T]:
    """Return the items with one removed, doubled, moved, or with one of `other` between them."""
    found = list(items)
    at = random.randint(0, len(found))
    match random.randrange(4):
        case 0 if found:
            del found[at % len(found)]
        case 1 if found:
            found.insert(at, random.choice(found))
        case 2 if found:
            found.insert(at, found.pop(random.randrange(len(found))))
        case _:
            found.insert(at, random.choice(other))
    return found


def scalar(random: Random) -> Any:
    """Return a number, a text or another plain value that is often at an edge."""
    kinds: tuple[Sequence[Any], ...] = (INTEGERS, FLOATS, TEXTS, BLOBS, (None, True, False, [], {}))
    return random.choice(random.choice(kinds))


def _places(value: Any, path: tuple[Any, ...] = ()) -> Any:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*path, key))


def _at(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(value)
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _at(copy[path[0]], path[1:], change)
    return copy


def _changed(node: Any, random: Random, root: Any, places: Sequence[tuple[Any, ...]]) -> Any:
    if isinstance(node, dict) and random.random() < 0.7:
        copy = dict(node)
        if copy and random.random() < 0.5:
            del copy[random.choice(list(copy))]
        else:
            copy[random.choice(KEYS)] = scalar(random)
        return copy
    if isinstance(node, list) and random.random() < 0.7:
        return mutated_list(node, random, node or [scalar(random)])
    if isinstance(node, bytes) and random.random() < 0.8:
        return mutated_bytes(node, random)
    if isinstance(node, str) and random.random() < 0.5:
        return mutated_bytes(node.encode(), random, 4096).decode(errors="replace")
    if isinstance(node, int) and not isinstance(node, bool) and random.random() < 0.4:
        return node + random.choice((-1, 1, 10, -1000, 1 << 30, 10**9))
    if random.random() < 0.2:  # a value from elsewhere in the same tree
        for key in random.choice(places):
            root = root[key]
        return root
    return scalar(random)
