"""How a run is, as its viewers see it: after a command, without boundaries, with a rank that hangs."""

from __future__ import annotations

from hoptui.protocol.messages import Command, Pulse
from tests.daemon.quiet_node import ANA, RUN, SECOND, QuietNode


def test_a_run_is_no_longer_paused_once_a_resume_is_applied(quiet: QuietNode) -> None:
    quiet.hello()
    quiet.runs.receive(b"n1", None, Pulse(step=50, paused=True, paused_left_s=58.0))
    assert quiet.run.vital(quiet.now / SECOND).state == "paused"
    resume = Command(id="c", run=RUN, epoch=1, verb="resume", origin=ANA)
    quiet.node.book.submit(resume, quiet.run, "v1", quiet.wall(), quiet.now)
    quiet.outcome(resume)
    vital = quiet.run.vital(quiet.now / SECOND)
    assert (vital.state, vital.paused_left_s) == ("live", 0.0)
