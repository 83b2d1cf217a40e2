"""daemon.json: what a daemon that was killed leaves to the next one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hoptui.daemon import sockets


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "daemon.json"


def test_the_address_is_left_behind(path: Path) -> None:
    assert sockets.metrics_left_behind(path) == ""
    sockets.write(path, "127.0.0.1:9400")
    assert sockets.metrics_left_behind(path) == "127.0.0.1:9400"
    assert [entry.name for entry in path.parent.iterdir()] == ["daemon.json"]
    sockets.write(path, "")
    assert sockets.metrics_left_behind(path) == ""


def test_what_was_served_before_the_machine_was_started_anew_is_past(path: Path) -> None:
    sockets.write(path, ":9400")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"boot": "another"}))
    assert sockets.metrics_left_behind(path) == ""


@pytest.mark.parametrize("raw", ["", "{", "[]", "7", '{"pid": 7}', '{"boot": 1}', "\xff"])
def test_a_file_that_makes_no_sense_tells_nothing(path: Path, raw: str) -> None:
    path.write_bytes(raw.encode("latin-1"))
    assert sockets.metrics_left_behind(path) == ""
