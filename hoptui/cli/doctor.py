"""`hoptui doctor`: what works on this node and what does not, and what to do about it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from hoptui import __version__
from hoptui.cli.options import Json
from hoptui.cli.terminal import dump, interactive, say
from hoptui.viewer import format as text
from hoptui.wire.addresses import AddressError, Addresses, addresses, secure

LEAST_FREE = 1 << 30
SAMPLER_S = 5.0
NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "9p",
    "afs",
    "fuse.sshfs",
    "fuse.gluster",
)
SYMBOLS = {"ok": "✓", "warning": "⚠", "failed": "✕"}


class Check(NamedTuple):
    """One thing that was looked at. `advice` is empty where nothing needs to be done."""

    id: str
    status: Literal["ok", "warning", "failed"]
    detail: str
    advice: str = ""


def doctor(*, json: Json = False) -> int:
    """What works on this node and what does not, and why; exit code 0 all well, 1 with warnings, 2 with failures."""
    checks = []
    for check in _checks():
        checks.append(check)
        if not json:
            say(f"{SYMBOLS[check.status]} {check.id:<18} {check.detail}")
            if check.advice:
                say(f"  {'':<18} → {check.advice}")
    if json:
        dump({"checks": [check._asdict() for check in checks]})
    found = {check.status for check in checks}
    return 2 if "failed" in found else 1 if "warning" in found else 0


def _checks() -> Iterator[Check]:
    yield Check(
        "python", "ok", f"Python {platform.python_version()} at {sys.executable}, hoptui {__version__}"
    )
    yield _zmq()
    yield _terminal()
    try:
        where = addresses()
    except AddressError as error:
        yield Check("runtime-directory", "failed", str(error), "set HOPTUI_DIR to a directory of your own")
        return
    yield Check("runtime-directory", "ok", f"{where.directory} is yours alone")
    yield _state_directory(where)
    yield from _daemon(where)


def _zmq() -> Check:
    import zmq

    version = f"libzmq {zmq.zmq_version()}, pyzmq {zmq.pyzmq_version()}"
    if not zmq.has("ipc"):
        return Check("zmq", "failed", f"{version} has no ipc", "install pyzmq from its wheel")
    if zmq.zmq_version_info() < (4, 3, 5):
        return Check("zmq", "failed", f"{version}; 4.3.5 is the least", "pip install --upgrade pyzmq")
    return Check("zmq", "ok", f"{version}, with ipc")


def _terminal() -> Check:
    if not interactive():
        return Check("terminal", "ok", "no terminal here: plain text and JSON only")
    width, height = shutil.get_terminal_size()
    colours = "true colour" if os.environ.get("COLORTERM") in ("truecolor", "24bit") else "256 colours"
    name = os.environ.get("TERM", "")
    if "256" not in name and colours != "true colour":
        colours = "16 colours"
    detail = f"{name or 'TERM is not set'}, {colours}, {width} × {height}, {sys.stdout.encoding}"
    if (sys.stdout.encoding or "").lower().replace("-", "") != "utf8":
        return Check("terminal", "warning", detail, "without UTF-8 it draws in ASCII: export LANG=C.UTF-8")
    if name in ("", "dumb"):
        return Check("terminal", "failed", detail, "the dashboard needs a real TERM, e.g. xterm-256color")
    if width < 80 or height < 24:
        return Check("terminal", "warning", detail, "80 × 24 is the least for more than the key numbers")
    return Check("terminal", "ok", detail)


def _state_directory(where: Addresses) -> Check:
    try:
        secure(where.state)
        free = shutil.disk_usage(where.state).free
    except (AddressError, OSError) as error:
        return Check(
            "state-directory", "failed", str(error), "set HOPTUI_STATE_DIR to a directory of your own"
        )
    kind = file_system(where.state, Path("/proc/self/mounts").read_text())
    detail = f"{where.state}, {text.gib(free)} GiB free, {kind}"
    if kind.startswith(NETWORK):
        return Check(
            "state-directory", "warning", detail, "recordings need a local disk: set HOPTUI_STATE_DIR"
        )
    if free < LEAST_FREE:
        return Check("state-directory", "warning", detail, "history is not kept on a full disk: make room")
    return Check("state-directory", "ok", detail)


def file_system(path: Path, mounts: str) -> str:
    """The type of the file system that holds `path`, given the text of /proc/self/mounts."""
    best, kind = "", "unknown"
    for line in mounts.splitlines():
        _, point, its_kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        inside = path.resolve().is_relative_to(point)
        if inside and len(point) >= len(best):
            best, kind = point, its_kind
    return kind


def _daemon(where: Addresses) -> Iterator[Check]:
    from hoptui.cli.node import look
    from hoptui.cli.terminal import Fail
    from hoptui.wire import presence

    there = presence.daemon_lives(where)
    try:
        with look() as seen:
            node = seen.node
            found = "is running" if there else "was not running and has been started (it leaves when idle)"
            yield Check("daemon", "ok", f"{found}, pid {node.pid}, hoptui {node.version}")
            before = time.monotonic()
            seen.refresh()
            trip = text.seconds(time.monotonic() - before)
            yield Check("viewers-socket", "ok", f"{where.viewers} answers in {trip}")
            until = time.monotonic() + SAMPLER_S
            while not seen.node.gpus and seen.node.sampler and time.monotonic() < until:
                time.sleep(0.1)
                seen.refresh()
            node = seen.node
            if node.sampler:
                yield Check("sampler", "failed", node.sampler, f"see {where.log}")
            if node.history:
                yield Check("history", "warning", node.history, "see state-directory")
    except Fail as error:
        yield Check("daemon", "failed", str(error), f"see {where.log}")
        return
    working = [gpu for gpu in node.gpus if not gpu.reason]
    if working:
        names = ", ".join(f"{gpu.index}: {text.clean(gpu.name)}" for gpu in working)
        yield Check("nvml", "ok", f"{names}, driver {working[0].driver or 'unknown'}")
    for gpu in node.gpus:
        if gpu.reason:
            yield Check("nvml", "warning", f"GPU {gpu.index}: {gpu.reason}", "nvidia-smi says more")
    if not node.gpus:
        advice = "host and training panels work; readings need an NVIDIA driver on this node"
        yield Check("nvml", "warning", node.gpu_reason or "no GPU was found", advice)
