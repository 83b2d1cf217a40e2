from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from hoptui.cli.doctor import machine


@pytest.mark.parametrize(
    ("environ", "detail", "status"),
    [
        ({"TERM": "xterm"}, "no tmux and no SSH in between", "ok"),
        ({"TERM": "xterm", "STY": "1"}, "in screen, TERM=xterm", "ok"),
        ({"TERM": "xterm", "SSH_CONNECTION": "x"}, "over SSH without tmux, TERM=xterm", "ok"),
        ({"SSH_CONNECTION": "x", "COLORTERM": "truecolor"}, "over SSH, with true colour", "ok"),
        ({"TERM": "xterm", "TMUX": "x"}, "in tmux, TERM=xterm, which is not tmux's own", "warning"),
        (
            {"TERM": "tmux-256color", "TMUX": "x", "SSH_CONNECTION": "x"},
            "in tmux over SSH, TERM=tmux-256color, 256 colours",
            "ok",
        ),
    ],
)
def test_what_stands_between(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], detail: str, status: str
) -> None:
    monkeypatch.setattr(machine, "_tmux_features", lambda: "256,title")
    found = machine.multiplexer(environ)
    assert (found.detail, found.status) == (detail, status)


def test_tmux_with_true_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_tmux_features", lambda: "256,RGB,title")
    assert machine.multiplexer({"TERM": "tmux-256color", "TMUX": "x"}).advice == ""


@pytest.mark.parametrize(
    ("environ", "size", "encoding", "status"),
    [
        ({"TERM": "xterm-256color"}, (120, 40), "utf-8", "ok"),
        ({"TERM": "xterm-256color"}, (60, 20), "utf-8", "warning"),
        ({"TERM": "dumb"}, (120, 40), "utf-8", "failed"),
        ({"TERM": "xterm"}, (120, 40), "ascii", "warning"),
    ],
)
def test_terminals(
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    size: tuple[int, int],
    encoding: str,
    status: str,
) -> None:
    monkeypatch.setattr(machine, "interactive", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size(size))
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    found = machine.terminal(environ)
    assert found.status == status


def test_what_is_set_and_what_of_it_cannot_be_used(tmp_path: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    assert machine.configuration(environ).detail == "nothing is set: all settings have their defaults"
    found = machine.configuration(environ | {"HOPTUI_THEME": "light"})
    assert (found.status, found.detail) == ("ok", "theme by HOPTUI_THEME")
    file = tmp_path / "hoptui" / "config.toml"
    file.parent.mkdir()
    file.write_text('theme = "blue"\n')
    found = machine.configuration(environ)
    assert found.status == "warning"
    assert "line 1" in found.detail
    assert "config.toml" in found.advice
