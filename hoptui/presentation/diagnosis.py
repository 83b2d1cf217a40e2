"""Diagnoses in words: the meaning of each verdict, and its confidence."""

from __future__ import annotations

from hoptui.domain.diagnosis import Advice, Diagnosis
from hoptui.domain.facts import Fact
from hoptui.presentation import numbers, sentences
from hoptui.presentation.sentences.diagnosis import VERDICTS

SURE = 0.7
"""A verdict with less confidence is shown with `perhaps`."""


def name(diagnosis: Diagnosis) -> str:
    """Return `launch-bound`, `perhaps launch-bound`, `nothing stands out`.

    It is `was launch-bound` after a change of a knob whose effect is not known yet.
    """
    if diagnosis.verdict == "healthy":
        meaning = VERDICTS["healthy"].meaning
        return meaning if not diagnosis.stale else f"until the last change {meaning}"
    if diagnosis.stale and diagnosis.verdict != "unknown":
        return f"was {diagnosis.verdict}"
    doubtful = 0 < diagnosis.confidence < SURE
    return f"perhaps {diagnosis.verdict}" if doubtful else diagnosis.verdict


def sentence(diagnosis: Diagnosis) -> str:
    """Return `launch-bound: kernels are too small …, 95 % sure`, for plain text."""
    if diagnosis.verdict == "unknown":
        known = evidence(diagnosis)
        return f"not known: {known[0]}" if known else "not known"
    return f"{diagnosis.verdict}: {VERDICTS[diagnosis.verdict].meaning}{_sure(diagnosis)}"


def line(diagnosis: Diagnosis, *, advises: bool = True) -> str:
    """Return the verdict, its evidence and advice on one line.

    Example: `launch-bound, 95 % sure: SM active 5.6 %; busy 32 %; try grad_accum 4 → 2`.
    """
    advice = tries(diagnosis) if advises else []
    figures = "; ".join((*evidence(diagnosis), *advice))
    return ": ".join(filter(None, (f"{diagnosis.verdict}{_sure(diagnosis)}", figures)))


def evidence(diagnosis: Diagnosis) -> list[str]:
    """Return the facts as sentences, the strongest first: `SM active 5.6 %`, `busy 32 %`."""
    return [sentences.sentence(each) for each in diagnosis.facts]


def evidence_with_line(diagnosis: Diagnosis) -> list[list[str]]:
    """Return evidence that names the line of the script, in ever fewer words. Empty if none does.

    The last is `data.py:37 augment 83 %`.
    """
    figures = evidence(diagnosis)
    at = next((i for i, each in enumerate(diagnosis.facts) if each.code == "line.hot"), None)
    if at is None:
        return []
    brief = sentences.sentence(Fact("line.brief", diagnosis.facts[at].fields))
    counts = range(len(figures), at, -1)
    return [*(figures[:count] for count in counts), [*figures[:at], brief], [brief]]


def tries(diagnosis: Diagnosis) -> list[str]:
    """`try grad_accum 4 → 2 (may compile anew)`: the advice as sentences, the best first."""
    texts = ((each, advice_text(each)) for each in diagnosis.advice)
    return [f"{'try ' if each.knob else ''}{text}" for each, text in texts if text]


def advice_text(advice: Advice, *, brief: bool = False) -> str:
    """Return `grad_accum 4 → 2 (may compile anew)`, without the cost if `brief`.

    If no knob helps, it is what else would help.
    """
    what = advice.fact
    if what is None:  # from an older recording or daemon
        return numbers.clean(f"{advice.knob} → {numbers.value(advice.value)}") if advice.knob else ""
    return sentences.sentence(Fact("advice.change", what.fields) if brief and advice.knob else what)


def _sure(diagnosis: Diagnosis) -> str:
    """Return `, 95 % sure`, and a note if a knob has been changed since."""
    sure = f", {numbers.percent(diagnosis.confidence, decimals=0)} sure" if diagnosis.confidence else ""
    return f"{sure}, before the last change of a knob" if diagnosis.stale else sure
