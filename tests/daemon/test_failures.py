"""What must not break a run or the view of it, each with real processes: killed, stopped, forked, hostile,
full."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
from typing import Any, Literal

import psutil
import pytest
import zmq

from hoptui.presentation import sentences
from hoptui.protocol import codec, messages
from hoptui.protocol.messages import RunState
from tests.conftest import SCRIPT, RawViewer, TestNode, until
from tests.impatient import impatient_daemon


def steps(viewer: RawViewer, run: RunState) -> int:
    return viewer.vital(run.run).step


def moving(viewer: RawViewer, run: RunState) -> None:
    """The run makes progress, as the viewer sees it."""
    before = steps(viewer, run)
    until(lambda: steps(viewer, run) > before, what="progress")


@pytest.mark.guarantee("daemon-killed")
def test_daemon_killed_training_goes_on_and_its_history_is_whole(node: TestNode) -> None:
    child = node.start()
    viewer = node.viewer()
    run = viewer.run()
    until(lambda: steps(viewer, run) > 150, what="more than a second of history")
    os.kill(node.daemon_pid(), signal.SIGKILL)
    until(lambda: not node.daemon_pid(), what="the daemon's end")
    assert child.poll() is None

    listed: list[Any] = until(
        lambda: [r for r in json.loads(node.hoptui("ls", "--json").stdout) if r["state"] == "live"],
        what="the run, live again",
    )
    assert [r["run"] for r in listed] == [run.run]
    after = node.viewer("after")
    moving(after, after.run())
    source = f"run/{run.run}"
    query = messages.Query(id=1, source=source, names=("loss",), points=4096)

    def recorded() -> list[int]:
        answer = after.ask(query, messages.Buckets)
        return sorted(step for step in memoryview(answer.step).cast("q") if step >= 0)

    seen = until(lambda: (s := recorded()) and s[-1] > 300 and s, what="the past")
    # A row an iteration, from the first one on: the last unflushed second was sent again by the run.
    assert seen == list(range(seen[-1] + 1))


@pytest.mark.guarantee("viewer-gone")
def test_viewer_killed_changes_nothing(node: TestNode) -> None:
    node.start()
    viewer = node.viewer()
    run = viewer.run()
    follower = (
        "import sys; sys.path.insert(0, ''); from hoptui.cli.main import main; sys.argv = ['hoptui', "
        "'watch', 'toy']; main()"
    )
    watching = node.start(follower)
    assert watching.stdout is not None
    assert watching.stdout.readline()
    watching.kill()
    watching.wait(10)
    moving(viewer, run)
    assert viewer.vital(run.run).state == "live"


@pytest.mark.guarantee("viewer-gone")
def test_viewer_stopped_is_forgotten_and_finds_back(node: TestNode) -> None:
    impatient_daemon(node, gone_s=1.5, heal_s=0.2)
    node.start()
    node.viewer("first").run()
    stopped = node.spawn([sys.executable, "-m", "hoptui", "watch", "toy", "--every", "0.2", "--json"])
    assert stopped.stdout is not None
    assert stopped.stdout.readline()
    viewer = node.viewer()
    run = viewer.run()
    stopped.send_signal(signal.SIGSTOP)
    # It does not ask any more: after a while it is no viewer, and nothing has piled up for it.
    memory = psutil.Process(node.daemon_pid()).memory_info().rss
    until(lambda: viewer.state().viewers == 1, what="the stopped viewer to be forgotten")
    moving(viewer, run)
    assert psutil.Process(node.daemon_pid()).memory_info().rss - memory < 16 << 20
    at = steps(viewer, run)
    stopped.send_signal(signal.SIGCONT)
    for line in stopped.stdout:
        if json.loads(line)["iteration"] > at:
            break
    assert stopped.poll() is None


FORKING = """
import os, sys, time, hoptui
run = hoptui.connect("toy")
for i in run.iterations():
    time.sleep(0.01)
    run.log(loss=1.0)
    if i == 20 and os.fork() == 0:
        run.log(loss=2.0)      # a child says nothing
        print(os.getpid(), flush=True)
        time.sleep(60)
        os._exit(0)
