"""The text of the screen of lines: what is chosen, the table, and all that is known of one line. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hoptui.domain.line_counts import CountedLine, FoundLines, LineCounts, SharedLine
from hoptui.presentation import numbers, stacks
from hoptui.tui.components import lines, options
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span

MARGIN = 2
MOST_PLACE = 48
BARRED = 100  # cells from which there is room for a bar
LABEL = 10
THREAD = "the thread"  # the head of the column of kinds
SOURCE = 12  # cells that the last column has at least, if brief words for the kinds leave them
LEAST_MORE = 1.25
"""How much greater the share of a rank must be than that of all, to be worth a word."""

Place = tuple[str, str, int, str]
"""The kind, file, line and function of a row."""


class LineColumns(NamedTuple):
    """Cells of each column with the gap after it, 0 if it is left out.

    The source takes the rest, if that is enough for it: then it has a `source` column.
    """

    share: int
    bar: int
    kind: int
    place: int
    rank: int
    source: bool
    words: list[str]
    """What the thread does at each line."""


def key(line: CountedLine) -> Place:
    """What a row stands for: it stays the same when its share changes."""
    return line.kind, line.file, line.line, line.function


def columns(found: Sequence[SharedLine], width: int, *, several: bool) -> LineColumns:
    """Columns as wide as their longest text. `several`: the samples are of more than one rank."""
    longest = max((len(lines.place(one.line)) for one in found), default=0)
    place = min(longest, MOST_PLACE) + lines.GAP
    bar = lines.BAR + lines.GAP if width >= BARRED else 0
    ranks = max(map(len, map(_rank, found)), default=0) if several else 0
    rank = ranks + lines.GAP if ranks else 0
    left = width - MARGIN - lines.SHARE - bar - rank
    words, kind = lines.kind_words(found, left - place - SOURCE)
    kind = max(kind, len(THREAD) + lines.GAP)
    if left - kind < place:
        left, rank = left + rank, 0  # shown of each line by `story`
    source = left - kind - place >= SOURCE
    if not source:  # the places get what there is
        place = max(place, min(longest + lines.GAP, left - kind))
    return LineColumns(lines.SHARE, bar, kind, place, rank, source, words)


def head(cells: LineColumns) -> Line:
    """The names of the columns."""
    return (
        Span("", width=MARGIN),
        Span("share", "dim", cells.share - lines.GAP, right=True),
        Span("", width=lines.GAP),
        *([Span("", "dim", cells.bar)] if cells.bar else []),
        Span(THREAD, "dim", cells.kind),
        Span("line", "dim", cells.place),
        *([Span("most on", "dim", cells.rank)] if cells.rank else []),
        *([Span("source, or what it calls", "dim")] if cells.source else []),
    )


def rows(
    found: Sequence[SharedLine], cells: LineColumns, sources: Mapping[tuple[str, int], str], cursor: int
) -> list[Line]:
    """One line each; `sources` has those that could be read."""
    return [
        _row(one, word, cells, sources, chosen=at == cursor)
        for at, (one, word) in enumerate(zip(found, cells.words, strict=True))
    ]


def _row(
    one: SharedLine, does: str, cells: LineColumns, sources: Mapping[tuple[str, int], str], *, chosen: bool
) -> Line:
    ink = lines.INKS.get(one.line.kind, "dim")
    source = numbers.clean(sources.get((one.line.file, one.line.line), ""), 200)
    called = f"({stacks.called(one.line.inside)})" if one.line.inside else ""
    return (
        Span("› " if chosen else "  ", "key"),
        Span(numbers.percentage(100 * one.share), "strong", cells.share - lines.GAP, right=True),
        Span("", width=lines.GAP),
        *(lines.barred(one.share, ink) if cells.bar else ()),
        Span(does, ink, cells.kind),
        Span(lines.place(one.line), "strong" if chosen else "", cells.place),
        *([Span(_rank(one), "warn", cells.rank)] if cells.rank else []),
        *([Span(source) if source else Span(called, "dim")] if cells.source else []),
    )


def _rank(one: SharedLine) -> str:
    """`rank 3 91 %` where its share is much greater than that of all ranks."""
    more = one.of_rank >= LEAST_MORE * one.share
    return f"rank {one.rank} {numbers.percentage(100 * one.of_rank)}" if more else ""


def choice(ranks: Sequence[int], rank: int | None, width: int, *, whole: bool) -> Line:
    """What is shown of what can be chosen: `last minute  ›whole run   rank ›all  0  1  2`."""
    line: Line = (
        Span(" "),
        *options.option("last minute", chosen=not whole),
        *options.option("whole run", chosen=whole),
    )
    if len(ranks) < 2 and rank is None:
        return line
    return options.ranks(line, ranks, rank, width, all_ranks=True)


def notes(found: FoundLines) -> str:
    """What is missing in the samples of a recording."""
    return ", ".join(stacks.left_out(found.ranks_left_out, found.unreadable, found.skipped))


def story(
    view: View,
    line: CountedLine,
    ranks: Mapping[int, LineCounts],
    source: Sequence[tuple[int, str]] | None,
    width: int,
) -> list[Line]:
    """All that is known of a line; `source` is None while it is being read."""
    at = {rank: _samples(counts, line) for rank, counts in ranks.items()}
    total = sum(counts.samples for counts in ranks.values())
    share = numbers.percentage(100 * sum(at.values()) / total) if total else numbers.UNKNOWN
    kind = stacks.does(line.kind, line.inside)
    found = [
        ("file", Span(f"{numbers.clean(line.file, 400)}:{line.line}")),
        ("function", Span(numbers.clean(line.function, 200))),
        (
            "share",
            Span(f"{share}, {numbers.counted(sum(at.values()), 'sample')} of {numbers.grouped(total)}"),
        ),
        ("thread", Span(kind, lines.INKS.get(line.kind, ""))),
    ]
    if line.inside:
        found.append(("calls", Span(f"{numbers.clean(line.inside, 200)}, most often")))
    if len(ranks) > 1:
        of = (
            f"{rank}: {numbers.percentage(100 * at[rank] / counts.samples)}" for rank, counts in ranks.items()
        )
        found.append(("ranks", Span("   ".join(of))))
    shown = [one for label, span in found for one in _wrapped(label, span, width)]
    return [*shown, (), *_source(view, line, source)]


def _source(view: View, line: CountedLine, source: Sequence[tuple[int, str]] | None) -> list[Line]:
    if source is None:
        return [(Span("reading the source", "dim"),)]
    if not source:
        where = f" here: the run is on {numbers.clean(view.link.node, 40)}" if view.link.node else " here"
        return [(Span(f"the source cannot be read{where}", "dim"),)]
    return [
        (
            Span("› " if number == line.line else "  ", "key"),
            Span(str(number), "dim", len(str(source[-1][0])), right=True),
            Span(f"  {numbers.clean(text.expandtabs(4), 300)}", "strong" if number == line.line else ""),
        )
        for number, text in source
    ]


def _samples(counts: LineCounts, line: CountedLine) -> int:
    return sum(one.samples for one in counts.lines if key(one) == key(line))


def _wrapped(label: str, span: Span, width: int) -> list[Line]:
    parts = textwrap.wrap(span.text, max(16, width - LABEL), break_on_hyphens=False) or [""]
    return [
        (Span(label if not i else "", "dim", LABEL), Span(part, span.ink)) for i, part in enumerate(parts)
    ]
