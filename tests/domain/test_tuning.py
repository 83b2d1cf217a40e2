"""Diagnoses on the wire: a verdict of a newer hoptui, and fields of an older one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import structs

from hoptui.domain.diagnosis import VERDICTS, Diagnosis
from hoptui.domain.facts import fact


def decoded(**fields: Any) -> Diagnosis:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=Diagnosis)


@pytest.mark.parametrize("verdict", sorted(VERDICTS))
def test_a_known_verdict_stays(verdict: str) -> None:
    facts = (fact("gpu.sm_active", share=0.05),)
    found = Diagnosis(verdict=verdict, confidence=0.9, facts=facts, t=3)
    assert decoded(**structs.asdict(found) | {"facts": [structs.asdict(facts[0])]}) == found
    assert (found.verdict, found.facts) == (verdict, facts)


def test_the_verdict_of_a_newer_hoptui_is_unknown_and_its_name_is_kept() -> None:
    known = {"code": "gpu.moon_phase", "fields": {"share": 0.5}}
    found = decoded(verdict="moon-bound", confidence=0.9, facts=[known], t=3)
    assert (found.verdict, found.confidence, found.t) == ("unknown", 0.0, 3)
    assert found.facts == (
        fact("diagnosis.newer_verdict", verdict="moon-bound"),
        fact("gpu.moon_phase", share=0.5),
    )
    assert structs.replace(found, stale=True).facts == found.facts, "named once"


def test_the_words_of_an_older_hoptui_are_left_out() -> None:
    advice = [{"knob": "grad_accum", "direction": "down", "value": 2, "text": "grad_accum 4 → 2"}]
    found = decoded(verdict="launch-bound", confidence=0.9, evidence=["SM active 5.6 %"], advice=advice)
    assert (found.verdict, found.confidence, found.facts) == ("launch-bound", 0.9, ())
    (only,) = found.advice
    assert (only.knob, only.direction, only.value, only.fact) == ("grad_accum", "down", 2, None)
