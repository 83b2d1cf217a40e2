"""What the options, the environment and config.toml say reaches the dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from hoptui.cli import launcher
from hoptui.client import client
from hoptui.settings import Config
from hoptui.tui import app, replay_app
from tests.cli.conftest import Hoptui


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Config]]:
    """What the dashboard was opened with; there is a terminal, and no client sets out."""
    calls: list[tuple[Any, Config]] = []

    def run(asked: Any, *, config: Config, **_: Any) -> int:
        calls.append((asked, config))
        return 0

    monkeypatch.setattr(launcher, "interactive", lambda: True)
    monkeypatch.setattr(client, "Client", MagicMock())
    monkeypatch.setattr(app, "run", run)
    monkeypatch.setattr(replay_app, "replay", run)
    return calls


def test_options_reach_the_overview(hoptui: Hoptui, opened: list[tuple[Any, Config]]) -> None:
    assert hoptui("--theme", "light", "--ascii", "--no-mouse", "--read-only").code == 0
    ((_, found),) = opened
    assert (found.theme, found.ascii, found.mouse, found.read_only) == ("light", True, False, True)
    assert found.values["read_only"].origin == "--read-only"


def test_without_options_the_environment_and_the_file_hold(
    hoptui: Hoptui, opened: list[tuple[Any, Config]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "hoptui").mkdir()
    (tmp_path / "hoptui/config.toml").write_text('theme = "ansi"\nmouse = false\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOPTUI_READ_ONLY", "yes")
    for name in ("NO_COLOR", "HOPTUI_THEME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert hoptui("--mouse").code == 0
    ((_, found),) = opened
    assert (found.theme, found.mouse, found.read_only) == ("ansi", True, True)


def test_a_replay_takes_them_too(hoptui: Hoptui, opened: list[tuple[Any, Config]], tmp_path: Path) -> None:
    path = tmp_path / "x.hoptui"
    path.touch()
    assert hoptui("replay", str(path), "--theme", "none").code == 0
    assert hoptui("attach", str(path), "--theme", "none").code == 0
    assert [found.theme for _, found in opened] == ["none", "none"]


def test_a_theme_that_there_is_not_is_bad_usage(hoptui: Hoptui) -> None:
    ended = hoptui("--theme", "blue")
    assert ended.code == 2
    assert ended.err.startswith("hoptui: ")
    assert "blue" in ended.err
    assert ended.err.count("\n") == 1


def test_a_terminal_without_utf8_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    class Latin:
        encoding = "latin-1"

    monkeypatch.setattr(launcher.sys, "stdout", Latin())  # type: ignore[attr-defined]
    found = launcher.configured()
    assert found.values["ascii"] == (True, "the terminal's encoding")


@pytest.mark.parametrize("words", [(), ("attach",), ("replay", "--example"), ("demo",)])
def test_a_dumb_terminal_is_bad_usage(
    hoptui: Hoptui, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.delenv("TEXTUAL_DRIVER", raising=False)
    monkeypatch.setattr(launcher, "interactive", lambda: True)
    monkeypatch.setattr("hoptui.cli.commands.demo.interactive", lambda: True)
    ended = hoptui(*words)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("hoptui: TERM=dumb cannot draw")
    assert "hoptui status RUN" in ended.err
