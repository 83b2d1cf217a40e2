"""The limits of history as the environment gives them."""

from __future__ import annotations

import pytest

from hoptui.daemon.recordings import RetentionLimits, limits, refused


def test_the_usual() -> None:
    assert limits({}) == RetentionLimits(10 * 10**9, 30 * 86400.0, 10**9)


def test_what_is_asked_for() -> None:
    asked = {"HOPTUI_KEEP_GB": "0.5", "HOPTUI_KEEP_DAYS": "7", "HOPTUI_RUN_GB": " 2 "}
    assert limits(asked) == RetentionLimits(5 * 10**8, 7 * 86400.0, 2 * 10**9)


@pytest.mark.parametrize("raw", ["many", "-1", "0", "nan", "inf"])
def test_nonsense_is_told_and_not_used(raw: str) -> None:
    assert limits({"HOPTUI_RUN_GB": raw}) == RetentionLimits()
    assert refused({"HOPTUI_RUN_GB": raw}) == [f"HOPTUI_RUN_GB={raw!r} is no positive number: 1 is used"]


def test_sense_is_not_complained_of() -> None:
    assert refused({"HOPTUI_RUN_GB": "2", "HOPTUI_KEEP_DAYS": ""}) == []
