"""How old a number on screen can be."""

from __future__ import annotations

import pytest

from hoptui.client.subscriptions import HUNGRY
from hoptui.domain import pacing
from hoptui.domain.pacing import DEFAULT


def test_a_number_of_a_run_is_at_most_a_second_and_a_quarter_old() -> None:
    parts = (
        pacing.ROWS_EVERY_S,
        DEFAULT.heard_s,
        pacing.GATHER_S["run"],
        HUNGRY.frame_s,
        pacing.NUMBERS_S,
    )
    assert sum(parts) == pytest.approx(1.25)
    assert pacing.__doc__ is not None
    assert f"{sum(parts):.2f} s" in pacing.__doc__
