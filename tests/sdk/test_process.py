"""The SDK in real processes: switched off, without a daemon, forking, exiting, holding the interpreter."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import hoptui
from hoptui.node.processes import daemon_lives
from hoptui.protocol import messages
from tests.conftest import SCRIPT, TestNode, over, until
from tests.impatient import impatient_daemon


def python(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_imports_neither_the_dashboard_nor_torch_nor_nvml() -> None:
    done = python(
        """
        import sys, hoptui
        assert "hoptui.sdk" not in sys.modules
        run = hoptui.connect("x")
        import hoptui.sdk.daemon_link
        heavy = {"textual", "rich", "torch", "numpy", "pynvml", "psutil", "cyclopts", "sqlite3"}
        heavy &= set(sys.modules)
        assert not heavy, heavy
        """,
        HOPTUI="off",
    )
    assert done.returncode == 0, done.stderr


LOOP = """
import hoptui
run = hoptui.connect("x")
knob = run.knob("n", 4, min=1, max=9)
total = 0
for i in run.iterations(50):
    with run.phase("update"):
        total += knob.value
    run.log(total=total)
print(total)
"""


def test_off_is_the_same_loop_without_a_trace(node: TestNode) -> None:
    out, err = node.start(LOOP, HOPTUI="off").communicate(timeout=30)
    assert (out.strip(), err) == ("200", "")
    assert not node.daemon_pid()


@pytest.mark.parametrize("obstacle", ["open to others", "state", "too long", "relative"])
@pytest.mark.guarantee("no-daemon")
def test_no_daemon_possible_is_one_warning(node: TestNode, obstacle: str) -> None:
    directory = node.where.directory
    if obstacle == "relative":
        directory = Path("hop")
        out, err = node.start(LOOP, HOPTUI_DIR="hop").communicate(timeout=30)
    elif obstacle == "open to others":
        directory.chmod(0o755)
        out, err = node.start(LOOP).communicate(timeout=30)
    elif obstacle == "state":
        directory = node.where.state
        directory.mkdir(mode=0o755)
        out, err = node.start(LOOP).communicate(timeout=30)
    else:
        out, err = node.start(LOOP, HOPTUI_DIR=f"{directory}/{'x' * 120}").communicate(timeout=30)
    assert out.strip() == "200"
    assert len(err.strip().splitlines()) == 1
    assert str(directory) in err
    assert not node.daemon_pid()


@pytest.mark.guarantee("no-daemon")
def test_a_daemon_that_cannot_start_is_one_warning(node: TestNode) -> None:
    script = """
import time, sys, hoptui
from hoptui.sdk import daemon_link
daemon_link.START_AGAIN_S = (0.0,)
daemon_link.PULSE_EVERY_S = 0.05
tried, ensure = [], daemon_link.DaemonLink._ensure_daemon
def seen(*given):
    tried.append(given)
    return ensure(*given)
daemon_link.DaemonLink._ensure_daemon = seen
sys.executable = "/nonexistent/python"
run = hoptui.connect("x")
for i in run.iterations():
    time.sleep(0.01)
    run.log(i=i)
    if len(tried) >= 4:
        break
print("done")
"""
    out, err = node.start(script).communicate(timeout=30)
    assert out.strip() == "done"
    assert len(err.strip().splitlines()) == 1
    assert "the daemon could not be started" in err


@pytest.mark.parametrize(
    ("end", "code", "reason"),
    [
        ("pass", 0, "finished"),
        ("sys.exit(3)", 3, "failed"),
        ("raise RuntimeError('boom')", 1, "exception"),
        ("os.kill(os.getpid(), 9)", -9, "killed"),
        ("os._exit(4)", 4, "failed"),
    ],
)
def test_every_way_to_end_is_reported(node: TestNode, end: str, code: int, reason: str) -> None:
    script = f"""
