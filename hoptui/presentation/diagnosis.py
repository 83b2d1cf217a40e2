"""Diagnoses in words: what each verdict means, and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping

from hoptui.domain.tuning import Diagnosis, Verdict
from hoptui.presentation import numbers

SURE = 0.7
"""A verdict with less confidence is told with a `perhaps`."""

MEANING: Mapping[Verdict, str] = {
    "launch-bound": "kernels are too small, or launched too slowly, to fill the GPU",
    "data-bound": "training waits for its input",
    "env-bound": "training waits for environments that are stepped on the CPU",
    "memory-bandwidth-bound": "the GPU's memory bus is near its limit",
    "compute-bound": "the GPU's arithmetic units are near their limit",
    "power-limited": "the clocks are held down by the board's power limit",
    "heat-limited": "the clocks are held down because the GPU is too hot",
    "communication-bound": "ranks wait for each other",
    "memory-unused": "work is cut smaller than memory asks for",
    "healthy": "nothing stands out",
    "unknown": "too little is known",
}


def name(diagnosis: Diagnosis) -> str:
    """`launch-bound`, `perhaps launch-bound`, `nothing stands out`; `was launch-bound` until a change of a
    knob is seen through."""
    if diagnosis.verdict == "healthy":
        return MEANING["healthy"] if not diagnosis.stale else f"until the last change {MEANING['healthy']}"
    if diagnosis.stale and diagnosis.verdict != "unknown":
        return f"was {diagnosis.verdict}"
    doubtful = 0 < diagnosis.confidence < SURE
    return f"perhaps {diagnosis.verdict}" if doubtful else diagnosis.verdict


def sentence(diagnosis: Diagnosis) -> str:
    """`launch-bound: kernels are too small …, 95 % sure`, for plain text."""
    if diagnosis.verdict == "unknown":
        return f"not known: {diagnosis.evidence[0]}" if diagnosis.evidence else "not known"
    return f"{diagnosis.verdict}: {MEANING[diagnosis.verdict]}{_sure(diagnosis)}"


def line(diagnosis: Diagnosis, *, advises: bool = True) -> str:
    """`launch-bound, 95 % sure: SM active 5.6 %; busy 32 %; try grad_accum 4 → 2`: what is found, its
    evidence, what might help."""
    advice = [f"{'try ' if each.knob else ''}{each.text}" for each in diagnosis.advice if advises]
    told = "; ".join((*diagnosis.evidence, *advice))
    return ": ".join(filter(None, (f"{diagnosis.verdict}{_sure(diagnosis)}", told)))


def _sure(diagnosis: Diagnosis) -> str:
    """`, 95 % sure`; and that it was so before, where a knob has been changed since."""
    sure = f", {numbers.percent(diagnosis.confidence, decimals=0)} sure" if diagnosis.confidence else ""
    return f"{sure}, before the last change of a knob" if diagnosis.stale else sure
