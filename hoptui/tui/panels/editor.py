"""What the knob editor says of a knob, of the value typed, and of the command that was sent."""

from __future__ import annotations

from hoptui.tui.editing import Draft
from hoptui.tui.lines import Line, Span
from hoptui.tui.panels.knobs import bounds
from hoptui.tui.panels.outcomes import effect, stage
from hoptui.tui.view import View
from hoptui.viewer import format as text
from hoptui.viewer import words
from hoptui.wire.knobs import KnobState
from hoptui.wire.messages import CommandRecord

LABEL = 14


def about(view: View, knob: KnobState) -> list[Line]:
    """What the knob is, what it costs and when a change takes effect."""
    spec = knob.spec
    found: list[Line] = [(Span(text.clean(spec.description), "dim"),), ()] if spec.description else []
    unit = f" {text.clean(spec.unit, 16)}" if spec.unit else ""
    by = f", set by {text.clean(knob.by, 40)}" if knob.by else ""
    version = f"   version {knob.version}{by}"
    now = (Span(f"{text.value(knob.value, spec)}{unit}", "strong"), Span(version, "dim"))
    found += [
        _labelled("in effect", *now),
        _labelled("bounds", Span(bounds(spec))),
        _labelled("effect", Span(words.EFFECTS[spec.effect], "warn" if spec.effect == "learning" else "")),
        _labelled("cost", Span(words.cost(knob))),
    ]
    if spec.keeps:
        found.append(_labelled("keeps", Span(text.clean(spec.keeps, 60))))
    if not knob.in_effect:
        found.append(_labelled("note", Span("⚠ the run does not use the value that was set", "warn")))
    return [*found, _labelled("takes effect", Span(when(view)))]


def when(view: View) -> str:
    """`at the next boundary: iteration 1 205, in about 0.8 s`."""
    vital = view.vital
    if vital is None:
        return "at the next boundary"
    at = f"at the next boundary: iteration {text.grouped(vital.step + 1)}"
    if vital.state == "paused":
        return f"{at}, when the run goes on"
    if vital.iteration_s is None or vital.progress_age_s is None:
        return at
    left = max(0.0, vital.iteration_s - vital.progress_age_s)
    return f"{at}, in about {text.seconds(max(left, 0.01))}"


def verdict(draft: Draft, knob: KnobState) -> Line:
    """Whether what is typed can be sent, in one sentence."""
    if draft.error:
        return Span("✕ ", "bad"), Span(draft.error, "bad")
    if draft.value == knob.value:
        return (Span("that is the value in effect", "dim"),)
    return (
        Span("✓ ", "good"),
        Span(f"{text.value(knob.value, draft.spec)} → {text.value(draft.value, draft.spec)}", "strong"),
    )


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
        read = f"in effect: {text.value(record.effective, knob.spec)}, read back from the run"
        lines.append((Span(read, "strong" if same else "warn"),))
        lines.append(effect(record))
    return lines


def _labelled(label: str, *spans: Span) -> Line:
    return Span(label, "dim", LABEL), *spans
