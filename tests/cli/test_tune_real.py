"""`hoptui tune` with a real daemon and processes: what helps is kept, what a death leaves is undone."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from hoptui.domain.tuning import Tune, Tuned, TunerState
from hoptui.presentation import sentences
from hoptui.protocol.messages import RunState
from tests.cli.conftest import Hoptui
from tests.conftest import RawViewer, TestNode, until
from tests.golden import Golden

pytestmark = pytest.mark.slow

TUNED = """
import sys, time
import hoptui
slow_s = float(sys.argv[1])
run = hoptui.connect("toy")
micro = run.knob("micro_batch", 32, min=1, max=128, effect="speed")
run.metric("tokens_per_s", unit="tokens/s", headline=True)
for i in run.iterations():
    time.sleep(0.004 if micro.value <= 32 else slow_s)
    run.log(tokens_per_s=1000.0 * min(micro.value, 64) + i % 7)
"""


def tuner(hoptui: Hoptui) -> Any:
    return hoptui("tune", "toy", "--status", "--json").json["tuner"]


def test_what_helps_is_kept_and_the_next_run_of_the_kind_begins_there(
    hoptui: Hoptui, node: TestNode, golden: Golden
) -> None:
    first = node.start(TUNED, "0.004")
    until(lambda: [run for run in hoptui("ls", "--json").json if (run["iteration"] or 0) > 10])
    assert hoptui("tune", "toy", "--detach").code == 0
    assert hoptui("tune", "toy", "--budget", "9%").code == 1
    golden(hoptui.transcript(), normalize={r"by \w+": "by USER"})
    found = until(lambda: (t := tuner(hoptui))["stand"] == "holding" and t["tried"] and t)
    kept = [trial for trial in found["tried"] if trial["result"] == "kept"]
    assert kept[0]["changes"] == [{"knob": "micro_batch", "before": 32, "value": 64}]
    assert 0.9 < kept[0]["measured"]["gain"] < 1.1
    moves = [c for c in hoptui("history", "toy", "--json").json if c["by"]["kind"] == "tuner"]
    assert (moves[0]["to"], moves[0]["stage"], bool(moves[0]["why"])) == (64, "applied", True)
    assert hoptui("get", "toy", "--json").json["knobs"]["micro_batch"]["value"] >= 64
    assert hoptui("tune", "toy", "--stop").out.startswith("◌ off")
    assert hoptui("stop", "toy", "--yes").code == 0
    assert first.wait(10) == 0

    node.start(TUNED, "0.004")
    until(lambda: [run for run in hoptui("ls", "--json").json if run["state"] == "live"])
    assert hoptui("tune", "toy", "--detach").code == 0
    again = until(lambda: (tuner(hoptui)["tried"] or [None])[0])
    assert (again["changes"][0]["value"], again["result"]) == (kept[-1]["changes"][0]["value"], "kept")
    golden(again["text"], "again")


def test_a_daemon_killed_in_a_trial_leaves_nothing_behind(node: TestNode, golden: Golden) -> None:
    node.start(TUNED, "0.25")  # a trial takes seconds
    viewer = node.viewer()
    run = viewer.run()
    until(lambda: viewer.vital(run.run).step > 10, what="some iterations")
    begun = viewer.ask(Tune(id=1, run=run.run, op="start"), Tuned)
    assert begun.granted, begun.code
    until(lambda: micro_batch(viewer.run()) == 64, what="a trial in effect")
    killed = node.daemon_pid()
    os.kill(killed, signal.SIGKILL)
    until(lambda: node.daemon_pid() not in (0, killed), what="another daemon")

    other = node.viewer("other")
    told = until(lambda: [e for e in other.fetch(run=run.run).events if e.code == "tuner.goes_on"])
    assert len(told) == 1
    golden(sentences.event_text(told[0]))
    after = tuned(other.run())
    assert (after.tried[0].result, after.tried[0].changes[0].before) == ("unfinished", 32)
    assert (after.user, after.started, after.limits) == (
        begun.state.user,
        begun.state.started,
        begun.state.limits,
    )
    back = [c for c in other.fetch(run=run.run).commands if c.wanted == 32]
    assert [(c.origin.kind, c.stage) for c in back] == [("tuner", "applied")]
    assert ask_to_stop(other, run).granted


def ask_to_stop(viewer: RawViewer, run: RunState) -> Tuned:
    return viewer.ask(Tune(id=2, run=run.run, op="stop"), Tuned)


def micro_batch(run: RunState) -> object:
    return run.knobs[0].value


def tuned(run: RunState) -> TunerState:
    assert run.tuner is not None
    return run.tuner
