"""The range of versions that an adapter supports."""

from __future__ import annotations

import pytest

from hoptui.integrations.versions import Supported, older

RANGE = Supported("numpy", "4.46", "5.23")


@pytest.mark.parametrize("version", ["4.46", "4.46.0", "4.57.1", "5.0.0rc1", "5.23.0", "5.23.9"])
def test_a_version_within_the_range_has_no_problem(version: str) -> None:
    assert RANGE.problem(version) == ""


@pytest.mark.parametrize("version", ["4.45.9", "3", "5.24.0", "6.0"])
def test_a_version_outside_of_the_range_is_named(version: str) -> None:
    assert f"numpy {version} " in RANGE.problem(version)


def test_a_package_that_is_missing_is_named() -> None:
    assert "no-such-package" in Supported("no-such-package", "1", "2").problem()


def test_the_installed_version_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    Supported("numpy", "0", "999").warn()
    assert not caplog.records
    Supported("numpy", "998", "999").warn()
    assert len(caplog.records) == 1


def test_an_installed_version_is_compared_by_its_numbers() -> None:
    assert older("numpy", "998.0")
    assert not older("numpy", "1.9")
