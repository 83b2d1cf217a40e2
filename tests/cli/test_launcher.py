"""The dashboard, opened: which command lines need no parser, and who sets out first."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import pytest

from hoptui.cli import launcher
from hoptui.client import client
from hoptui.tui import app
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon


@pytest.mark.parametrize(
    ("words", "plain"),
    [
        ([], True),
        (["attach"], True),
        (["attach", "ppo"], True),
        (["attach", "ssh://gpu07/ppo", "local"], True),
        (["attach", "--read-only"], False),
        (["attach", "ppo", "-h"], False),
        (["--theme", "light"], False),
        (["replay", "x.hoptui"], False),
        (["attached"], False),
    ],
)
def test_a_plain_command_line_has_no_options(words: list[str], plain: bool) -> None:
    assert launcher.is_plain(words) is plain


@pytest.mark.parametrize("words", [["attach", "nobody"], ["attach", "ssh://"], ["attach"], []])
def test_a_plain_command_line_ends_as_it_would_with_the_parser(
    hoptui: Hoptui, ppo: FakeDaemon, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with_parser = hoptui(*words)
    assert launcher.main(words) == with_parser.code != 0
    assert tuple(capsys.readouterr()) == with_parser[1:]


def test_neither_parser_nor_dashboard_is_imported_before_it_is_known_what_to_show() -> None:
    asked = "import sys, hoptui.cli.launcher; print({'cyclopts', 'textual', 'sqlite3'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    assert out == "set()\n"


def test_the_client_sets_out_first_and_is_closed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[Any] = []

    class Client:
        def __init__(self, *, read_only: bool) -> None:
            happened.append(("made", read_only))

        def watch(self, run: str | None) -> None:
            happened.append(("watch", run))

        def start(self) -> None:
            happened.append("start")

        def close(self) -> None:
            happened.append("close")

    def run(asked: str | None, *, config: Any, client: Any) -> int:
        happened.append(("open", asked, type(client), gc.isenabled()))
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "Client", Client)
    monkeypatch.setattr(app, "run", run)
    monkeypatch.setenv("HOPTUI_READ_ONLY", "1")
    with pytest.raises(KeyboardInterrupt):
        launcher.open_dashboard("abc")
    assert happened == [("made", True), ("watch", "abc"), "start", ("open", "abc", Client, False), "close"]
    assert gc.isenabled()
