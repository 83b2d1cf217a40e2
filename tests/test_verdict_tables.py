"""Each verdict has an entry in every table: a missing one fails with the table and the verdict."""

from __future__ import annotations

from collections.abc import Collection
from typing import get_args

import pytest

from hoptui.diagnosis.advice import NOT_CURED
from hoptui.domain.diagnosis import Verdict
from hoptui.presentation.sentences.diagnosis import VERDICTS as TEXTS
from hoptui.tuner.search.space import WORTH_TRYING

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
NOTHING_TO_CURE = {"healthy", "unknown"}
TEXT = "VERDICTS in hoptui/presentation/sentences/diagnosis.py"
TABLES: list[tuple[str, Collection[str], Collection[str]]] = [
    (f"{TEXT} (what it means, in words)", {v for v, text in TEXTS.items() if text.meaning}, ()),
    (
        f"{TEXT} (`without_a_knob`: what helps where no knob does)",
        {v for v, text in TEXTS.items() if text.without_a_knob},
        NOT_CURED,
    ),
    (
        "WORTH_TRYING in hoptui/tuner/search/space.py (which knobs the tuner tries first)",
        WORTH_TRYING,
        NOTHING_TO_CURE,
    ),
]
IDS = ["meaning", "advice", "tuner"]


@pytest.mark.parametrize(("table", "entries", "exempt"), TABLES, ids=IDS)
@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_verdict_is_in_every_table(
    verdict: Verdict, table: str, entries: Collection[str], exempt: Collection[str]
) -> None:
    assert verdict in entries or verdict in exempt, f"the verdict {verdict!r} has no entry in {table}"


@pytest.mark.parametrize(("table", "entries", "exempt"), TABLES, ids=IDS)
def test_a_table_has_only_verdicts(table: str, entries: Collection[str], exempt: Collection[str]) -> None:
    unknown = {*entries, *exempt} - set(VERDICTS)
    assert unknown == set(), f"{unknown} in {table} is no verdict of hoptui/domain/diagnosis.py"


def test_nothing_is_advised_twice() -> None:
    without = {verdict for verdict, text in TEXTS.items() if text.without_a_knob}
    assert without.isdisjoint(NOT_CURED), "the advice of these verdicts is never given"
