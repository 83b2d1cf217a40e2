"""A run without viewers."""

from __future__ import annotations

import pytest

import hoptui


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> hoptui.Run:
    """A run that connects to nothing."""
    monkeypatch.setenv("HOPTUI", "off")
    return hoptui.connect("toy")
