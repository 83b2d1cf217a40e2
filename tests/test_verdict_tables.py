"""Each verdict has an entry in every table: a missing one fails with the table and the verdict."""

from __future__ import annotations

from collections.abc import Collection
from typing import get_args

import pytest

from hoptui.diagnosis.advice import WITHOUT_A_KNOB
from hoptui.domain.tuning import Verdict
from hoptui.presentation.diagnosis import MEANING
from hoptui.tuner.search.space import WORTH_TRYING

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
NOTHING_TO_CURE = {"healthy", "unknown"}
TABLES: list[tuple[str, Collection[str], set[str]]] = [
    ("MEANING in hoptui/presentation/diagnosis.py (what it means, in words)", MEANING, set()),
    (
        "WITHOUT_A_KNOB in hoptui/diagnosis/advice.py (what helps where no knob does)",
        WITHOUT_A_KNOB,
        NOTHING_TO_CURE | {"memory-unused"},  # memory is unused only where a knob could use it
    ),
    (
        "WORTH_TRYING in hoptui/tuner/search/space.py (which knobs the tuner tries first)",
        WORTH_TRYING,
        NOTHING_TO_CURE,
    ),
]


@pytest.mark.parametrize(("table", "entries", "exempt"), TABLES, ids=["meaning", "advice", "tuner"])
@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_verdict_is_in_every_table(
    verdict: Verdict, table: str, entries: Collection[str], exempt: set[str]
) -> None:
    assert verdict in entries or verdict in exempt, f"the verdict {verdict!r} has no entry in {table}"


@pytest.mark.parametrize(("table", "entries", "exempt"), TABLES, ids=["meaning", "advice", "tuner"])
def test_a_table_has_only_verdicts(table: str, entries: Collection[str], exempt: set[str]) -> None:
    unknown = (set(entries) | exempt) - set(VERDICTS)
    assert unknown == set(), f"{unknown} in {table} is no verdict of hoptui/domain/tuning.py"
