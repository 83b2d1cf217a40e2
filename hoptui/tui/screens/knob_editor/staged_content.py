"""What the list of staged changes says: each change, what became of it once it was sent, and the fate of them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hoptui.domain.knobs import relations
from hoptui.presentation import numbers
from hoptui.protocol.messages import FINAL, CommandRecord
from hoptui.tui.components.command_outcome import course
from hoptui.tui.components.knobs import SHORT_COSTS
from hoptui.tui.screens.knob_editor.content import overtaken
from hoptui.tui.snapshot import View
from hoptui.tui.staged_changes import Staged
from hoptui.tui.styled_text import Line, Span, width_of


def rows(
    view: View, staged: Sequence[Staged], sent: Mapping[str, str], width: int, cursor: int
) -> list[Line]:
    """One line a change: from, to, and its price, or that it was overtaken, or what became of its command (`sent`: ids by knob)."""
    names = min(max((len(one.spec.name) for one in staged), default=0) + 1, 20)
    changes = [
        f"{numbers.value(one.before, one.spec)} → {numbers.value(one.value, one.spec)}" for one in staged
    ]
    wide = min(max((len(change) for change in changes), default=0), 30)
    found: list[Line] = []
    for index, (one, change) in enumerate(zip(staged, changes, strict=True)):
        start = (
            Span("› " if index == cursor else "  ", "key"),
            Span(numbers.clean(one.spec.name, 40), "strong" if index == cursor else "", names),
            Span(change, "strong", wide),
            Span("   "),
        )
        found.append((*start, *_fate(view, one, sent, width - width_of(start))))
    return found


def summary(records: Sequence[CommandRecord], count: int) -> Line:
    """What became of all that were sent: together or not, and what a failure of one means for the others."""
    ended = [record for record in records if record.stage in FINAL]
    if len(ended) < count:
        return (
            Span(
                f"{count - len(ended)} of {count} on their way, each at the next boundary after it arrives",
                "2",
            ),
        )
    applied = [record for record in ended if record.stage == "applied"]
    lost = count - len(applied)
    steps = sorted({record.step for record in applied if record.step is not None})
    if lost:
        rest = f"the other {len(applied)} took effect and stay" if applied else "nothing was changed"
        return (Span(f"✕ {lost} of {count} did not take effect; {rest}", "bad"),)
    if len(steps) == 1:
        return (
            Span(f"● all {count} applied at one boundary, iteration {numbers.grouped(steps[0])}", "good"),
        )
    return (
        Span(f"● all {count} applied, at iterations {' and '.join(map(numbers.grouped, steps))}", "good"),
    )


def advice(view: View, staged: Sequence[Staged]) -> Line:
    """What a person should know before they send these: how it goes, or that two of them pull at one invariant."""
    keeps = [one.text for change in staged for one in relations(change.spec.keeps) if not one.name]
    twice = next((numbers.clean(one, 60) for one in keeps if keeps.count(one) > 1), "")
    if twice:
        return (Span(f"⚠ {twice} is kept: the last of the two decides what the other becomes", "warn"),)
    paused = view.vital is not None and view.vital.state == "paused"
    when = "when the run goes on" if paused else "at the next boundary"
    return (Span(f"sent one after the other, {when}; each can fail alone", "dim"),)


def _fate(view: View, one: Staged, sent: Mapping[str, str], width: int) -> Line:
    record = view.command(sent.get(one.spec.name, ""))
    if record is not None:
        return course(record, width)
    theirs = one.overtaken(view.run)
    if theirs is not None:
        return (Span(f"⚠ {overtaken(theirs)}", "warn"),)
    return Span(one.spec.effect, "warn" if one.spec.effect == "learning" else "dim", 10), Span(
        SHORT_COSTS[one.spec.cost], "dim"
    )
