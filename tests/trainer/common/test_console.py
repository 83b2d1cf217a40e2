from __future__ import annotations

import json

import pytest

from trainer.common.report import Console, amount, percent, result_json


def test_lines_come_at_most_once_a_second() -> None:
    now = 100.0
    lines: list[str] = []
    console = Console(lines.append, lambda: now)
    console.begin(["a run", "steps/s: over wall time"])
    now = 100.9
    assert not console.due()
    now = 101.5
    assert console.due() == pytest.approx(1.5)
    console.line(["iteration 3", "", "loss 0.5"])
    assert not console.due()
    console.say("checkpoint written")
    assert lines == ["a run", "steps/s: over wall time", "iteration 3 · loss 0.5", "checkpoint written"]


def test_what_is_not_known_is_null() -> None:
    assert json.loads(result_json({"mfu": None, "loss": float("nan"), "steps": 3})) == {
        "mfu": None,
        "loss": None,
        "steps": 3,
    }


def test_numbers_for_people() -> None:
    assert [amount(n) for n in (0, 950, 12_345, 4_560_000, 8.1e10)] == ["0", "950", "12.3K", "4.56M", "81G"]
    assert (percent(0.4184), percent(None)) == ("41.8%", "")
