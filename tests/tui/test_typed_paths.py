"""A path is typed letter by letter: on the way there it may be anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from hoptui.tui.screens.charts.screen import recording_file


@pytest.mark.parametrize(
    "typed", ["", "~nobody-is-called-so/x", "7" * 400, "a\0b", "/proc/self/mem/x", "/", "no such file"]
)
def test_what_is_no_file_is_none(typed: str) -> None:
    assert recording_file(typed) is None


def test_a_file_is_found_at_home_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run.hoptui").touch()
    assert (
        recording_file("~/run.hoptui")
        == tmp_path / "run.hoptui"
        == recording_file(str(tmp_path / "run.hoptui"))
    )
