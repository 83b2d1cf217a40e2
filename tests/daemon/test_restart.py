"""A run that replaces its process for a knob, as its viewers see it: scheduled until the value is read back,
never before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hoptui.domain.facts import fact, nested
from hoptui.presentation import sentences
from hoptui.protocol import messages
from hoptui.protocol.messages import FATE_UNKNOWN, FINAL, CommandRecord, RunState
from tests.conftest import TestNode, over, until
from tests.impatient import impatient_daemon

RESTARTS = """
import json, os, pathlib, sys, time
import hoptui
folder = pathlib.Path(sys.argv[1])
state = json.loads((folder / "state").read_text()) if (folder / "state").exists() else {"width": 8}
again = "run" in state
while again and not (folder / "go").exists():  # as if it took long to come back
    time.sleep(0.005)
if (folder / "die").exists():
    sys.exit(3)
width = state["width"]
run = hoptui.connect("toy", resume=state.get("run"))
run.knob("width", width, min=1, max=64, cost="restart", apply=lambda _: None, read=lambda: width)
for i in run.iterations(start=state.get("step", 0)):
    if run.restart_wanted:
        if (folder / "full").exists():
            run.refuse_restart("the disk is full")
        else:
            left = {"run": run.state_dict(), "step": i, **run.restart_wanted}
            (folder / "state").write_text(json.dumps(left))
            run.hand_over("x.ckpt")
            os.execv(sys.executable, sys.orig_argv)
    time.sleep(0.01)
    run.log(loss=1.0)
"""


class Restarting:
    """A run with a knob that needs a new process, and a viewer that has asked for it."""

    def __init__(self, node: TestNode, folder: Path) -> None:
        self.node, self.folder = node, folder
        self.child = node.start(RESTARTS, str(folder))
        self.viewer = node.viewer()
        self.run = self.viewer.run()
        until(lambda: self.viewer.vital(self.run.run).step > 3, what="some iterations")

    def ask(self) -> str:
        return self.viewer.command(self.run, knob="width", value=16)

    def gone(self, command: str) -> messages.CommandRecord:
        """Wait until its process has left it."""
        return self.viewer.record(command, lambda record: record.code == "restarting")

    def say(self, word: str) -> None:
        (self.folder / word).write_text("")

    def now(self) -> RunState:
        return self.viewer.run()


@pytest.fixture
def restarting(node: TestNode, tmp_path: Path) -> Restarting:
    return Restarting(node, tmp_path)


def value(run: RunState) -> tuple[object, bool]:
    (knob,) = run.knobs
    return knob.value, knob.in_effect


def test_a_change_is_applied_when_the_new_process_has_read_it_back(restarting: Restarting) -> None:
    viewer, run = restarting.viewer, restarting.run
    command = restarting.ask()
    assert restarting.gone(command).fields == {"checkpoint": "x.ckpt"}
    vital = viewer.vital(run.run)
    assert (vital.state, vital.because) == ("busy", fact("state.restarting"))
    assert value(restarting.now()) == (8, True)  # what waits is not shown as the value
    refused = viewer.outcome(viewer.command(run, knob="width", value=4))
    assert refused.code == "restarting"
    waiting = restarting.node.hoptui("set", "toy", "width=32", "--yes")
    assert waiting.returncode == 1
    assert sentences.sentence(fact("restarting", name="toy")) in waiting.stderr

    restarting.say("go")
    done = viewer.outcome(command)
    assert (done.stage, done.effective, done.before, done.code) == ("applied", 16, 8, "restarted")
    assert done.took_s is not None
    assert done.took_s > 0
    until(lambda: restarting.now().knobs and value(restarting.now())[0] == 16, what="the new value")
    after = restarting.now()
    assert (after.run, after.epoch, after.pid) == (run.run, 2, run.pid)
    assert after.knobs[0].took_s == done.took_s
    record = next(r for r in viewer.fetch(run=run.run).commands if r.id == command)
    assert (record.stage, record.epoch, record.before, record.effective) == ("applied", 1, 8, 16)
    kinds = [event.kind for event in viewer.fetch(run=run.run).events]
    assert not {"exited", "reconnected"} & {*kinds}
    assert "restarted" in kinds

    # And back, as somebody does who only waits for the answer.
    told = restarting.node.hoptui("set", "toy", "width=8", "--json", "--yes")
    assert told.returncode == 0, told.stderr
    (change,) = json.loads(told.stdout)["commands"]
    assert (change["from"], change["effective"], change["stage"]) == (16, 8, "applied")
    assert change["took_s"] > 0
    assert restarting.now().epoch == 3


@pytest.mark.parametrize("again", [False, True], ids=["", "and the daemon was restarted meanwhile"])
def test_a_process_that_does_not_come_back_is_a_failure_or_unknown(
    restarting: Restarting, *, again: bool
) -> None:
    """It is unknown where it may have come and told the daemon before."""
    command = restarting.ask()
    restarting.gone(command)
    viewer = restarting.viewer
    if again:
        pid = restarting.node.daemon_pid()
        viewer.send(messages.Shutdown(id=1))
        until(lambda: over(pid), what="the end of the daemon")
        impatient_daemon(restarting.node, last_words_s=0.3)
        viewer = restarting.node.viewer("again")
        assert viewer.vital(restarting.run.run).state == "busy"
    restarting.say("die")
    restarting.say("go")
    assert restarting.child.wait(10) == 3
    until(lambda: viewer.run().exit_reason, what="the end")

    def ended() -> list[CommandRecord]:  # it is shown once it is on disk
        known = viewer.fetch(run=restarting.run.run).commands
        return [r for r in known if r.id == command and r.stage in FINAL]

    (record,) = until(ended, what="the end of the command")
    lost = fact("lost_in_restart", why=fact("run_ended", reason="failed"), checkpoint="x.ckpt")
    if again:
        assert (record.stage, record.code) == ("voided", FATE_UNKNOWN)
        assert nested(record.fields["why"]) == lost
    else:
        assert (record.stage, record.code, record.fields) == ("failed", lost.code, lost.fields)
    assert record.effective is None


def test_a_restart_that_cannot_be_is_a_failure_and_the_run_goes_on(restarting: Restarting) -> None:
    restarting.say("full")
    done = restarting.viewer.outcome(restarting.ask())
    assert (done.stage, done.effective, done.fields) == ("failed", 8, {"reason": "the disk is full"})
    until(lambda: value(restarting.now()) == (8, True), what="the knob as it is")
    assert restarting.child.poll() is None
