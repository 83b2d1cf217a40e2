"""How old what a dashboard shows is: the iteration in its first line against the stamps of the run's rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.dashboard import CHOSEN, ages
from benchmarks.measure import Terminal
from hoptui.domain.columns import pack
from hoptui.protocol.messages import RunState

SECOND = 1_000_000_000
STARTED = 50.0
RUN = RunState(run="r", name="busy", epoch=1, pid=1, started_wall=0.0)


def screens(*shown: tuple[float, str]) -> Terminal:
    terminal = object.__new__(Terminal)
    terminal.columns, terminal.rows, terminal.started = 80, 3, STARTED
    terminal.written = [(at, f"\x1b[H\x1b[2J{text}\r\niteration 7 ms".encode()) for at, text in shown]
    return terminal


def asked(**fields: Any) -> Any:
    """A node on which iteration `i` of the run ended `i` tenths of a second after the terminal was opened."""
    assert fields["cursors"] == {"run/r": 1}
    rows = [(int((STARTED + i / 10) * SECOND), i, {"loss": 1.0}) for i in range(2000)]
    return SimpleNamespace(columns=(pack("run/r", rows),))


def test_the_age_is_by_the_runs_own_stamps() -> None:
    session = cast(Any, SimpleNamespace(fetch=asked))
    terminal = screens(
        (100.5, " busy  ● live   iteration 1\u202f000   1 m 40 s"),
        (101.0, " busy  ● live   iteration 1\u2009005 / 5\u2009000   1 m 41 s"),
        (101.5, " busy  ● live   1 m 41 s"),
        (102.0, " busy  ● live   iteration 1 015"),
    )
    found = ages(terminal, session, RUN, 100.6)
    assert found["n"] == 4, "two looks at each screen that names it, none at the one that does not"
    assert found["min"] == pytest.approx(0.6, abs=0.1)
    assert found["max"] == pytest.approx(0.9, abs=0.15)


def test_a_key_is_answered_when_what_it_changes_is_on_the_screen() -> None:
    terminal = screens(
        (1.0, "› lr  1"),
        (2.01, "› lr  2"),
        (2.03, "› grad_accum  2"),
        (3.5, "› grad_accum  3"),
        (5.02, "› lr  3"),
    )
    assert terminal.answered(CHOSEN, [2.0, 3.0, 5.0]) == pytest.approx([0.03, 0.02])
