"""The frozen package is that of the previous release."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat import previous

ROOT = Path(__file__).parents[2]


def test_it_is_of_one_of_the_two_newest_releases() -> None:
    released = re.findall(r"(?m)^## \[(\d[^]]*)\]", (ROOT / "CHANGELOG.md").read_text())
    assert previous.version(previous.archive()) in released[:2]


def test_its_name_is_its_version(package: Path) -> None:
    print_version = "import hoptui; print(hoptui.__version__, hoptui.__file__)"
    out = subprocess.run(
        [sys.executable, "-c", print_version],
        env=os.environ | previous.environment(package),
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    ).stdout
    assert out.split() == [previous.version(previous.archive()), str(package / "hoptui/__init__.py")]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a checkout has a HEAD to freeze")
def test_a_release_replaces_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hoptui-0.0.9.tar.xz").write_bytes(b"old")
    previous.freeze("9.9.9", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["hoptui-9.9.9.tar.xz"]
    monkeypatch.setattr(previous, "HERE", tmp_path)
    previous.unpack(tmp_path)
    assert (tmp_path / "hoptui/protocol/messages.py").is_file()
    assert not (tmp_path / "tests").exists()
