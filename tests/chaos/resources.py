"""Acts in which something runs out or is not what it was: the disk, limits of a process, pids, the clock."""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measure import until
from tests.chaos import checks, kernel
from tests.chaos.acts import LIMIT_S, Result, chaos_node, judge
from tests.chaos.node import Actor, ChaosNode, send

DISK = 12 * kernel.MiB
DAY_S = 86_400.0
KNOWN_ROWS = 200
"""A run with so many rows is on disk: a daemon that is killed before has not written that there is one."""
TOLD_S = 20.0
"""A viewer is told within this time that history is not being kept."""


def disk(seconds: float, seed: int, denied: dict[str, str]) -> Result:
    """Fill the disk under the recordings, take its inodes, kill the daemon meanwhile, then break it."""
    result = Result()
    if "full disk" in denied:
        return result
    with chaos_node() as node, kernel.small_disk(node.where.state, DISK, inodes=64):
        node.start_run()
        node.start_viewer()
        _live(node)
        for kill in (False, True):
            with node.disturbance("full_disk"):
                ballast = kernel.fill(node.where.state)
                told = _history_told(node)
                if kill:
                    send(node.daemon, signal.SIGKILL)
                    time.sleep(min(10.0, seconds / 8))
                ballast.unlink()
            if not told:
                result.violations.append(f"nobody was told that the disk is full within {TOLD_S:g} s")
            _live(node)
        with node.disturbance("no_inodes"), _without_inodes(node):
            late = node.start_run()
            until(lambda: late.ledger.rows > 100, LIMIT_S, "a run on a disk without inodes")
        _live(node)
        judge(node, result)
    if "failing disk" not in denied:
        broken = _broken_disk()
        result.violations += [f"broken disk: {one}" for one in broken.violations]
        result.figures["broken disk"] = broken.figures
    return result


def _broken_disk() -> Result:
    result = Result()
    with chaos_node() as node, kernel.failing_disk(node.where.state) as fail:
        run = node.start_run()
        node.start_viewer()
        _live(node)
        with node.disturbance("broken_disk"):
            fail()
            if not _history_told(node):
                result.violations.append("nobody was told that the disk is broken")
            send(node.daemon, signal.SIGKILL)
            before = run.ledger.rows
            _live(node)
            until(lambda: run.ledger.rows > before + 100, LIMIT_S, "a run with a broken disk")
        judge(node, result, rows=False)
    return result


@contextlib.contextmanager
def _without_inodes(node: ChaosNode) -> Iterator[None]:
    made: list[Path] = []
    with contextlib.suppress(OSError):
        while True:
            made.append(node.where.state / f"inode-{len(made)}")
            made[-1].touch()
    try:
        yield
    finally:
        for path in made:
            path.unlink(missing_ok=True)


def _history_told(node: ChaosNode) -> bool:
    """Wait until a viewer has been told that something is wrong with history."""
    since, viewers = time.monotonic_ns(), node.of("viewer")
    with contextlib.suppress(TimeoutError):
        until(lambda: any(line.get("history") and line["t"] > since for line in _again(viewers)), TOLD_S)
        return True
    return False


def _again(viewers: list[Actor]) -> Iterator[dict[str, Any]]:
    for viewer in viewers:
        yield from viewer.journal.lines("seen")


def _live(node: ChaosNode) -> None:
    """Wait until a daemon shows every audited run as live."""

    def live() -> bool:
        vitals = node.fetch().vitals
        return all(
            a.run in vitals and vitals[a.run].state == "live" for a in checks.speakers(node) if a.alive
        )

    until(live, LIMIT_S, "every run to be live")


def limits(seconds: float, seed: int, denied: dict[str, str]) -> Result:
    """Limit open files, memory and file sizes of a daemon and of a run that live, then allow them again."""
    result = Result()
    with chaos_node() as node:
        node.start_control()
        run = node.start_run()
        node.start_viewer()
        _live(node)
        share = min(6.0, seconds / 8)
        for kind, leave in (
            (resource.RLIMIT_NOFILE, 2),
            (resource.RLIMIT_AS, kernel.MiB),
            (resource.RLIMIT_FSIZE, 1),
        ):
            with node.disturbance("limits"), _limited(node.daemon, kind, leave):
                extra = node.start_viewer()
                time.sleep(share)
                node.kill(extra)
            _live(node)
        with node.disturbance("limits"), _limited(run.child.pid, resource.RLIMIT_NOFILE, 0):
            send(node.daemon, signal.SIGKILL)
            before = run.ledger.rows
            time.sleep(share)
            if run.ledger.rows < before + 50 * share / 2:
                result.violations.append("a run without file descriptors does not go on")
        _live(node)
        judge(node, result)
    return result