import os, sys, time, hoptui
run = hoptui.connect("ending")
sys.stdin.readline()
for i in run.iterations(10):
    run.log(i=i)
{end}
"""
    if reason == "killed":  # the others' last word may be late
        impatient_daemon(node, last_words_s=0.3)
    viewer = node.viewer()
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        env=node.environment,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    run = viewer.run("ending")
    began = time.monotonic()
    child.communicate("go\n", timeout=20)
    assert time.monotonic() - began < 5
    assert child.returncode == code
    state = until(lambda: (s := viewer.run("ending")).exit_reason and s, what="the end")
    assert state.exit_reason == reason
    if reason == "exception":
        assert state.exit_detail == "RuntimeError: boom"
    if reason == "finished":  # the last row arrived before the Bye
        rows = viewer.fetch(cursors={f"run/{run.run}": 0}).columns[0]
        assert list(rows.column("i")) == list(range(10))


@pytest.mark.parametrize(
    ("end", "reason"), [("pass", "finished"), ("run.close()", "finished"), ("raise ValueError", "exception")]
)
def test_the_end_is_recorded_in_a_job_whose_end_kills_the_daemon(
    node: TestNode, end: str, reason: str
) -> None:
    script = LOOP.replace("print(total)", end)
    daemon = node.daemon()
    child = node.start(script, SLURM_JOB_ID="7")
    child.wait(20)
    os.kill(daemon, signal.SIGKILL)
    killed = time.time()
    until(lambda: not daemon_lives(node.where), what="the end of the daemon")  # and of all its threads
    viewer = node.viewer()
    state = until(lambda: (s := viewer.run("x")).exit_reason and s, what="the end")
    assert state.exit_reason == reason
    assert state.exited_wall <= killed
    rows = viewer.fetch(cursors={f"run/{state.run}": 0}).columns[0]
    assert rows.steps()[-1] == 49


@pytest.mark.guarantee("daemon-hangs")
@pytest.mark.parametrize("job", ["", "7"])
def test_exit_is_quick_beside_a_stopped_daemon(node: TestNode, job: str) -> None:
    script = LOOP.replace("print(total)", "import time; time.sleep(1.0); print('x', flush=True)")
    node.daemon()
    child = node.start(script, SLURM_JOB_ID=job)
    assert child.stdout is not None
    os.kill(node.daemon_pid(), signal.SIGSTOP)
    try:
        assert child.stdout.readline() == "x\n"
        began = time.monotonic()
        assert child.wait(10) == 0
        assert time.monotonic() - began < 2.5
    finally:
        os.kill(node.daemon_pid(), signal.SIGCONT)


@pytest.mark.guarantee("forked-child")
def test_a_forked_child_is_silent_and_holds_no_connection(node: TestNode) -> None:
    script = """
