"""A directory with a short name for sockets, and a fake daemon in it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.fake_daemon import FakeDaemon


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    """A fake daemon that is not started yet, in the place where this process looks for one."""
    base = Path(tempfile.mkdtemp(prefix="hoptui-fake-"))
    monkeypatch.setenv("HOPTUI_DIR", str(base / "run"))
    monkeypatch.setenv("HOPTUI_STATE_DIR", str(base / "state"))
    fake = FakeDaemon(base / "run", base / "state")
    try:
        yield fake
    finally:
        fake.stop()
        shutil.rmtree(base)
