"""The tuner of a real daemon on a real run: killed in the middle of a trial, and beside two people."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from hoptui.domain.tuning import Limits, Trial, Tune, Tuned, TunerState
from hoptui.protocol.messages import RunState
from hoptui.recording import Recording
from tests.conftest import RawViewer, TestNode, until

SECONDS = 60.0
SCRIPT = """
import sys, time
from pathlib import Path
import hoptui
gate = Path(sys.argv[1])
run = hoptui.connect("toy")
micro = run.knob("micro_batch", 8, min=8, max=64, scale="log", effect="speed", cost="shape")
for i in run.iterations():
    time.sleep(0.005)
    while micro.value != 8 and not gate.exists():
        time.sleep(0.005)
    run.log(samples=micro.value)
"""
"""A run in which a trial lasts until the gate is open: the iteration after it ends no sooner."""


def tuner(viewer: RawViewer) -> TunerState:
    """As this viewer is told."""
    found = viewer.run().tuner
    assert found is not None
    return found


def in_effect(viewer: RawViewer) -> Trial | None:
    """The trial that is in effect."""
    trial = tuner(viewer).trial
    return trial if trial is not None and trial.step is not None else None


def recorded(node: TestNode, run: RunState) -> bool:
    """Whether the recording knows of a change that took effect."""
    with Recording.open(node.where.recording(run.run)) as recording:
        return any(command.stage == "applied" for command in recording.commands())


def value(run: RunState) -> object:
    return run.knobs[0].value


def test_a_trial_survives_neither_the_daemons_death_nor_a_person(node: TestNode, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    node.start(SCRIPT, str(gate))
    ana, ben = node.viewer("ana"), node.viewer("ben")
    run = ana.run()
    start = Tune(id=1, run=run.run, op="start", limits=Limits(budget=1.0))
    assert ana.ask(start, Tuned).granted
    assert not ben.ask(start, Tuned).granted, "it is on already"

    trial: Trial = until(lambda: in_effect(ben), seconds=SECONDS, what="a trial")
    tried = trial.changes[0].value
    assert (trial.changes[0].before, value(ana.run())) == (8, tried)
    until(lambda: recorded(node, run), what="its command on the disk")  # at once, and not at the next flush
    os.kill(node.daemon_pid(), signal.SIGKILL)
    until(lambda: not node.daemon_pid(), what="the daemon's end")

    ana, ben = node.viewer("ana"), node.viewer("ben")
    until(lambda: tuner(ana).tried, seconds=SECONDS, what="the trial of before")
    assert [t.result for t in tuner(ana).tried] == ["unfinished"]
    until(lambda: value(ana.run()) == tried, what="what is in effect still")
    gate.touch()
    until(lambda: value(ana.run()) == 8, seconds=SECONDS, what="the value of before")

    gate.unlink()
    until(lambda: in_effect(ben), seconds=SECONDS, what="another trial")
    mine = ben.command(ben.run(), knob="micro_batch", value=12)
    gate.touch()
    assert ben.outcome(mine).stage == "applied"
    until(lambda: tuner(ana).frozen, seconds=SECONDS, what="the tuner to hear of it")
    until(lambda: tuner(ana).stand == "holding", seconds=SECONDS, what="the tuner to rest")
    assert [t.result for t in tuner(ana).tried] == ["unfinished", "interrupted"]
    assert tuner(ana).frozen == tuner(ben).frozen == ("micro_batch",)
    assert value(ben.run()) == 12

    told = sorted(ben.fetch().commands, key=lambda c: c.t)
    assert [(c.origin.kind, c.wanted, c.stage) for c in told] == [
        ("tuner", tried, "applied"),
        ("tuner", 8, "applied"),
        ("tuner", tried, "applied"),
        ("person", 12, "applied"),
    ]
    assert all(c.purpose for c in told if c.origin.kind == "tuner")
