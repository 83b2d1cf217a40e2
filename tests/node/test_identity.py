"""Two processes are on the same node if they reach the same daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from hoptui.node import identity
from hoptui.node.identity import node_identity
from tests.conftest import until
from tests.sdk.two_ranks import pair


def test_a_node_is_a_directory_under_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name in ("one", "one", "other"):
        monkeypatch.setenv("HOPTUI_DIR", str(tmp_path / name))
        found.append(node_identity())
    assert found[0] == found[1] != found[2]
    assert all(len(each) == 16 for each in found)
    identity._identity.cache_clear()
    monkeypatch.setattr(identity, "BOOT_ID", tmp_path / "gone")
    assert node_identity() not in found  # another kernel: here, one that is not known
    (tmp_path / "open").mkdir(mode=0o755)
    monkeypatch.setenv("HOPTUI_DIR", str(tmp_path / "open"))
    assert node_identity() == ""


def test_ranks_that_are_off_make_no_directory(tmp_path: Path) -> None:
    script = """
for i in run.iterations(50):
    time.sleep(0.01)
"""
    environment = {"HOPTUI": "off", "HOPTUI_DIR": str(tmp_path / "run")}
    with pair(script, environment) as children:
        until(lambda: all(child.poll() is not None for child in children), seconds=60, what="the end")
        assert [child.returncode for child in children] == [0, 0]
    assert not (tmp_path / "run").exists()
