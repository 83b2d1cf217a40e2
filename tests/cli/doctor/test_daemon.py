from __future__ import annotations

import pytest
from msgspec import structs

from hoptui.cli.doctor import machine
from tests import factories
from tests.cli.doctor.conftest import listed
from tests.golden import Golden


def test_extras(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert "'hoptui[parquet]'" in machine.parquet().advice
    assert machine.metrics(factories.node(), {}, "log").status == "optional"
    asked = machine.metrics(factories.node(), {"HOPTUI_METRICS": ":9400"}, "log")
    assert asked.status == "warning"
    golden(listed(machine.parquet(), machine.metrics(factories.node(), {}, "log"), asked))


def test_metrics(monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: object())
    served = structs.replace(factories.node(), metrics="127.0.0.1:9400")
    assert "http://127.0.0.1:9400/metrics" in machine.metrics(served, {}, "log").detail
    assert machine.metrics(factories.node(), {}, "log").status == "ok"
    asked = machine.metrics(factories.node(), {"HOPTUI_METRICS": ":9400"}, "log")
    assert asked.status == "warning"
    assert "127.0.0.1:9400" in asked.advice
    golden(listed(machine.metrics(served, {}, "log"), machine.metrics(factories.node(), {}, "log"), asked))


def test_a_daemon_of_another_version() -> None:
    old = structs.replace(factories.node(), version="0.0.1")
    assert machine.daemon(old, started=False).status == "warning"
