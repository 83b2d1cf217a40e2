"""What the knob editor says of a knob, of the value typed, and of the command that was sent."""

from __future__ import annotations

import textwrap

from hoptui.domain.knobs import KnobSpec, KnobState, KnobValue
from hoptui.presentation import numbers, vocabulary
from hoptui.protocol.authors import author
from hoptui.protocol.messages import CommandRecord
from hoptui.tui.components import consequences
from hoptui.tui.components.command_outcome import effect, stage
from hoptui.tui.components.knobs import bounds
from hoptui.tui.screens.knob_editor.draft import KnobDraft
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span

LABEL = 14


def about(view: View, knob: KnobState, wanted: KnobValue | None, width: int, most: int) -> list[Line]:
    """What the knob is, what `wanted` would imply and cost, and when it takes effect, in up to `most` lines of `width` cells.

    As many whatever is typed. Where there is no room the description goes first, then what stands last.
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
    declared = consequences.declared(view, knob, wanted, width - LABEL)
    found += [_labelled(label, Span(told)) for label, told in declared]
    if spec.cost != "free":
        found.append(_labelled("memory", *consequences.memory(view, knob, wanted)))
    takes = wanted is not None and wanted != knob.value
    found.append(_labelled("takes effect", Span(when(view, spec))) if takes else ())
    note = "" if knob.in_effect else "⚠ the run does not use the value that was set"
    found.append(_labelled("note", Span(note, "warn")) if note else ())
    return [*described, *found] if len(described) + len(found) <= most else found[:most]


def overtaken(knob: KnobState) -> str:
    """That somebody else has changed the knob while it was edited, in one sentence."""
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

    What is sent reaches the run a little later than this is read, and some iterations are faster than that: so the one
    that has ended is named, and less than a second is no figure.
    """
    vital = view.vital
    if vital is None:
        return "at the next boundary"
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
