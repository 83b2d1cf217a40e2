"""The command line against a fake daemon, in this process: `hoptui("ls")` gives the exit code and what was printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from hoptui.cli.main import main
from tests.client.conftest import daemon
from tests.client.fake_daemon import FakeDaemon, make_run

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


Hoptui = Callable[..., Ended]


@pytest.fixture(autouse=True)
def a_person_who_has_set_nothing(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs the tests may have a configuration."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "nothing"))
    monkeypatch.delenv("HOPTUI_READ_ONLY", raising=False)


@pytest.fixture
def hoptui(capsys: pytest.CaptureFixture[str]) -> Hoptui:
    def call(*words: str) -> Ended:
        code = main(words)
        return Ended(code, *capsys.readouterr())

    return call


@pytest.fixture
def ppo(daemon: FakeDaemon) -> FakeDaemon:
    """A started daemon with one live run, `ppo`."""
    daemon.add(make_run(), metrics={"env_steps_per_s": 512_345.0, "loss": 0.183, "iteration_s": 1.82})
    daemon.start()
    return daemon
