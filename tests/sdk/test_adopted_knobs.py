"""Knobs that the training script chooses or derives itself: their value is the wanted one."""

from __future__ import annotations

import time

import pytest

import hoptui
from hoptui.protocol.messages import Command, Outcome
from hoptui.sdk.run import Run
from tests.run_state import run_state


class Cut:
    """A batch that is cut in pieces: as many as asked for, at most one per sample. 0: the best number."""

    def __init__(self, *, adopts: bool = True) -> None:
        self.batch, self.asked = 64, 0
        self.run: Run = hoptui.connect("unit")
        self.run.knob("batch", self.batch, min=1, max=100, apply=self._resize, read=lambda: self.batch)
        read = self._pieces
        self.pieces = self.run.knob("pieces", read(), min=0, max=100, apply=self._cut, read=read)
        self._adopts = adopts

    def turn(self, knob: str, value: int) -> Outcome:
        command = Command(id=f"{knob} {value}", run=self.run.id, epoch=1, verb="set", knob=knob, value=value)
        run_state(self.run).inbox.receive(command, time.monotonic(), self.run.step + 1)
        self.run.boundary()
        (outcome,) = run_state(self.run).inbox.collect_outcomes()
        return outcome

    def _pieces(self) -> int:
        return min(self.asked or self.batch // 16, self.batch)

    def _resize(self, batch: int) -> None:
        if batch == 13:
            raise ValueError("unlucky")
        self.batch = batch
        self._adopt()

    def _cut(self, pieces: int) -> None:
        self.asked = pieces
        self._adopt()

    def _adopt(self) -> None:
        if self._adopts and not self.asked:
            self.pieces.adopt()


@pytest.fixture(autouse=True)
def off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPTUI", "off")


def test_what_follows_from_another_knob_is_in_effect_and_reported_without_a_command() -> None:
    cut = Cut()
    declared = run_state(cut.run).declarations.revision
    outcome = cut.turn("batch", 32)
    assert (outcome.id, outcome.stage) == ("batch 32", "applied")
    pieces = run_state(cut.run).declarations.knobs["pieces"].state()
    assert (pieces.value, pieces.in_effect, pieces.version, pieces.by) == (2, True, 0, "")
    assert run_state(cut.run).declarations.revision > declared  # so the daemon gets it
    assert not run_state(cut.run).notes


def test_a_value_that_is_not_adopted_is_not_the_wanted_one() -> None:
    cut = Cut(adopts=False)
    cut.turn("batch", 32)
    assert (cut.pieces.value, cut.pieces.in_effect) == (2, False)


def test_a_knob_that_somebody_leaves_open_is_in_effect_as_what_it_was_chosen_to_be() -> None:
    cut = Cut()
    assert cut.turn("pieces", 8).effective == 8
    outcome = cut.turn("pieces", 0)
    assert (outcome.stage, outcome.effective, outcome.version, outcome.reason) == ("applied", 4, 2, "")
    assert cut.pieces.in_effect
    cut.turn("batch", 48)
    assert (cut.pieces.value, cut.pieces.in_effect) == (3, True)


def test_what_somebody_asked_for_stays_wanted() -> None:
    cut = Cut()
    cut.turn("pieces", 50)
    cut.turn("batch", 32)
    assert (cut.pieces.value, cut.pieces.in_effect) == (32, False)
    cut.turn("batch", 64)
    assert (cut.pieces.value, cut.pieces.in_effect) == (50, True)


def test_a_change_that_failed_leaves_what_was_chosen_as_it_was() -> None:
    cut = Cut()
    assert cut.turn("batch", 13).stage == "failed"
    assert (cut.pieces.value, cut.pieces.in_effect) == (4, True)
    assert run_state(cut.run).declarations.knobs["pieces"].wanted == 4
