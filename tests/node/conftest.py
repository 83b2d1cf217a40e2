"""A node of its own for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from hoptui.node.addresses import Addresses


@pytest.fixture
def where(tmp_path: Path) -> Addresses:
    """The addresses of a daemon in directories of its own."""
    directory, state = tmp_path / "d", tmp_path / "s"
    directory.mkdir(mode=0o700)
    state.mkdir(mode=0o700)
    return Addresses(directory, state)
