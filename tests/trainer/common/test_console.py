from __future__ import annotations

import json

import pytest

from hoptui_trainer.common.report import Console, amount, percent, rate_text, result_json


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


@pytest.mark.parametrize(
    ("error", "asked"),
    [(OSError(28, "No space left on device"), []), (BrokenPipeError(), ["nobody reads what it prints"] * 3)],
)
def test_a_line_that_cannot_be_written_is_lost_and_no_more(error: OSError, asked: list[str]) -> None:
    lines: list[str] = []
    full = True

    def write(line: str) -> None:
        if full:
            raise error
        lines.append(line)

    console, stopped = Console(write), list[str]()
    console.unread = stopped.append
    console.begin(["a run"])
    console.line(["iteration 1"])
    console.say("no checkpoint written: the disk is full")
    full = False
    console.line(["iteration 2"])
    assert lines == ["iteration 2"]
    assert stopped == asked


def test_what_is_not_known_is_null() -> None:
    assert json.loads(result_json({"mfu": None, "loss": float("nan"), "steps": 3})) == {
        "mfu": None,
        "loss": None,
        "steps": 3,
    }


def test_numbers_for_people() -> None:
    assert rate_text(0.0517, "clips") == "0.0517 clips/s"
    assert rate_text(12_345.6, "images") == "12,346 images/s"
    assert [amount(n) for n in (0, 950, 12_345, 4_560_000, 8.1e10)] == ["0", "950", "12.3K", "4.56M", "81G"]
    assert (percent(0.4184), percent(None)) == ("41.8%", "")
