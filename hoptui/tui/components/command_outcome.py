"""How a command and what it did are told: the same words and inks in every panel."""

from __future__ import annotations

from hoptui.domain.tuning import Measured
from hoptui.presentation import numbers, sentences, vocabulary
from hoptui.protocol.messages import CommandRecord, Stage
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span, first_fitting, width_of

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
    return Span(
        f"{vocabulary.STAGES[record.stage].symbol} {vocabulary.stage_text(record)}", STAGE_INKS[record.stage]
    )


def stages(record: CommandRecord) -> tuple[Span, Span, Span]:
    """The stage with all that is known of it, as its word, and as its symbol alone."""
    word = vocabulary.STAGES[record.stage]
    whole = stage(record)
    return whole, whole._replace(text=f"{word.symbol} {word.text}"), whole._replace(text=word.symbol)


def course(record: CommandRecord, width: int) -> Line:
    """How far a change is and what it did, in `width` cells: without the iteration, then the interval, where these do not fit."""
    shown = stages(record)
    effects = filter(None, (effect(record), effect(record, brief=True)))
    both = [(one, Span("  "), *told) for told in effects for one in shown]
    return first_fitting([*both, *((one,) for one in shown)], width)


def effect(record: CommandRecord | None, *, shared: bool = True, brief: bool = False) -> Line:
    """What a command did, as `measured_effect` tells it; nothing where it is not measured."""
    return measured_effect(record.measured if record is not None else None, shared=shared, brief=brief)


def measured_effect(measured: Measured | None, *, shared: bool = True, brief: bool = False) -> Line:
    """`▲ +6.1 % ± 1.2`, `no detectable change (± 1.8 %)`, how far the measuring is, or nothing; `brief` without the interval."""
    told = vocabulary.effect_text(measured, shared=shared, brief=brief)
    if measured is None or not told:
        return ()
    gain = measured.gain or 0.0
    if not measured.detectable:
        return (Span(told, "dim"),)
    return (Span(f"▲ {told}", "good"),) if gain > 0 else (Span(f"▼ {told}", "warn"),)


def last_change(view: View, width: int) -> Line:
    """The effect of the run's last change and which that is, its name or the effect alone where room is short; nothing where there
    was none."""
    record = view.last_change()
    most = effect(record, shared=False)
    # The last one is cut: nothing at all would be as if there were no effect.
    told = first_fitting((most, effect(record, brief=True) or most, most), width)
    if record is None:
        return ()
    if record.measured is None or not told:
        # It is from the next iteration on, as far as the run logs a throughput.
        yet = "" if view.exited else " yet"
        return (Span(f"{vocabulary.change(record)}: effect not measured{yet}", "dim"),)
    room = width - width_of(told)
    whole, short = f" since {vocabulary.change(record)}", f" since {numbers.clean(record.knob)}"
    least = " since the last change"
    if record.measured.gain is not None and (
        with_it := sentences.remarks(record.measured)
    ):  # never as if it had been this one alone
        whole, short = f"{whole}, {with_it}", f"{short} and others"
        least = f"{least}s"
    return (*told, Span(next((which for which in (whole, short, least) if len(which) <= room), ""), "dim"))


def unmeasured(view: View, what: str) -> Line:
    """`no change is measured yet`, and of a run that is over that none was; nothing where there is no run."""
    told = f"{what} was measured" if view.exited else f"{what} is measured yet"
    return (Span(told if view.run else "", "faint"),)
