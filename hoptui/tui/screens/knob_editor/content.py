"""What the knob editor and the list of staged changes show: the typed value and its consequences. Pure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence

from hoptui.domain.knobs import KnobError, KnobSpec, KnobState, KnobValue, check_value, parse_value, relations
from hoptui.model.command_history import as_typed
from hoptui.presentation import numbers, vocabulary
from hoptui.protocol.authors import author
from hoptui.protocol.messages import FINAL, CommandRecord
from hoptui.tui.components import knobs
from hoptui.tui.components.events import course, effect, stage
from hoptui.tui.components.knobs import SHORT_COSTS, bounds
from hoptui.tui.run_control import Seen, Staged
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span, width_of

ROUND = (1, 2, 3, 5)
"""The usual steps within a power of ten on a log scale: 1e-4, 2e-4, 3e-4, 5e-4, 1e-3."""
MOST_POWER = 308  # of ten that a float holds
LEAP = 8
"""Sizes go three doublings at once, which is about the power of ten of a real number."""


class KnobDraft:
    """A value that is being entered.

    `typed` is the text; `value` is its meaning, and `error` explains in one sentence why there is none.
    `seen` is what was on screen when the user decided: the command expects its version and is refused if
    another user was faster.
    """

    def __init__(self, knob: KnobState, epoch: int) -> None:
        self.spec = knob.spec
        self.seen = Seen.of(knob, epoch)
        self.typed = ""
        self.value: KnobValue | None = None
        self.error = ""
        self.type(as_typed(knob.value))

    def type(self, typed: str) -> None:
        """Take what is typed; bad text keeps the draft and sets `error`."""
        self.typed = typed
        try:
            self.value, self.error = parse_value(self.spec, typed), ""
        except KnobError as error:
            said = numbers.clean(str(error)) if typed.strip() else f"{self.spec.name} needs a value"
            self.value, self.error = None, said

    def step(self, direction: int, current: KnobValue, *, leap: bool = False) -> None:
        """Go to the next value of the scale, up (1) or down (-1), from the draft or, without a value, from
        `current`.
        """
        start = current if self.value is None else self.value
        self.type(as_typed(stepped(self.spec, start, direction, leap=leap)))


def stepped(spec: KnobSpec, value: KnobValue, direction: int, *, leap: bool = False) -> KnobValue:
    """The next value on the knob's scale; a `leap` goes about ten times as far.

    It is the neighbour among choices; double or half for whole numbers on log and pow2 scales; the next of
    `ROUND` for real numbers on a log scale, or the same in the next power of ten as a leap; else a round
    step. It never leaves the bounds. A value without a neighbour (a text, the last choice) stays.
    """
    if spec.choices:
        last = len(spec.choices) - 1
        at = spec.choices.index(value) if value in spec.choices else 0
        return spec.choices[max(0, min(last, at + direction * (last if leap else 1)))]
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return spec.default
    if spec.scale == "pow2" or (spec.scale == "log" and spec.kind == "int"):
        moved = _doubled(value, LEAP if leap else 2, direction, spec)
    elif spec.scale == "log":
        moved = _rounded(value, direction, spec, leap=leap)
    else:
        step = linear_step(spec, value) * (10 if leap else 1)
        moved = (
            math.floor(value / step + 1e-9) + 1 if direction > 0 else math.ceil(value / step - 1e-9) - 1
        ) * step
    return _within(spec, moved, value)


def linear_step(spec: KnobSpec, value: float) -> float:
    """A tenth of the value's power of ten, or of the range's if it is 0; at least 1 for whole numbers."""
    size = abs(value)
    if not size and spec.min is not None and spec.max is not None and math.isfinite(spec.max - spec.min):
        size = float(spec.max - spec.min) / 10
    step = 10.0 ** max(math.floor(math.log10(size)) - 1, -MOST_POWER) if size else 0.1
    return max(1.0, step) if spec.kind == "int" else step


def _doubled(value: float, factor: int, direction: int, spec: KnobSpec) -> float:
    if value <= 0:
        return value if direction < 0 else max(1.0, float(spec.min or 0))
    moved = value * factor if direction > 0 else value / factor
    if spec.scale == "pow2":  # a bound need not be one itself
        bound = math.inf if spec.max is None else spec.max
        most = 2.0 ** math.floor(math.log2(bound)) if math.isfinite(bound) else bound
        least = 2.0 ** math.ceil(math.log2(max(1.0, float(spec.min or 1))))
        moved = min(max(moved, least), most)
    return moved


def _rounded(value: float, direction: int, spec: KnobSpec, *, leap: bool) -> float:
    if value <= 0:  # a log scale has no next value after zero
        floor = spec.min if spec.min is not None and spec.min > 0 else spec.default
        return float(floor) if direction > 0 and isinstance(floor, int | float) else value
    if leap:
        return value * 10.0**direction
    power = math.floor(math.log10(value))
    grid = [digit * 10.0**p for p in (power - 1, power, min(power + 1, MOST_POWER)) for digit in ROUND]
    if direction > 0:
        return min((g for g in grid if g > value * (1 + 1e-9)), default=value)
    return max((g for g in grid if g < value * (1 - 1e-9)), default=value)


def _within(spec: KnobSpec, moved: float, value: KnobValue) -> KnobValue:
    low = -math.inf if spec.min is None else spec.min
    high = math.inf if spec.max is None else spec.max
    moved = min(max(moved, low), high)
    found: KnobValue = round(moved) if spec.kind == "int" else float(f"{moved:.12g}")
    try:
        return check_value(spec, found)
    except KnobError:
        return value


LABEL = 14


def about(view: View, knob: KnobState, wanted: KnobValue | None, width: int, most: int) -> list[Line]:
    """The knob, what `wanted` implies and costs, and when it takes effect, in up to `most` lines of `width`
    cells.

    The number of lines does not depend on the input. If room is short, the description goes first, then the
    last lines.
    """
    spec = knob.spec
    told = textwrap.wrap(numbers.clean(spec.description), width)
    described: list[Line] = [*((Span(line, "dim"),) for line in told), *([()] if told else [])]
    unit = f" {numbers.clean(spec.unit, 16)}" if spec.unit else ""
    by = f", set by {numbers.clean(knob.by, 40)}" if knob.by else ""
    version = f"   version {knob.version}{by}"
    now = (Span(f"{numbers.value(knob.value, spec)}{unit}", "strong"), Span(version, "dim"))
    found: list[Line] = [
        _labelled("in effect", *now),
        _labelled("bounds", Span(bounds(spec))),
        _labelled(
            "effect", Span(vocabulary.EFFECTS[spec.effect], "warn" if spec.effect == "learning" else "")
        ),
        _labelled("cost", Span(vocabulary.cost(knob), "warn" if spec.cost in ("rebuild", "restart") else "")),
    ]
    declared = knobs.declared(view, knob, wanted, width - LABEL)
    found += [_labelled(label, Span(told)) for label, told in declared]
    if spec.cost != "free":
        found.append(_labelled("memory", *knobs.memory(view, knob, wanted)))
    takes = wanted is not None and wanted != knob.value
    found.append(_labelled("takes effect", Span(when(view, spec))) if takes else ())
    note = "" if knob.in_effect else "⚠ the run does not use the value that was set"
    found.append(_labelled("note", Span(note, "warn")) if note else ())
    return [*described, *found] if len(described) + len(found) <= most else found[:most]


def overtaken(knob: KnobState) -> str:
    """One sentence: another user has changed the knob while it was edited."""
    by = f" by {numbers.clean(knob.by, 40)}" if knob.by else ""
    return f"changed{by} meanwhile: {numbers.value(knob.value, knob.spec)} is in effect"


def refused(view: View, knob: KnobState, wanted: KnobValue | None, *, again: bool) -> list[Line]:
    """That the knob has another value than the person saw, and how to set `wanted` over it.

    `again`: the value was refused once because of it, so that the next try is sent.
    """
    value = "yours" if wanted is None else numbers.value(wanted, knob.spec)
    how = view.hint("editor.send", f"{'again' if again else 'twice'} sends {value} over it")
    said = f"not sent: {overtaken(knob)}" if again else overtaken(knob)
    return [(Span(f"⚠ {said}", "warn"),), (Span(how, "dim"),)]


def waiting(record: CommandRecord, knob: KnobState) -> str:
    """Another change of the knob that is on its way: `16 of bo (pid 5) is scheduled for 1 205`."""
    value = numbers.value(record.wanted, knob.spec)
    return f"{value} of {author(record.origin)} is {vocabulary.stage_text(record)}"


def when(view: View, spec: KnobSpec) -> str:
    """`after iteration 1 204, in about 4 s`.

    A command reaches the run a little after this is read, and some iterations are faster than that. So the
    text names the iteration that has ended, and gives no figure below a second.
    """
    vital = view.vital
    if vital is None:
        return "after this iteration"
    at = f"after iteration {numbers.grouped(vital.step)}"
    if vital.state == "paused":
        return f"{at}, when the run goes on"
    if spec.cost == "restart":
        return f"{at}, once the run is back"
    if vital.iteration_s is None or vital.progress_age_s is None:
        return at
    left = vital.iteration_s - vital.progress_age_s
    if left <= 0:  # late: when it comes is not known
        return at
    return f"{at}, within a second" if left < 1 else f"{at}, in about {numbers.seconds(left)}"


def verdict(draft: KnobDraft, knob: KnobState, width: int) -> list[Line]:
    """Whether what is typed can be sent, in one sentence; in `width` cells a line, up to two lines."""
    if draft.error:
        first, *more = textwrap.wrap(draft.error, max(8, width - 2), max_lines=2, placeholder=" …")
        return [(Span("✕ ", "bad"), Span(first, "bad")), *((Span(f"  {line}", "bad"),) for line in more)]
    if draft.value == knob.value:
        return [(Span("that is the value in effect", "dim"),)]
    change = f"{numbers.value(knob.value, draft.spec)} → {numbers.value(draft.value, draft.spec)}"
    return [(Span("✓ ", "good"), Span(change, "strong"))]


def trail(record: CommandRecord | None, knob: KnobState) -> list[Line]:
    """The life of the command so far: sent, accepted, scheduled, applied, and what it did."""
    if record is None:
        return []
    done: list[Span] = [Span("→ sent", "dim")]
    if record.stage in ("scheduled", "applied"):
        done.append(Span("   ✓ accepted", "dim"))
    if record.stage != "sent":
        done += [Span("   "), stage(record)]
    lines: list[Line] = [tuple(done)]
    if record.stage == "applied":
        same = record.effective == record.wanted
        read = f"in effect: {numbers.value(record.effective, knob.spec)}, read back from the run"
        lines.append((Span(read, "strong" if same else "warn"),))
        lines.append(effect(record))
    return lines


def _labelled(label: str, *spans: Span) -> Line:
    return Span(label, "dim", LABEL), *spans


def staged_rows(
    view: View, staged: Sequence[Staged], sent: Mapping[str, str], width: int, cursor: int
) -> list[Line]:
    """One line per change: from, to, and its cost, a conflict, or the outcome of its command (`sent`: ids by
    knob).
    """
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


def staged_summary(records: Sequence[CommandRecord], count: int) -> Line:
    """What became of all that were sent: together or not, and what a failure of one means for the others."""
    ended = [record for record in records if record.stage in FINAL]
    if len(ended) < count:
        return (
            Span(
                f"{count - len(ended)} of {count} on their way, each after the iteration in which it arrives",
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
        return (Span(f"● all {count} applied together, at iteration {numbers.grouped(steps[0])}", "good"),)
    return (
        Span(f"● all {count} applied, at iterations {' and '.join(map(numbers.grouped, steps))}", "good"),
    )


def staged_advice(view: View, staged: Sequence[Staged]) -> Line:
    """Advice before sending: how the changes are applied, or that two of them affect the same invariant."""
    keeps = [one.text for change in staged for one in relations(change.spec.keeps) if not one.name]
    twice = next((numbers.clean(one, 60) for one in keeps if keeps.count(one) > 1), "")
    if twice:
        return (Span(f"⚠ {twice} is kept: the last of the two decides what the other becomes", "warn"),)
    paused = view.vital is not None and view.vital.state == "paused"
    when = "when the run goes on" if paused else "after this iteration"
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