"""


def test_trainer_killed_while_a_forked_child_lives(node: TestNode) -> None:
    child = node.start(FORKING)
    viewer = node.viewer()
    run = viewer.run()
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    try:
        moving(viewer, run)
        child.kill()
        until(lambda: viewer.vital(run.run).state == "exited", seconds=2, what="the exit to be seen")
        assert psutil.pid_exists(grandchild)
        rows = viewer.fetch(cursors={f"run/{run.run}": 0}).columns[0]
        assert 2.0 not in rows.column("loss")
    finally:
        os.kill(grandchild, signal.SIGKILL)


def test_stopped_trainer_is_not_answering_and_never_dead(node: TestNode) -> None:
    impatient_daemon(node, no_pulse_s=1.5)
    child = node.start()
    viewer = node.viewer()
    run = viewer.run()
    moving(viewer, run)
    child.send_signal(signal.SIGSTOP)
    seen = set()

    def unresponsive() -> bool:
        vital = viewer.vital(run.run)
        seen.add(vital.state)
        return (
            vital.state == "unresponsive"
            and vital.because is not None
            and vital.because.code == "state.no_pulse"
        )

    until(unresponsive, what="'not answering'")
    assert "exited" not in seen
    child.send_signal(signal.SIGCONT)
    until(lambda: viewer.vital(run.run).state == "live", what="the run to be live again")
    moving(viewer, run)


SLOW = SCRIPT.replace("time.sleep(0.01)", "time.sleep(0.5)")


def test_two_viewers_change_one_knob(node: TestNode) -> None:
    node.start(SLOW)
    first, second = node.viewer("first"), node.viewer("second")
    run = first.run()
    a = first.command(run, knob="grad_accum", value=8, expect_version=0)
    first.record(a, lambda record: record.stage == "scheduled")
    b = second.command(run, knob="grad_accum", value=16, expect_version=0)
    lost = second.outcome(b)
    assert (lost.stage, lost.code) in {("rejected", "pending_conflict"), ("rejected", "version_conflict")}
    assert str(os.getpid()) in sentences.reason(lost)  # it says who was first
    won = first.outcome(a)
    assert (won.stage, won.effective, won.version) == ("applied", 8, 1)
    late = second.outcome(second.command(run, knob="grad_accum", value=16, expect_version=0))
    assert (late.code, late.effective) == ("version_conflict", None), "it was not set"
    assert (late.before, late.wanted) == (8, 16)


RAISING = """
import time, hoptui
run = hoptui.connect("toy")
values = [4]
def put(v):
    values[0] = v
    if v == 13: raise RuntimeError("thirteen does not fit")
knob = run.knob("width", 4, min=1, max=64, apply=put, read=lambda: values[0])
for i in run.iterations():
    time.sleep(0.01)
    run.log(width=values[0])
"""


@pytest.mark.guarantee("setter-raises")
def test_a_setter_that_raises_leaves_the_old_value_and_the_training(node: TestNode) -> None:
    child = node.start(RAISING)
    viewer = node.viewer()
    run = viewer.run()
    outcome = viewer.outcome(viewer.command(run, knob="width", value=13))
    assert (outcome.stage, outcome.effective) == ("failed", 4)
    assert outcome.fields["error"] == "RuntimeError: thirteen does not fit"
    moving(viewer, run)
    assert child.poll() is None
    assert viewer.run().knobs[0].value == 4
    assert viewer.outcome(viewer.command(run, knob="width", value=5)).effective == 5


@pytest.mark.guarantee("pause-lease")
def test_a_paused_run_whose_viewer_vanished_goes_on_after_the_lease(node: TestNode) -> None:
    node.start()
    viewer, watcher = node.viewer("pausing"), node.viewer("watching")
    run = viewer.run()
    assert viewer.outcome(viewer.command(run, "pause", hold_s=1.5)).stage == "applied"
    until(lambda: watcher.vital(run.run).state == "paused", what="the pause")
    at = steps(watcher, run)
    viewer.close()
    until(lambda: watcher.vital(run.run).state == "live", what="the run to go on by itself")
    until(lambda: steps(watcher, run) > at, what="progress")
    assert any(e.code == "pause.expired" for e in watcher.fetch().events)


def test_a_renewed_pause_lasts_and_resume_ends_it(node: TestNode) -> None:
    node.start()
    viewer = node.viewer()
    run = viewer.run()
    viewer.outcome(viewer.command(run, "pause", hold_s=1.0))
    viewer.ask(messages.Lease(id=1, run=run.run, op="renew", what="pause", seconds=60), messages.LeaseState)
    until(lambda: viewer.vital(run.run).paused_left_s > 30, what="the longer lease")
    assert (
        viewer.outcome(viewer.command(run, knob="grad_accum", value=8)).stage == "applied"
    )  # at once, while paused
    viewer.outcome(viewer.command(run, "resume"))
    moving(viewer, run)


@pytest.mark.parametrize("what", ["wheel", "knobs"])
def test_a_lease_of_an_older_viewer_is_refused_and_others_may_steer(
    node: TestNode, what: Literal["wheel", "knobs"]
) -> None:
    node.start()
    older, viewer = node.viewer("older"), node.viewer()
    run = viewer.run()
    answer = older.ask(messages.Lease(id=1, run=run.run, op="take", what=what), messages.LeaseState)
    assert (answer.id, answer.run, answer.granted) == (1, run.run, False)
    assert "no longer exists" in answer.reason
    assert viewer.outcome(viewer.command(run, knob="grad_accum", value=8)).stage == "applied"


@pytest.mark.skipif(os.getuid() != 0, reason="another user can only be tried as root")
@pytest.mark.guarantee("peer-user")
def test_another_user_is_refused(node: TestNode) -> None:
    node.start()
    viewer = node.viewer()
    run = viewer.run()
    # Even with the directories wide open, so that only the kernel's word on who connects stands in the way.
    node.where.directory.parent.chmod(0o755)
    stranger = f"""
