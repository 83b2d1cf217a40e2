"""How a command and what it did are told: the same words and inks in every panel."""

from __future__ import annotations

from hoptui.tui.lines import Line, Span
from hoptui.viewer import format as text
from hoptui.viewer import words
from hoptui.wire.messages import CommandRecord, Stage

STAGE_INKS: dict[Stage, str] = {
    "sent": "2",
    "accepted": "2",
    "scheduled": "2",
    "applied": "good",
    "rejected": "bad",
    "superseded": "warn",
    "expired": "warn",
    "failed": "bad",
    "reverted": "bad",
    "voided": "warn",
}


def stage(record: CommandRecord) -> Span:
    """`◷ scheduled for 1 205`, in the ink of the stage."""
    return Span(f"{words.STAGES[record.stage].symbol} {words.stage_text(record)}", STAGE_INKS[record.stage])


def effect(record: CommandRecord | None) -> Line:
    """`▲ +6.1 % ± 1.2`, `no detectable change (± 1.8 %)`, how far the measuring is, or nothing."""
    if record is None or record.measured is None:
        return ()
    told = words.effect_text(record.measured)
    if not told:
        return ()
    gain = record.measured.gain or 0.0
    if not record.measured.detectable:
        return (Span(told, "dim"),)
    return (Span(f"▲ {told}", "good"),) if gain > 0 else (Span(f"▼ {told}", "warn"),)


def last_change(record: CommandRecord | None, width: int) -> Line:
    """The effect and which change it is of, its name alone where room is short; nothing where there is none."""
    told = effect(record)
    if record is None or not told:
        return ()
    room = width - len(told[0].text)
    if room < 0:
        return ()
    which = (f" since {words.change(record)}", f" since {text.clean(record.knob)}")
    return (*told, Span(next((w for w in which if len(w) <= room), ""), "dim"))
