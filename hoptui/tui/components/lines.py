"""Where the time of a training thread goes, by stack samples: kinds of work and lines of the script. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from hoptui.domain.code_lines import CodeLine
from hoptui.domain.line_counts import CountedLine, FoundLines, LineCounts, SharedLine, kind_shares, shares
from hoptui.presentation import numbers, stacks
from hoptui.tui.snapshot import OLD_S, SECOND, View
from hoptui.tui.styled_text import FULL, Line, Span, bar, width_of

TITLE = "Where the time goes"
INKS: Mapping[str, str] = {
    "compute": "3",
    "input": "2",
    "environment": "2",
    "script": "2",
    "wait": "1",
    "copy": "1",
    "collective": "1",
    "save": "4",
    "log": "4",
    "evaluate": "4",
    "compile": "4",
}
"""Computing; the script's own work before it; waits; and what is done between iterations."""
SHARE, BAR = 7, 12
GAP = 2
BARRED = 72  # cells from which there is room for a bar, if the places leave it
LEAST_SHARE = 0.005  # of a kind that is worth a word
HINT = 'run.phase("rollout") in the loop adds its phases'


def of(view: View, *, whole: bool = False) -> FoundLines | None:
    """What is known of the run on screen, None while nothing has been answered."""
    return view.store.lines.get((view.run.run, whole)) if view.run else None


def chosen(found: FoundLines | None, rank: int | None) -> Mapping[int, LineCounts]:
    """The processes that have samples: one rank, or with None all."""
    ranks = found.ranks if found is not None else {}
    return {each: counts for each, counts in ranks.items() if rank in (None, each) and counts.samples}


def first(found: FoundLines | None) -> Mapping[int, LineCounts]:
    """The first process that has samples."""
    return dict(list(chosen(found, None).items())[:1])


def reason(view: View, found: FoundLines | None, *, whole: bool = False) -> str:
    """Why there are no samples, in one sentence."""
    if found is None:
        if view.link.state != "live":
            return "no daemon has answered yet"
        return "reading the recording" if whole or view.replay else "asking the daemon"
    match found.problem:
        case "old_daemon":
            return "the daemon is older than this hoptui: hoptui daemon stop, then try again"
        case "elsewhere":
            there = numbers.clean(view.link.node, 40)
            return f"the recording is on {there}: hoptui where, there"
        case "no_recording":
            return f"the run has no recording here: {numbers.clean(found.detail, 200)} does not exist"
        case "unreadable":
            return f"the recording cannot be read: {numbers.clean(found.detail, 200)}"
    if found.unreadable:
        return f"stack samples are damaged: {numbers.counted(found.unreadable, 'minute')}"
    if view.run is not None and view.run.stacks_off:
        return f"no stack samples: {stacks.OFF}"
    if whole:
        return "the recording has no stack samples up to now: they are written once a minute"
    if view.replay:
        return "the recording has no stack samples of this time"
    if view.exited:
        return f"the daemon keeps no stack samples of this run{_from_recording(view)}"
    return (
        "no stack samples of the last minute: the first come two seconds after the start; "
        "HOPTUI_STACKS=off, stacks=False and an older hoptui send none"
    )


def wrapped(sentence: str, width: int) -> list[str]:
    """A sentence in as many lines as it takes."""
    return textwrap.wrap(sentence, max(8, width))


def _from_recording(view: View) -> str:
    keys = (view.hint("view.where", ""), view.hint("where.whole", ""))
    return f": {', '.join(key.strip() for key in keys)} reads its recording" if all(keys) else ""


def amount(view: View, ranks: Mapping[int, LineCounts]) -> str:
    """`596 samples in 60 s`, and if they are old or in the past, until when."""
    began = min(counts.began for counts in ranks.values())
    ended = max(counts.ended for counts in ranks.values())
    samples = numbers.counted(sum(counts.samples for counts in ranks.values()), "sample")
    over = f"{samples} in {numbers.duration((ended - began) / SECOND)}"
    if view.replay:
        first_wall, last_wall = view.replay.wall(began), view.replay.wall(ended)
        return f"{over}, {numbers.clock(first_wall)}…{numbers.clock(last_wall)}"
    age_s = (view.now - ended) / SECOND
    return f"{over} until {numbers.duration(age_s)} ago" if age_s >= 2 * OLD_S else over