import os, zmq, sys
from hoptui.protocol import codec, messages
os.setgid(65534); os.setuid(65534)
sockets = []
for path, hello in (({str(node.where.viewers)!r}, messages.ViewerHello(protocol=1, viewer="x", client="x")),
                    ({str(node.where.runs)!r}, messages.Pulse(step=1))):
    s = zmq.Context().socket(zmq.DEALER); s.linger = 0
    s.connect("ipc://" + path)
    s.send(codec.encode(hello))
    sockets.append(s)
print([s.poll(wait) for s, wait in zip(sockets, (500, 0))])
os._exit(0)
"""
    node.where.directory.chmod(0o711)
    for path in (node.where.viewers, node.where.runs):
        path.chmod(0o666)
    out, _ = node.start(stranger).communicate(timeout=20)
    assert out.strip() == "[0, 0]"
    assert "refused a connection of nobody (uid 65534" in node.where.log.read_text()
    moving(viewer, run)


@pytest.mark.guarantee("bad-messages")
def test_random_bytes_and_mutated_messages_on_both_sockets(node: TestNode) -> None:
    node.start()
    viewer = node.viewer()
    run = viewer.run()
    pid = node.daemon_pid()
    rng = random.Random(7)
    good = [
        codec.encode(messages.ViewerHello(protocol=1, viewer="fuzz", client="fuzz")),
        codec.encode(messages.Fetch(id=1, cursors={f"run/{run.run}": 0}, wait_s=0)),
        codec.encode(messages.Query(id=2, source=f"run/{run.run}")),
        codec.encode(messages.Command(id="f", run=run.run, epoch=1, verb="set", knob="lr", value=1e-3)),
        codec.encode(messages.Lease(id=3, run=run.run, op="renew", what="pause")),
        codec.encode(messages.Pulse(step=3)),
        codec.encode(
            messages.RunHello(
                protocol=1, run="fuzzfuzz", name="f", epoch=1, nonce="n", pid=os.getpid(), started=0
            )
        ),
    ]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    for path in (node.where.viewers, node.where.runs):
        sock = context.socket(zmq.DEALER)
        sock.linger = 1000
        sock.sndhwm = 0
        sock.connect(f"ipc://{path}")
        sock.send(good[0])
        for _ in range(400):
            body = bytearray(rng.choice(good))
            for _ in range(rng.randint(0, 4)):
                body[rng.randrange(len(body))] = rng.randrange(256)
            frames = (
                [bytes(body)]
                if rng.random() < 0.8
                else [rng.randbytes(rng.randrange(64)) for _ in range(rng.randint(1, 6))]
            )
            if b"daemon.shutdown" not in body:
                sock.send_multipart(frames)
        raw = socket.socket(socket.AF_UNIX)  # and below ZeroMQ's own framing
        raw.connect(str(path))
        raw.sendall(rng.randbytes(4096))
        raw.close()
    context.destroy(linger=2000)
    moving(viewer, run)
    assert node.daemon_pid() == pid


@pytest.mark.guarantee("full-disk")
def test_full_disk_under_the_history(node: TestNode) -> None:
    impatient_daemon(node, flush_s=0.3)
    child = node.start()
    viewer = node.viewer()
    run = viewer.run()
    until(lambda: steps(viewer, run) > 50, what="a beginning")
    pid = node.daemon_pid()
    # No file of the daemon may grow past what the recording has already: every write to it fails.
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (16 << 10, resource.RLIM_INFINITY))
    reason = until(lambda: viewer.state().history, what="the daemon to say that history is not kept")
    assert str(node.where.state) in reason
    moving(viewer, run)
    assert viewer.outcome(viewer.command(run, knob="grad_accum", value=8)).stage == "applied"
    assert child.poll() is None
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    until(lambda: not viewer.state().history, what="history to be kept again")


def test_a_daemon_that_cannot_say_who_it_is_serves_all_the_same(node: TestNode) -> None:
    node.where.info.mkdir()  # as on a full disk, nothing can be written there
    child = node.start()
    until(lambda: steps_told(node) > 3, what="the run to be seen")
    assert child.poll() is None
    assert node.where.info.is_dir()
    assert f"{node.where.info} cannot be written" in node.where.log.read_text()


def steps_told(node: TestNode) -> int:
    """How far the one run has come by `hoptui ls`; 0 where there is none."""
    told = node.hoptui("ls", "--json")
    return max((run["iteration"] for run in json.loads(told.stdout)), default=0)


def test_two_runs_of_one_name(node: TestNode) -> None:
    node.start()
    node.start()
    viewer = node.viewer()
    until(lambda: len(viewer.state().runs) == 2, what="both runs")
    done = node.hoptui("set", "toy", "grad_accum=8")
    assert done.returncode == 3
    assert all(run.run in done.stderr for run in viewer.state().runs)
    assert all(k.version == 0 for run in viewer.state().runs for k in run.knobs)


def test_a_restart_voids_what_was_pending(node: TestNode) -> None:
    impatient_daemon(node, last_words_s=0.3)
    script = """
