from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from hoptui.cli.doctor import machine
from tests.cli.doctor.conftest import listed
from tests.golden import Golden


def test_what_stands_between(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(machine, "_tmux_features", lambda: "256,title")
    text = ""
    for environ, status in (
        ({"TERM": "xterm"}, "ok"),
        ({"TERM": "xterm", "STY": "1"}, "ok"),
        ({"TERM": "xterm", "SSH_CONNECTION": "x"}, "ok"),
        ({"SSH_CONNECTION": "x", "COLORTERM": "truecolor"}, "ok"),
        ({"TERM": "xterm", "TMUX": "x"}, "warning"),
        ({"TERM": "tmux-256color", "TMUX": "x", "SSH_CONNECTION": "x"}, "ok"),
    ):
        found = machine.multiplexer(environ)
        assert found.status == status
        text += f"{' '.join(f'{name}={value}' for name, value in environ.items())}\n{listed(found)}\n"
    golden(text)


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


def test_what_is_set_and_what_of_it_cannot_be_used(tmp_path: Path, golden: Golden) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    nothing = machine.configuration(environ)
    assert nothing.status == "ok"
    found = machine.configuration(environ | {"HOPTUI_THEME": "light"})
    assert (found.status, "HOPTUI_THEME" in found.detail) == ("ok", True)
    golden(listed(nothing, found))
    file = tmp_path / "hoptui" / "config.toml"
    file.parent.mkdir()
    file.write_text('theme = "blue"\n')
    found = machine.configuration(environ)
    assert found.status == "warning"
    assert "line 1" in found.detail
    assert "config.toml" in found.advice
