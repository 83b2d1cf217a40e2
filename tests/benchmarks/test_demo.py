"""The benchmark of the demo: what it looks for on the screen, and how it counts starts."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks.demo import FULL, TRAINS, Start, first, significant, summary
from benchmarks.measure import Bench, Terminal
from hoptui.domain.tuning import Measured
from tests import factories

GOLDEN = Path(__file__).parents[1] / "tui" / "snapshots" / "golden" / "run_live.txt"
WHOLE = re.search(r"(?s)── 120 × 40 ─+\n(.*?)\n── ", GOLDEN.read_text() + "\n── ")
CLEAR = Measured(gain=4.1, interval=0.6, detectable=True, iterations=15)
VAGUE = Measured(gain=0.9, interval=33.5, iterations=15)


def screens(*shown: tuple[float, str]) -> Terminal:
    terminal = object.__new__(Terminal)
    terminal.columns, terminal.rows, terminal.started = 120, 40, 0.0
    written = [(at, f"\x1b[H\x1b[2J{text}".replace("\n", "\r\n").encode()) for at, text in shown]
    terminal.written = [*written, (written[-1][0] + 1.0, b" ")]
    return terminal


def test_a_frame_is_full_before_the_run_trains() -> None:
    assert WHOLE is not None
    live = WHOLE[1].rstrip("\n")
    starting = live.replace("● live   iteration 1 204 / 5 000", "– unknown")
    assert starting != live
    terminal = screens((0.5, "starting a PPO run and its dashboard"), (1.0, starting), (3.0, live))
    frame, trains = first(terminal, FULL), first(terminal, TRAINS)
    assert frame == pytest.approx(1.02, abs=0.25)
    assert trains == pytest.approx(3.02, abs=0.25)


def test_the_iteration_0_is_no_training_yet() -> None:
    terminal = screens((1.0, " demo  ● live   iteration 0 / 1 000 000"), (2.0, " demo"))
    assert first(terminal, TRAINS) is None


def node(*found: Measured | None) -> Bench:
    """A node whose run has had a pause and these effects of changes, oldest first."""
    records = [factories.change(f"{i}", measured=measured) for i, measured in enumerate(found)]
    records.append(factories.record("p", verb="pause"))
    session = SimpleNamespace(fetch=lambda state: SimpleNamespace(commands=tuple(records)))
    return cast(Bench, SimpleNamespace(session=lambda: contextlib.nullcontext(session)))


@pytest.mark.parametrize(
    ("effects", "expected"),
    [((), None), ((None,), None), ((CLEAR, VAGUE), None), ((VAGUE, CLEAR), CLEAR)],
)
def test_only_a_significant_effect_of_the_newest_change_counts(
    effects: tuple[Measured | None, ...], expected: Measured | None
) -> None:
    assert significant(node(*effects)) == expected


def test_starts_without_a_frame_or_an_effect_are_counted_as_not_in_time() -> None:
    starts = [
        Start(2.0, 5.0, 20.0, 25.0, 4.0),
        Start(6.0, 9.0, 21.0, 100.0, 2.0),
        Start(4.0, None, None, None, None),
        Start(None, None, None, None, None),
    ]
    found = summary(starts)
    assert (found["frames_in_time"], found["effects_in_time"], found["starts"]) == (2, 1, 4)
    assert found["first_full_frame"]["median"] == 4.0
    assert found["first_iteration"] == {"median": 7.0, "min": 5.0, "max": 9.0, "n": 2}
    assert found["times_the_throughput"]["median"] == 4.0
    nothing = summary([Start(None, None, None, None, None)])
    assert (nothing["first_full_frame"], nothing["first_effect"], nothing["frames_in_time"]) == (
        None,
        None,
        0,
    )