import json, sys, time, hoptui
state = json.loads(sys.argv[1]) if len(sys.argv) > 1 else None
run = hoptui.connect("toy", resume=state)
run.knob("lr", 3e-4, min=1e-6, max=1e-1)
print(json.dumps(run.state_dict()), flush=True)
for i in run.iterations():
    time.sleep(0.01 if state else 30)
    run.log(loss=1.0)
"""
    child = node.start(script)
    viewer = node.viewer()
    run = viewer.run()
    assert child.stdout is not None
    state = child.stdout.readline()
    command = viewer.command(run, knob="lr", value=1e-3)
    viewer.record(command, lambda record: record.stage == "scheduled")
    child.kill()
    child.wait(10)
    assert viewer.outcome(command).stage == "voided"
    node.start(script, state)
    again = until(lambda: (r := viewer.run()).epoch == 2 and r, what="epoch 2")
    assert again.run == run.run
    assert any(e.kind == "restarted" for e in viewer.fetch().events)
    assert viewer.outcome(viewer.command(run, knob="lr", value=1e-3)).code == "stale_epoch"


def test_the_daemon_is_single_and_leaves_when_idle(node: TestNode) -> None:
    starters = [
        subprocess.Popen(
            [sys.executable, "-m", "hoptui.daemon"], env=node.environment | {"HOPTUI_IDLE_S": "1"}
        )
        for _ in range(4)
    ]
    codes = [child.wait(30) for child in starters]
    assert codes == [0, 0, 0, 0]
    assert not node.where.viewers.exists()
    assert not node.where.info.exists()


@pytest.mark.guarantee("sockets-removed")
def test_removed_sockets_are_healed(node: TestNode) -> None:
    impatient_daemon(node, heal_s=0.1)
    viewer = node.viewer()
    for path in (node.where.viewers, node.where.runs):
        path.unlink()
    until(lambda: node.where.viewers.exists() and node.where.runs.exists(), what="new sockets")
    assert viewer.state()  # whoever was connected never noticed
    node.start()
    assert node.viewer("late").run()