def old(view: View, ranks: Mapping[int, LineCounts] | None = None) -> bool:
    """Whether samples are of another time than what is on screen; by default those of the last minute."""
    ranks = first(of(view)) if ranks is None else ranks
    if view.replay:
        return not any(c.began <= view.now <= c.ended + 60 * SECOND for c in ranks.values())
    ended = max((counts.ended for counts in ranks.values()), default=view.now)
    return view.stale or view.now - ended >= 2 * OLD_S * SECOND


def kinds(ranks: Mapping[int, LineCounts], width: int) -> Line:
    """`━ loads data 83 %  ━ computes 9.1 %`: as many kinds as fit, the greatest first."""
    line: Line = ()
    for kind, share in kind_shares(ranks).items():
        if share < LEAST_SHARE and line:
            break
        item = (
            Span(f"{FULL} ", INKS.get(kind, "dim")),
            Span(stacks.KINDS.get(kind, kind)),
            Span(f" {numbers.percentage(100 * share)}", "strong"),
        )
        longer = (*line, Span("  "), *item) if line else item
        if line and width_of(longer) > width:
            break
        line = longer
    return line


def rows(ranks: Mapping[int, LineCounts], width: int, most: int) -> list[Line]:
    """The lines with the greatest shares, at most `most`: share, kind, place, and what the line calls."""
    found = shares(ranks)[:most]
    longest = max((len(place(each.line)) for each in found), default=0)
    words, kind = kind_words(found, width - SHARE - longest)
    wide = width >= BARRED and width - SHARE - kind - longest >= BAR + GAP
    return [_row(each, word, kind, bar=wide) for each, word in zip(found, words, strict=True)]


def kind_words(found: Sequence[SharedLine], room: int) -> tuple[list[str], int]:
    """What the thread does at each line, and the cells of that with the gap after it.

    The words are brief where they do not fit into `room`: the place of a line says more than they do.
    """
    words: list[str] = []
    cells = 0
    for brief in (False, True):
        words = [stacks.does(each.line.kind, each.line.inside, brief=brief) for each in found]
        cells = max(map(len, words), default=0) + GAP
        if cells <= room:
            break
    return words, cells


def _row(found: SharedLine, does: str, kind: int, *, bar: bool) -> Line:
    ink = INKS.get(found.line.kind, "dim")
    return (
        Span(numbers.percentage(100 * found.share), "strong", SHARE - GAP, right=True),
        Span("", width=GAP),
        *(barred(found.share, ink) if bar else ()),
        Span(does, ink, kind),
        Span(place(found.line)),
        Span(f" ({stacks.called(found.line.inside)})" if found.line.inside else "", "dim"),
    )


def barred(share: float, ink: str) -> Line:
    """A share as a bar of `BAR` cells, with the gap after it."""
    return *bar(share, BAR, ink), Span("  ")


def place(line: CountedLine) -> str:
    """`data.py:37 augment`."""
    return stacks.place(CodeLine(line.file, line.line, line.function))


def panel(view: View, width: int, height: int, *, hint: bool = False) -> list[Line]:
    """The kinds in a line and the lines of code under them, or why there are none, in at most `height` lines.

    With `hint` and room for it, how a script names phases.
    """
    if view.run is None or height < 1:
        return []
    found = of(view)
    ranks = first(found)
    if not ranks:
        shown: list[Line] = [(Span(part, "dim"),) for part in wrapped(reason(view, found), width)[:height]]
    elif height == 1:
        shown = rows(ranks, width, 1)
    else:
        shown = [kinds(ranks, width), *rows(ranks, width, height - 1)]
    if hint and len(shown) < height:
        shown.append((Span(HINT, "faint"),))
    return shown


def short(view: View, width: int) -> list[Line]:
    """The kinds in a line, and the first of the lines; a line that says why there is none."""
    found = of(view)
    ranks = first(found)
    if not ranks:
        return [(Span(f"where the time goes: {reason(view, found)}", "dim"),)]
    return [kinds(ranks, width), *rows(ranks, width, 1)]


def title(view: View, width: int) -> str:
    """`Where the time goes · rank 0 · 596 samples in 60 s`, without the samples where that does not fit."""
    ranks = first(of(view))
    if not ranks:
        return TITLE
    several = view.run is not None and view.run.world > 1
    head = f"{TITLE} · rank {next(iter(ranks))}" if several else TITLE
    whole = amount(view, ranks)
    texts = (f"{head} · {whole}", f"{head} · {whole.partition(' in ')[2]}", head)
    return next((text for text in texts if len(text) <= width), TITLE)
