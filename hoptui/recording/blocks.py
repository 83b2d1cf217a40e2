"""Rows and their summaries at rest: what the bodies in the table `blocks` hold (packing.py says how they are packed)."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Collection, Sequence

from hoptui.domain.columns import Columns
from hoptui.recording.packing import Packed, pack
from hoptui.recording.summary import Figures, Summary

ROWS = 512
_STAMPS = 2  # columns before the values: t, step
_GROUPS = 4  # columns before the figures: t, first, step, rows


def encode(columns: Columns) -> bytes:
    """Rows: t and step as whole numbers, then a column a name."""
    return pack([columns.times(), columns.steps(), *(array("d", raw) for raw in columns.values)])


def decode(source: str, names: Sequence[str], rows: int, body: bytes, wanted: Collection[str]) -> Columns:
    """The rows of a block, with the `wanted` names alone (none: all) as far as it has them.

    Raises:
        ValueError: the block is damaged.
    """
    packed = _opened(body, rows, _STAMPS + len(names))
    kept = [i for i, name in enumerate(names) if not wanted or name in wanted]
    return Columns(
        source=source,
        names=tuple(names[i] for i in kept),
        t=packed.integers(0).tobytes(),
        step=packed.integers(1).tobytes(),
        values=tuple(packed.floats(_STAMPS + i).tobytes() for i in kept),
    )


def encode_summary(summary: Summary) -> bytes:
    """Groups: t, first, step and rows, then low, high, mean and known of each name."""
    columns: list[array[float] | array[int]] = [summary.t, summary.first, summary.step, summary.rows]
    for figures in summary.figures:
        columns += figures
    return pack(columns)


def decode_summary(names: Sequence[str], groups: int, body: bytes, wanted: Collection[str]) -> Summary:
    """The groups of a block above the rows; otherwise as `decode`."""
    packed = _opened(body, groups, _GROUPS + len(Figures._fields) * len(names))
    kept = [i for i, name in enumerate(names) if not wanted or name in wanted]
    return Summary(
        names=tuple(names[i] for i in kept),
        t=packed.integers(0),
        first=packed.integers(1),
        step=packed.integers(2),
        rows=packed.integers(3),
        figures=tuple(
            Figures(packed.floats(at), packed.floats(at + 1), packed.floats(at + 2), packed.integers(at + 3))
            for at in (_GROUPS + len(Figures._fields) * i for i in kept)
        ),
    )


def cut(columns: Columns) -> list[Columns]:
    """Rows in pieces of equal size, at least ROWS and less than twice as many in each if there are as many at all."""
    n = len(columns)
    count = max(1, n // ROWS)
    edges = [n * i // count for i in range(count + 1)]
    return [columns.slice(a, b) for a, b in itertools.pairwise(edges)]


def _opened(body: bytes, rows: int, columns: int) -> Packed:
    packed = Packed(body, rows)
    if len(packed) != columns:
        raise ValueError(f"a block has {len(packed)} columns instead of {columns}")
    return packed
