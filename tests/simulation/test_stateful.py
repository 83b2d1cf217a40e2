"""Fresh examples of Hypothesis hold. A failure names the command that replays and shrinks it."""

from __future__ import annotations

import sys

import pytest

from tests.simulation import stateful
from tests.simulation.commands import printed
from tests.simulation.defects import planted
from tests.simulation.planted import named

LIMIT_S = 100.0


def explore(*options: str) -> list[str]:
    """Return what is printed of the examples."""
    options = ("--verbose", *options)
    return printed("tests.simulation.stateful", *options, limit_s=LIMIT_S).splitlines()


def test_fresh_examples_hold() -> None:
    """A failure is a finding. The command that is printed shrinks it."""
    first, *examples = explore()
    assert first.startswith("examples of seed ")
    assert len(examples) >= stateful.EXAMPLES


def test_a_seed_tries_the_same_examples_each_time() -> None:
    assert explore("--seed", "1", "--examples", "2") == explore("--seed", "1", "--examples", "2")


def test_a_failure_names_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["stateful", "--seed", "1", "--verbose"])
    with planted(named("only rank 0 carries commands out")):
        assert stateful.main() == 1
    told = capsys.readouterr().out
    assert "state.act(" in told
    assert "replay: python -m tests.simulation.stateful --seed 1 --examples 10" in told
