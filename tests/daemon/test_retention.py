"""The limits of history as the environment gives them."""

from __future__ import annotations

import logging

import pytest

from hoptui.daemon.retention import Limits, limits


def test_the_usual() -> None:
    assert limits({}) == Limits(10 * 10**9, 30 * 86400.0, 10**9)


def test_what_is_asked_for() -> None:
    asked = {"HOPTUI_KEEP_GB": "0.5", "HOPTUI_KEEP_DAYS": "7", "HOPTUI_RUN_GB": " 2 "}
    assert limits(asked) == Limits(5 * 10**8, 7 * 86400.0, 2 * 10**9)


@pytest.mark.parametrize("raw", ["many", "-1", "0", "nan", "inf"])
def test_nonsense_is_logged_and_not_used(raw: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="hoptui.daemon"):
        assert limits({"HOPTUI_RUN_GB": raw}) == Limits()
    assert "HOPTUI_RUN_GB" in caplog.text
    assert repr(raw) in caplog.text
