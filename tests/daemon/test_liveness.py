"""How a run is, as its viewers see it: after a command, without boundaries, with a rank that hangs."""

from __future__ import annotations

from hoptui.domain.columns import pack
from hoptui.domain.facts import fact
from hoptui.protocol.messages import Command, Pulse, Rows
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


def log(quiet: QuietNode, rows: int, every_s: float = 0.05) -> None:
    """The run logs rows outside of iterations, and sends a pulse."""
    for _ in range(rows):
        quiet.now += int(every_s * SECOND)
        part = pack(f"run/{RUN}", [(quiet.now, 0, {"samples": 10.0, "loss": 0.5})])
        quiet.runs.receive(b"n1", None, Rows(parts=(part,)))
    pulse = Pulse(step=0, t=quiet.now, began=False, progress_age_s=quiet.now / SECOND, phase_age_s=99.0)
    quiet.runs.receive(b"n1", None, pulse)


def logging(quiet: QuietNode) -> QuietNode:
    quiet.hello()
    quiet.runs.receive(b"n1", None, Pulse(step=0, began=False))
    return quiet


def test_rows_are_the_progress_and_the_rate_of_a_loop_without_boundaries(quiet: QuietNode) -> None:
    log(logging(quiet), 100)
    vital = quiet.run.vital(quiet.now / SECOND)
    assert (vital.state, vital.logs_only, vital.progress_age_s) == ("live", True, 0.0)
    assert quiet.run.current_metrics()["samples_per_s"] == 200.0
    quiet.now += 4 * SECOND
    quiet.runs.receive(b"n1", None, Pulse(step=0, t=quiet.now, began=False, progress_age_s=99.0))
    vital = quiet.run.vital(quiet.now / SECOND)
    assert (vital.state, vital.because) == ("busy", fact("state.no_row", age_s=4.0))


def test_a_loop_that_logs_rarely_is_live_between_its_rows(quiet: QuietNode) -> None:
    log(logging(quiet), 12, every_s=10.0)
    assert quiet.run.vital(quiet.now / SECOND + 4.0).state == "live"


def test_commands_to_a_loop_without_boundaries_are_refused_at_once(quiet: QuietNode) -> None:
    logging(quiet)
    for number, verb in enumerate(("pause", "stop", "checkpoint")):
        command = Command(id=f"a{number}", run=RUN, epoch=1, verb=verb)  # type: ignore[arg-type]
        _, onward = quiet.node.book.submit(command, quiet.run, "v1", quiet.wall(), quiet.now)
        assert onward is not None  # it may log before its first iteration
    log(quiet, 100)
    for number, verb in enumerate(("set", "pause", "stop", "checkpoint")):
        command = Command(id=f"b{number}", run=RUN, epoch=1, verb=verb)  # type: ignore[arg-type]
        record, onward = quiet.node.book.submit(command, quiet.run, "v1", quiet.wall(), quiet.now)
        assert (record.stage, record.code, onward) == ("rejected", "no_boundaries", None)
    quiet.runs.receive(b"n1", None, Pulse(step=1))
    assert not quiet.run.logs_only


def test_rising_numbers_of_rows_are_iterations(quiet: QuietNode) -> None:
    """As `wandb.log` gives them, or `run.log(step=…)` outside of boundaries: commands are refused all the
    same."""
    logging(quiet)
    for step in (0, 0, 10, 10, 20, 15):
        quiet.now += SECOND
        part = pack(f"run/{RUN}", [(quiet.now, step, {"loss": 0.5})])
        quiet.runs.receive(b"n1", None, Rows(parts=(part,)))
    for step in range(21, 31):
        quiet.now += SECOND // 10
        quiet.runs.receive(b"n1", None, Rows(parts=(pack(f"run/{RUN}", [(quiet.now, step, {"loss": 0.5})]),)))
    quiet.runs.receive(b"n1", None, Pulse(step=0, t=quiet.now, began=False, progress_age_s=99.0))
    vital = quiet.run.vital(quiet.now / SECOND)
    assert (vital.state, vital.logs_only, vital.step) == ("live", True, 31)
    assert vital.iteration_s == 0.1
    ring = quiet.node.rings.get(f"run/{RUN}")
    assert ring is not None
    seconds = [s for part in ring.parts() for _, _, row in part.rows() if (s := row.get("iteration_s"))]
    assert seconds[:3] == [0.2, 0.2, 1.1]
    command = Command(id="p", run=RUN, epoch=1, verb="pause")
    record, _ = quiet.node.book.submit(command, quiet.run, "v1", quiet.wall(), quiet.now)
    assert (record.stage, record.code) == ("rejected", "no_boundaries")
