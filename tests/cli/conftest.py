"""The command line against a fake daemon, in this process.

`hoptui("ls")` gives the exit code and what was printed. `golden(hoptui.transcript())` compares what a user
reads.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hoptui.cli.main import main
from tests import factories
from tests.client.conftest import daemon
from tests.client.fake_daemon import FakeDaemon

__all__ = ["daemon", "hoptui", "ppo"]


class Ended(NamedTuple):
    """What a command left: its exit code and its two streams."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out.count("\n") == 1, "one JSON value is one line"
        return json.loads(self.out)


class Hoptui:
    """The command line: a call runs one command, and the transcript has what a terminal showed of all."""

    def __init__(self, capsys: pytest.CaptureFixture[str], directory: Path) -> None:
        self._capsys = capsys
        self._directory = directory
        self._shown: list[str] = []

    def __call__(self, *words: str) -> Ended:
        code = main(words)
        ended = Ended(code, *self._capsys.readouterr())
        if "--json" not in words:
            self._shown.append(shown(words, ended))
        return ended

    def transcript(self) -> str:
        """The commands since the last call of this, what each printed and its exit code; without those with
        `--json`.

        Lines on standard error begin with `2> `. A directory of this test is shown by its variable. A made-up
        run started in 1970: its age is `AGE`.
        """
        text = "\n".join(self._shown)
        self._shown.clear()
        places = {name: os.environ.get(name) for name in ("HOPTUI_STATE_DIR", "HOPTUI_DIR")}
        for name, place in (places | {"TMP": str(self._directory)}).items():
            text = text.replace(place, f"${name}") if place else text
        return re.sub(r"\b\d{5} d \d+ h\b", "AGE", text)


def shown(words: tuple[str, ...], ended: Ended) -> str:
    """A command and its end, as in a terminal."""
    errors = "".join(f"2> {line}" for line in ended.err.splitlines(keepends=True))
    printed = [part if part.endswith("\n") else f"{part}%\n" for part in (ended.out, errors) if part]
    exit_code = f"exit {ended.code}\n" if ended.code else ""
    return f"$ {shlex.join(['hoptui', *words])}\n{''.join(printed)}{exit_code}"


@pytest.fixture(autouse=True, scope="module")
def one_time_zone() -> Iterator[None]:
    """Times of day are printed in UTC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(autouse=True)
def a_person_who_has_set_nothing(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs the tests may have a configuration."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "nothing"))
    monkeypatch.delenv("HOPTUI_READ_ONLY", raising=False)


@pytest.fixture
def hoptui(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Hoptui:
    return Hoptui(capsys, tmp_path)


@pytest.fixture
def ppo(daemon: FakeDaemon) -> FakeDaemon:
    """A started daemon with one live run, `ppo`."""
    daemon.add(factories.run(), metrics={"env_steps_per_s": 512_345.0, "loss": 0.183, "iteration_s": 1.82})
    daemon.start()
    return daemon
