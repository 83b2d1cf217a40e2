"""The viewer's client on the daemon behind a real sshd: attached, thin, cut, killed. Skipped where there is
no sshd."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

import psutil
import pytest

from benchmarks.sshd import HOST, STRANGER, NoSshdError, Sshd, found_sshd
from hoptui.client.client import Client
from hoptui.client.routes import There
from hoptui.client.target import Place
from hoptui.node.addresses import addresses
from hoptui.node.processes import user_name
from tests.conftest import TestNode, until

YOUNG_S = 2.0
"""How old what is shown over a thin line may be; half of the looks, because a busy machine may stand still
for one."""
KILLED = """
import sys, time
from hoptui.client.client import Client
from hoptui.client.target import Place
from hoptui.client.routes import There
client = Client(way=There(Place("far"), hoptui=sys.argv[1]))
client.start()
while client.link.state != "live":
    time.sleep(0.01)
print("live", flush=True)
time.sleep(60)
"""


@pytest.fixture
def sshd(node: TestNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    """An sshd behind which `node` is; this process itself is on another."""
    try:
        found_sshd()
    except NoSshdError as error:
        pytest.skip(str(error))
    base = Path(tempfile.mkdtemp(prefix="hoptui-ssh-"))
    monkeypatch.setenv("PATH", f"{base}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("HOPTUI_DIR", str(base / "here"))
    try:
        served = Sshd(base, node.where)
        yield served
        served.close()
    finally:
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def client(sshd: Sshd) -> Iterator[Client]:
    found = Client(way=There(Place(HOST), hoptui=str(sshd.hoptui)))
    try:
        yield found
    finally:
        found.close()


def live(client: Client) -> None:
    until(
        lambda: client.link.state == "live" and client.store.node is not None, what=f"a link: {client.link}"
    )


def over(process: psutil.Process) -> bool:
    """Gone, or waiting for whoever adopted it to notice."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def forwards(process: psutil.Process, node: TestNode) -> bool:
    """Whether it is the other end of a tunnel, on this node."""
    its = (process.info["environ"] or {}).get("HOPTUI_DIR")
    return its == str(node.where.directory) and "forward" in process.info["cmdline"]


def left_behind() -> list[str]:
    """Sockets of tunnels, and links to sockets at their other ends."""
    return [*map(str, addresses().directory.glob("ssh-*"))]


def watched(client: Client) -> str:
    """The toy run, once its rows come."""
    live(client)

    def toy() -> str | None:
        node = client.store.node
        return next((r.run for r in node.runs if r.name == "toy"), None) if node else None

    run = until(toy, what="the run")
    client.watch(run)
    until(lambda: (s := client.store.series(f"run/{run}", "loss")) and s.last_step > 3, what="rows")
    return run


def test_a_run_behind_ssh_is_seen_steered_and_found_again(node: TestNode, sshd: Sshd, client: Client) -> None:
    node.start()
    client.start()
    run = watched(client)
    assert client.link.node == HOST
    command = client.send("set", run, knob="grad_accum", value=8)
    assert client.store.commands[command].origin.user == user_name()
    done = until(lambda: (c := client.store.commands[command]).stage == "applied" and c.origin.pid and c)
    assert done.origin.user == user_name()
    assert "sshd" in psutil.Process(done.origin.pid).name(), "the daemon names the process that it sees"

    steps = client.store.steps(f"run/{run}")
    assert steps is not None
    before = steps.last
    sshd.line.cut()
    until(lambda: client.link.state == "lost", what="the loss")
    assert HOST in client.link.reason
    live(client)
    until(lambda: steps.last > before + 50, what="rows after the cut")
    seen = steps.window(steps.last_t - 2_000_000_000, steps.last_t, 50)
    known = [low for low in seen.low if low == low]
    assert max(later - sooner for sooner, later in pairwise(known)) < 30, "no hole where it was cut"

    daemon = until(node.daemon_pid)
    os.kill(daemon, signal.SIGKILL)
    until(lambda: (pid := node.daemon_pid()) and pid != daemon, what="another daemon")
    before = steps.last
    until(lambda: steps.last > before, what="rows of the other daemon")
    [ours] = [p for p in psutil.Process().children() if p.name() == "ssh"]
    assert left_behind()
    client.close()
    assert over(ours)
    assert not left_behind()


def test_a_thin_line_gets_less_and_stays_young(node: TestNode, sshd: Sshd, client: Client) -> None:
    node.start()
    sshd.line.rate = 30_000.0
    client.start()
    run = watched(client)
    series = client.store.series(f"run/{run}", "loss")
    assert series is not None
    before, carried = series.last_t, sshd.line.carried
    rows, link = [], []

    def two_seconds_of_rows() -> bool:
        link.append(client.link.age_s(time.monotonic()) or 0.0)
        rows.append((client.store.now() - series.last_t) / 1e9)
        return series.last_t > before + 2_000_000_000

    until(two_seconds_of_rows, what="two seconds of rows")
    assert (sshd.line.carried - carried) / ((series.last_t - before) / 1e9) < 30_000
    assert median(link) < YOUNG_S, "less is asked for, and what is asked for comes"
    assert median(rows) < YOUNG_S


def test_nothing_is_left_of_a_viewer_that_is_killed(node: TestNode, sshd: Sshd) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(sshd.hoptui)], stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"live\n"
        [ours] = [p for p in psutil.Process(child.pid).children() if p.name() == "ssh"]
        porter = next(p for p in psutil.process_iter(["cmdline", "environ"]) if forwards(p, node))
        link = Path(porter.info["cmdline"][-1])
        assert link.is_symlink()
    finally:
        child.kill()
        child.communicate(timeout=10)
    until(lambda: over(ours) and over(porter), what="the end of both ends")
    assert not link.parent.exists()
    with_another = There(Place(HOST), hoptui=str(sshd.hoptui))
    with_another.begin(0.0)
    with_another.close()
    assert not left_behind(), "the next viewer sweeps its socket away"


@pytest.mark.parametrize(
    ("host", "hoptui", "words"),
    [(STRANGER, "hoptui", "cannot type a password"), (HOST, "/no/hoptui", "no hoptui on the PATH of far")],
)
def test_what_does_not_help_by_itself_is_told_and_not_tried_again(
    sshd: Sshd, host: str, hoptui: str, words: str
) -> None:
    client = Client(way=There(Place(host), hoptui=hoptui))
    try:
        client.start()
        until(lambda: client.link.state == "failed", what="the failure")
        assert words in client.link.reason
    finally:
        client.close()