import os, sys, time, hoptui
run = hoptui.connect("forking")
knob = run.knob("n", 4, min=1, max=9)
for i in run.iterations():
    time.sleep(0.01)
    run.log(i=i)
    if i == 100:
        child = os.fork()
        if child == 0:
            paths = []
            for fd in os.listdir("/proc/self/fd"):
                try: paths.append(os.readlink(f"/proc/self/fd/{fd}"))
                except OSError: pass
            run.log(i=-1); run.event("from the child"); run.boundary(7)
            import socket, stat
            ours = 0
            for fd in range(64):
                try:
                    s = socket.socket(fileno=os.dup(fd)); peer = s.getpeername(); s.close()
                    ours += str(peer).find("runs.sock") >= 0
                except OSError: pass
            print(ours, run._core.state.alive, knob.value, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
"""
    child = node.start(script)
    assert child.stdout is not None
    assert child.stdout.readline() == "0 False 4\n"
    viewer = node.viewer()
    run = viewer.run("forking")
    at = viewer.vital(run.run).step
    until(lambda: viewer.vital(run.run).step > at, what="the parent's progress")
    delta = viewer.fetch(cursors={f"run/{run.run}": 0})
    assert -1.0 not in delta.columns[0].column("i")
    assert not [e for e in delta.events if "child" in e.text]


@pytest.mark.guarantee("forked-child")
@pytest.mark.parametrize(
    "ranks", ["None", "FolderStore(Path(sys.argv[1]), 0)"], ids=["one rank", "two ranks"]
)
def test_a_child_that_is_forked_while_threads_hold_locks_goes_on_and_ends(
    node: TestNode, tmp_path: Path, ranks: str
) -> None:
    """Data workers of a run on several ranks hung: the child woke a thread that it does not have."""
    script = f"""
import faulthandler, gc, os, select, signal, sys, threading, hoptui
from pathlib import Path
from tests.sdk.two_ranks import FolderStore
run = hoptui.connect("forking", ranks={ranks})
run.boundary()
events = [each for each in gc.get_objects() if isinstance(each, threading.Event)]
def hold(held):
    for each in events:
        each._cond.acquire()
    os.write(held, b"!")
    signal.pause()
ready, held = os.pipe()
threading.Thread(target=hold, args=(held,), daemon=True).start()
os.read(ready, 1)
child = os.fork()
if child == 0:
    faulthandler.dump_traceback_later(15, exit=True)
    run.log(i=1)
    run.boundary()
    run.close()
    sys.exit(3)
if not select.select([os.pidfd_open(child)], [], [], 20)[0]:
    os.kill(child, signal.SIGKILL)  # it hangs before its first line
print(len(events), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""
    node.daemon()
    child = node.start(script, str(tmp_path))
    out, errors = child.communicate(timeout=60)
    events, ended = map(int, out.split())
    assert ended == 3, errors
    assert events > 3


@pytest.mark.guarantee("daemon-hangs")
def test_memory_is_flat_beside_a_stopped_daemon(node: TestNode) -> None:
    script = """
import sys, time, hoptui, psutil, json
run = hoptui.connect("flat")
me = psutil.Process()
values = {f"m{i}": float(i) for i in range(40)}
def some(n):
    for i in range(n):
        run.log(values)
        if i % 500 == 0: time.sleep(0.01)
print("ready", flush=True); sys.stdin.readline()
some(20000)
before = me.memory_info().rss
some(80000)
print(json.dumps([before, me.memory_info().rss, len(run._core.state.rows)]))
"""
    node.daemon()
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        env=node.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    os.kill(node.daemon_pid(), signal.SIGSTOP)
    try:
        out, _ = child.communicate("go\n", timeout=60)
    finally:
        os.kill(node.daemon_pid(), signal.SIGCONT)
    before, after, waiting = json.loads(out)
    assert waiting <= 4096
    assert after - before < 8 << 20


def test_commands_are_accepted_while_the_loop_is_busy_in_python(node: TestNode) -> None:
    script = """
import hoptui
run = hoptui.connect("busy")
run.knob("n", 4, min=1, max=9)
for i in run.iterations():
    sum(k * k for k in range(3_000_000))
    run.log(i=i)
"""
    node.start(script)
    viewer = node.viewer()
    run = viewer.run("busy")
    outcome = viewer.outcome(viewer.command(run, knob="n", value=5))
    assert (outcome.stage, outcome.effective) == ("applied", 5)


@pytest.mark.guarantee("link-fails")
def test_the_link_gives_up_after_errors_and_training_goes_on(node: TestNode) -> None:
    script = """
import time, hoptui
from hoptui.sdk import daemon_link
run = hoptui.connect("breaking")
def broken(*a): raise RuntimeError("planted")
daemon_link.DaemonLink._send_due = broken
for i in run.iterations(200):
    time.sleep(0.005)
    run.log(i=i)
print("done", run._core.state.alive)
"""
    out, err = node.start(script).communicate(timeout=30)
    assert out.strip() == "done False"
    assert len(err.strip().splitlines()) == 1
    assert "planted" in err


@pytest.mark.guarantee("second-process")
def test_a_second_process_of_a_live_run_becomes_a_run_of_its_own(node: TestNode) -> None:
    script = """
import sys, json, time, hoptui
run = hoptui.connect("twin", resume=json.loads(sys.argv[1]))
for i in run.iterations():
    time.sleep(0.01)
    run.log(i=i)
"""
    state = json.dumps({"run": "twintwin", "epoch": 0})
    node.start(script, state)
    viewer = node.viewer()
    viewer.run("twin")
    node.start(script, state)
    runs = until(lambda: len(r := viewer.state().runs) == 2 and r, what="two runs")
    assert len({r.run for r in runs}) == 2
    assert all(not r.exit_reason for r in runs)


def test_a_stopped_daemon_is_not_started_again_by_the_run(node: TestNode) -> None:
    script = f"""
from hoptui.sdk import daemon_link
from hoptui.node import processes
daemon_link.PULSE_EVERY_S = 0.1
ensure = daemon_link.DaemonLink._ensure_daemon
def seen(self, where, now):
    gone = not processes.daemon_lives(where)
    ensure(self, where, now)
    if gone:
        print("none is there", flush=True)
daemon_link.DaemonLink._ensure_daemon = seen
processes.start_daemon = lambda where: print("started one", flush=True)
{SCRIPT}
"""
    node.daemon()
    child = node.start(script)
    viewer = node.viewer()
    viewer.run()
    pid = node.daemon_pid()
    viewer.send(messages.Shutdown(id=1))
    until(lambda: over(pid), what="the daemon's end")
    assert child.stdout is not None
    assert {child.stdout.readline() for _ in range(5)} == {"none is there\n"}
    assert not node.daemon_pid()
    assert child.poll() is None
    again = node.viewer("again")
    until(lambda: again.vital(again.run().run).state == "live", what="the run to come back")


@pytest.mark.guarantee("private-recordings")
def test_traces_go_next_to_the_recordings_in_a_private_directory(
    node: TestNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPTUI", "off")
    run = hoptui.connect("x")
    assert run.trace_folder == node.where.state / "traces"
    assert stat.S_IMODE(node.where.state.stat().st_mode) == 0o700
    node.where.state.chmod(0o755)
    assert run.trace_folder == Path(), "nobody else may read or replace it"