@contextlib.contextmanager
def _limited(pid: int, kind: int, leave: int) -> Iterator[None]:
    """Limit a process to what it has now and `leave` more; files to that size."""
    process = psutil.Process(pid)
    used = {
        resource.RLIMIT_NOFILE: max(int(file.name) for file in Path(f"/proc/{pid}/fd").iterdir()) + 1,
        resource.RLIMIT_AS: process.memory_info().vms,
        resource.RLIMIT_FSIZE: 0,
    }[kind]
    before = process.rlimit(kind)
    process.rlimit(kind, (used + leave, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(psutil.Error):
            process.rlimit(kind, before)


def pids(seconds: float, seed: int, denied: dict[str, str]) -> Result:
    """Kill a run, and give its pid to another process, before a daemon looks again."""
    result = Result()
    if "reused pid" in denied:
        return result
    with chaos_node() as node:
        node.start_viewer(0.0)
        for daemon_lives in (True, False):
            run = node.start_run()
            _live(node)
            until(lambda run=run: run.ledger.rows > KNOWN_ROWS, LIMIT_S, "rows")  # type: ignore[misc]
            with node.disturbance("reused_pid"):
                send(node.daemon, signal.SIGSTOP if daemon_lives else signal.SIGKILL)
                node.kill(run)
                taken = _with_pid(run.child.pid)
                try:
                    if daemon_lives:
                        send(node.daemon, signal.SIGCONT)
                    until(lambda run=run: node.state_of(run) == "exited", LIMIT_S, "the end of a run")  # type: ignore[misc]
                except TimeoutError:
                    result.violations.append(
                        f"{run.name} is shown as {node.state_of(run)}, and its pid is reused"
                    )
                finally:
                    result.figures[f"pid reused, daemon {'stopped' if daemon_lives else 'killed'}"] = (
                        taken is not None
                    )
                    if taken is not None:
                        taken.kill()
                        taken.wait()
        judge(node, result)
    return result


def _with_pid(pid: int) -> subprocess.Popen[bytes] | None:
    """Start a process with this pid. None if others of the machine were quicker a hundred times."""
    for _ in range(100):
        kernel.set_next_pid(pid)
        child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
        if child.pid == pid:
            return child
        child.kill()
        child.wait()
    return None


def clock(seconds: float, seed: int, denied: dict[str, str]) -> Result:
    """Let the wall clock of the daemon jump, forth and back, while commands are given."""
    result = Result()
    with chaos_node() as node:
        shift = node.bench.base / "clock"
        _write(shift, 0.0)
        first = node.start_run()
        _live(node)
        first.child.terminate()
        first.child.wait(30)
        node.start_run()
        node.start_viewer()
        for jump_s in (60 * DAY_S, -2 * DAY_S, 3600.0, 0.0):
            with node.disturbance("kill_daemon"):
                served = _shifted(node, shift)
            result.figures["clock shifted"] = result.figures.get("clock shifted", True) and served
            _live(node)
            with node.disturbance("clock"):
                _write(shift, jump_s)
                # Old recordings are removed half a minute after the start.
                time.sleep(max(seconds / 8, 35.0 if jump_s > DAY_S and seconds > 60 else 0.0))
        if not node.where.recording(first.run).exists():
            result.violations.append("a recording was deleted because of a wrong clock")
        judge(node, result)
    return result


def _write(shift: Path, seconds: float) -> None:
    """Replace the file in one step: the daemon reads it at any time."""
    new = shift.with_suffix(".new")
    new.write_text(str(seconds))
    new.replace(shift)


def _shifted(node: ChaosNode, shift: Path) -> bool:
    """Replace the daemon by one whose wall clock is shifted. False if another one is always quicker."""
    for _ in range(20):
        before = node.daemon
        send(before, signal.SIGKILL)
        daemon = node.start("daemon", "-m", "tests.chaos.shifted_daemon", str(shift))
        until(lambda before=before: node.daemon not in (0, before), LIMIT_S, "a daemon")  # type: ignore[misc]
        if node.daemon == daemon.child.pid:
            return True
        daemon.child.wait(30)
    return False
