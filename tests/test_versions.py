"""The two distributions are released together."""

from __future__ import annotations

import hoptui
import hoptui_trainer


def test_both_distributions_have_the_same_version() -> None:
    assert hoptui.__version__ == hoptui_trainer.__version__
