from __future__ import annotations

import pytest
from msgspec import structs

from hoptui.cli.doctor import machine
from tests.client.fake_daemon import make_node


def test_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert machine.parquet().advice == "pip install 'hoptui[parquet]'"
    assert machine.metrics(make_node(), {}, "log").status == "ok"
    assert machine.metrics(make_node(), {"HOPTUI_METRICS": ":9400"}, "log").status == "warning"


def test_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: object())
    served = structs.replace(make_node(), metrics="127.0.0.1:9400")
    assert machine.metrics(served, {}, "log").detail == "served at http://127.0.0.1:9400/metrics"
    assert machine.metrics(make_node(), {}, "log").status == "ok"
    asked = machine.metrics(make_node(), {"HOPTUI_METRICS": ":9400"}, "log")
    assert asked.status == "warning"
    assert "127.0.0.1:9400" in asked.advice


def test_a_daemon_of_another_version() -> None:
    old = structs.replace(make_node(), version="0.0.1")
    assert machine.daemon(old, started=False).status == "warning"
