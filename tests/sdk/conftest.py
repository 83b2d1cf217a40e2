"""A run with `HOPTUI=off`."""

from __future__ import annotations

import pytest

import hoptui
from hoptui.sdk.run import Run


@pytest.fixture
def off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPTUI", "off")


@pytest.fixture
def run(off: None) -> Run:
    return hoptui.connect("unit")
