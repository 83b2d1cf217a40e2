"""The node itself: its clocks, and whether this is a container."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from hoptui import __version__
from hoptui.cli.doctor.check import Check
from hoptui.node.pid_namespace import whose_pids
from hoptui.presentation import numbers

LEAST_ZMQ = (4, 3, 5)


def python() -> Check:
    """The interpreter; an older one cannot even import this."""
    detail = f"Python {platform.python_version()} at {sys.executable}, hoptui {__version__}"
    return Check("python", "ok", detail)


def zmq() -> Check:
    """libzmq has to have ipc, and `Peer-Address` with the peer's credentials."""
    import zmq

    version = f"libzmq {zmq.zmq_version()}, pyzmq {zmq.pyzmq_version()}"
    if not zmq.has("ipc"):
        return Check("zmq", "failed", f"{version} has no ipc", "install pyzmq from its wheel")
    if zmq.zmq_version_info() < LEAST_ZMQ:
        return Check("zmq", "failed", f"{version}; 4.3.5 is the least", "pip install --upgrade pyzmq")
    return Check("zmq", "ok", f"{version}, with ipc")


def parquet() -> Check:
    """Whether `hoptui export --format parquet` can write."""
    if find_spec("pyarrow") is None:
        return Check(
            "parquet", "ok", "pyarrow is not installed: no export to Parquet", "pip install 'hoptui[parquet]'"
        )
    return Check("parquet", "ok", "pyarrow is installed")


ROOT = Path("/")
STA_UNSYNC = 0x40  # of adjtimex(2)
JUMPED_S = 2.0
IN_CGROUPS = ("docker", "kubepods", "containerd", "libpod", "lxc", "slurm")


def clock(
    daemon_started: float | None,
    root: Path = ROOT,
    synchronised: Callable[[], bool | None] | None = None,
) -> Check:
    """Check whether the wall clock is synchronised and has not jumped. Users compare displayed times.

    `daemon_started` is the number of seconds that the wall clock gained on the monotonic clock since the
    daemon started; None if unknown.
    """
    boot = _text(root / "proc/sys/kernel/random/boot_id")[:8]
    synced = (synchronised or ntp)()
    how = {True: "synchronised", False: "not synchronised", None: "synchronisation unknown"}[synced]
    detail = f"{how}, boot {boot or 'unknown'}"
    if daemon_started is not None and abs(daemon_started) > JUMPED_S:
        way = "forward" if daemon_started > 0 else "back"
        jumped = (
            f"the wall clock jumped {way} by {numbers.duration(abs(daemon_started))} since the daemon started"
        )
        advice = (
            "the order of rows is correct (monotonic time); hoptui daemon stop makes it read the clock again"
        )
        return Check("clock", "warning", f"{detail}; {jumped}", advice)
    if synced is False:
        advice = "times shown may be off against other hosts: start chrony or systemd-timesyncd"
        return Check("clock", "warning", detail, advice)
    return Check("clock", "ok", detail)


def ntp() -> bool | None:
    """Whether the kernel reports a synchronised clock (adjtimex(2) without modes needs no rights)."""
    state = ctypes.create_string_buffer(256)  # struct timex has 208 bytes where long has 64 bits
    if ctypes.sizeof(ctypes.c_long) != 8 or ctypes.CDLL(None).adjtimex(state) < 0:
        return None
    (status,) = struct.unpack_from("i", state, 40)  # after modes, offset, freq, maxerror, esterror
    return not status & STA_UNSYNC


def gained(pid: int, started_wall: float, root: Path = ROOT) -> float | None:
    """How many seconds the wall clock has gained on the boot clock since a process of this host started.

    `started_wall` is what the wall clock showed then; None if the process cannot be read.
    """
    stat = _text(root / f"proc/{pid}/stat").rpartition(")")[2].split()
    if len(stat) < 20:
        return None
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - age - started_wall


def container(environ: Mapping[str, str], root: Path = ROOT) -> Check:
    """Check whether this is a container, what it hides, and how a run finds its GPUs."""
    kind = _kind(environ, root)
    own_pids = whose_pids(root / "proc") == "container"
    here, there = _gpus_here(root), _gpus_there(root)
    given = environ.get("NVIDIA_VISIBLE_DEVICES", "")
    parts = [f"in a container ({kind})" if kind else "no container"]
    advice = ""
    if own_pids:
        parts.append(
            "the driver's pids are the host's and cannot be seen here: "
            "a run has the GPUs that it declares or that CUDA_VISIBLE_DEVICES names"
        )
        advice = "to see the users and commands of GPU processes start it with --pid=host"
    if here < there:
        parts.append(f"{here} of the host's {there} GPUs are in it")
    elif given and given not in ("all", "void", "none"):
        parts.append(f"NVIDIA_VISIBLE_DEVICES={numbers.clean(given, 60)}")
    return Check("container", "ok", "; ".join(parts), advice)


def _kind(environ: Mapping[str, str], root: Path) -> str:
    """Which kind of container, empty for none."""
    if environ.get("APPTAINER_NAME") or environ.get("SINGULARITY_NAME"):
        return "apptainer"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "kubernetes" if "KUBERNETES_SERVICE_HOST" in environ else "docker"
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    cgroups = _text(root / "proc/self/cgroup")
    found = next((word for word in IN_CGROUPS if word in cgroups), "")
    return "slurm's cgroup" if found == "slurm" else found or environ.get("container", "")


def _gpus_here(root: Path) -> int:
    return sum(path.name.removeprefix("nvidia").isdigit() for path in (root / "dev").glob("nvidia*"))


def _gpus_there(root: Path) -> int:
    """GPUs that the kernel module knows; a container shares the host's module."""
    try:
        return len(list((root / "proc/driver/nvidia/gpus").iterdir()))
    except OSError:
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
