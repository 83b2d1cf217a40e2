"""Checks of the machine, of the daemon and what it serves, and of the terminal.

The machine: its software, its clocks, and whether this is a container. The terminal: tmux, SSH and the
configuration too.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from hoptui import __version__
from hoptui.cli.doctor import Check
from hoptui.cli.support.snapshot import STALE_S, NodeSnapshot
from hoptui.cli.support.terminal import interactive
from hoptui.node.files import expanded
from hoptui.node.processes import whose_pids
from hoptui.presentation import numbers, sentences, vocabulary
from hoptui.protocol.messages import NodeState, RunState
from hoptui.settings import is_utf8, read, short

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
            "parquet",
            "optional",
            "pyarrow is not installed: no export to Parquet",
            "pip install 'hoptui[parquet]'",
        )
    return Check("parquet", "ok", "pyarrow is installed")


ROOT = Path("/")
STA_UNSYNC = 0x40  # of adjtimex(2)
JUMPED_S = 2.0
SLOWEST_START_S = 30.0
"""A daemon notes the time of its start up to so long after its process began."""
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
        return Check("clock", "optional", detail, advice)
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

    `started_wall` is what the wall clock showed soon after that. None if the process cannot be read, or if
    the loss is so small that its start may have taken as long.
    """
    stat = _text(root / f"proc/{pid}/stat").rpartition(")")[2].split()
    if len(stat) < 20:
        return None
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[19]) / os.sysconf("SC_CLK_TCK")
    found = time.time() - age - started_wall
    return None if -SLOWEST_START_S < found < 0 else found


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


def daemon(node: NodeState, *, started: bool) -> Check:
    """That it runs, and is of this version."""
    found = "has been started now (it leaves when idle)" if started else "is running"
    detail = f"{found}, pid {node.pid}, hoptui {node.version}"
    if node.version != __version__:
        advice = "hoptui daemon stop, then start it again to have the new one (runs survive)"
        return Check("daemon", "warning", f"{detail}, and this is {__version__}", advice)
    return Check("daemon", "ok", detail)


def sampler(seen: NodeSnapshot, log: str) -> Check:
    """How often the GPUs are read, and how fresh and how wide the newest readings are."""
    node = seen.node
    if node.sampler_problems:
        return Check("sampler", "failed", sentences.joined(node.sampler_problems), f"see {log}")
    sources = [f"gpu/{gpu.uuid}" for gpu in node.gpus if not gpu.problem]
    rate = f"GPUs are read {numbers.often(node.hz)}" if sources else "the host is read"
    sources = sources or ["host"]
    ages = [seen.age_s(source) for source in sources]
    known = [age for age in ages if age is not None]
    if len(known) < len(ages) or max(known) > STALE_S:
        age = f"the newest is {numbers.seconds(max(known))} old" if known else "none has arrived"
        return Check("sampler", "warning", f"{rate}, but {age}", f"see {log}")
    detail = f"{rate}, the newest is {numbers.seconds(max(known))} old"
    windows = [w for s in sources if (w := seen.store.latest(s).get("window_s")) is not None]
    if windows:
        detail += f", counters over {numbers.seconds(max(windows))}"
    return Check("sampler", "ok", detail)


def history(node: NodeState) -> Check:
    """Whether recordings are being written."""
    if node.history:
        return Check(
            "history",
            "warning",
            numbers.clean(node.history),
            "see state-directory and disk; move a file away that cannot be read",
        )
    return Check("history", "ok", "runs are recorded")


def runs(seen: NodeSnapshot) -> Check:
    """The live runs, where hoptui is off by an error of its own, and what scripts got wrong."""
    live = [run for run in seen.node.runs if seen.lives(run)]
    off = [f"{numbers.clean(run.name, 40)}: {why}" for run in live if (why := seen.off(run))]
    if off:
        return Check("runs", "failed", "; ".join(off), "training goes on; restart the run to see it again")
    wrong = [f"{numbers.clean(run.name, 40)}: {_wrong(seen, run)}" for run in live if _wrong(seen, run)]
    if wrong:
        return Check("runs", "warning", "; ".join(wrong), "hoptui status RUN has all; correct the script")
    return Check("runs", "ok", numbers.counted(len(live), "live run"))


def _wrong(seen: NodeSnapshot, run: RunState) -> str:
    """What a script declared or logged that is not accepted, "" for nothing."""
    lost = vocabulary.lost_metrics(seen.store.vital(run.run), seen.store.left_out(f"run/{run.run}"))
    return "; ".join([*map(sentences.sentence, run.refused), *lost])


def metrics(node: NodeState, environ: Mapping[str, str], log: str) -> Check:
    """The Prometheus endpoint: never there unless asked for."""
    if node.metrics_problem is not None:
        detail = sentences.sentence(node.metrics_problem)
        return Check("metrics", "failed", detail, f"see {log}; hoptui daemon stop, then start it again")
    if node.metrics:
        return Check("metrics", "ok", f"served at http://{numbers.clean(node.metrics)}/metrics")
    asked = environ.get("HOPTUI_METRICS")
    if find_spec("prometheus_client") is None:
        advice = "pip install 'hoptui[metrics]'"
        detail = "no endpoint for Prometheus: prometheus-client is not installed"
        return Check("metrics", "warning" if asked else "optional", detail, advice)
    if asked:
        detail = f"HOPTUI_METRICS={numbers.clean(asked, 60)}, but the daemon serves none"
        advice = f"{log} says why; it takes an address such as 127.0.0.1:9400, or :9400 for loopback"
        return Check("metrics", "warning", detail, advice)
    return Check("metrics", "ok", "off: hoptui daemon --metrics :9400 serves them to Prometheus")


def alerts(node: NodeState, environ: Mapping[str, str]) -> Check:
    """Whether alerts reach their targets, and whether others can read what may be a secret."""
    config = read(environ=environ)
    if node.alerts_problem is not None:
        advice = "hoptui alerts test tries every target"
        return Check("alerts", "warning", sentences.sentence(node.alerts_problem), advice)
    targets = config.alerts.targets
    inside = config.file if config.file is not None and any(each.secret_inside for each in targets) else None
    named = (each for target in targets for each in (target.url_file, target.token_file) if each)
    readable = [file for file in (*filter(None, (inside,)), *map(expanded, named)) if _open_to_others(file)]
    if readable:
        where = short(readable[0])
        detail = f"others can read {where}, which has the address or the token of a target"
        return Check("alerts", "warning", detail, f"chmod 600 {where}")
    if not targets:
        return Check("alerts", "ok", "no targets are set")
    return Check("alerts", "ok", f"{numbers.counted(len(targets), 'target')}; hoptui alerts test tries them")


def _open_to_others(file: Path) -> bool:
    try:
        return bool(file.stat().st_mode & 0o044)
    except OSError:
        return False


TMUX_S = 1.0


def terminal(environ: Mapping[str, str]) -> Check:
    """Its name, colours, size and encoding."""
    if not interactive():
        return Check("terminal", "ok", "no terminal here: plain text and JSON only")
    width, height = shutil.get_terminal_size()
    name = environ.get("TERM", "")
    colours = "true colour" if true_colour(environ) else "256 colours" if "256" in name else "16 colours"
    detail = f"{name or 'TERM is not set'}, {colours}, {width} × {height}, {sys.stdout.encoding}"
    if not is_utf8(sys.stdout.encoding):
        return Check("terminal", "warning", detail, "without UTF-8 it draws in ASCII: export LANG=C.UTF-8")
    if name in ("", "dumb"):
        return Check("terminal", "failed", detail, "the dashboard needs a real TERM, e.g. xterm-256color")
    if width < 80 or height < 24:
        return Check("terminal", "warning", detail, "80 × 24 is the least for more than the key numbers")
    return Check("terminal", "ok", detail)


def multiplexer(environ: Mapping[str, str]) -> Check:
    """Check tmux, screen and SSH. Each may reduce colours; SSH alone loses the dashboard on disconnect."""
    name = environ.get("TERM", "")
    ssh = "SSH_CONNECTION" in environ
    if environ.get("TMUX"):
        detail = f"in tmux{' over SSH' if ssh else ''}, TERM={name or 'not set'}"
        if not name.startswith(("tmux", "screen")):
            advice = "in ~/.tmux.conf: set -g default-terminal tmux-256color"
            return Check("tmux", "warning", f"{detail}, which is not tmux's own", advice)
        features = _tmux_features()
        if features is not None and "RGB" not in features and not true_colour(environ):
            advice = "for true colour, in ~/.tmux.conf: set -as terminal-features ',*:RGB'"
            return Check("tmux", "ok", f"{detail}, 256 colours", advice)
        return Check("tmux", "ok", detail)
    if environ.get("STY"):
        return Check("tmux", "ok", f"in screen, TERM={name or 'not set'}")
    if not ssh:
        return Check("tmux", "ok", "no tmux and no SSH in between")
    if true_colour(environ):
        return Check("tmux", "ok", "over SSH, with true colour")
    advice = "for true colour: export COLORTERM=truecolor; in tmux a dashboard outlives the connection"
    return Check("tmux", "ok", f"over SSH without tmux, TERM={name or 'not set'}", advice)


def configuration(environ: Mapping[str, str]) -> Check:
    """Check the settings of the user and report invalid ones."""
    config = read(environ=environ)
    if config.problems:
        where = short(config.file) if config.file else "the environment"
        return Check("configuration", "warning", "; ".join(config.problems), f"fix it in {where}")
    chosen = [
        f"{name} by {value.origin}" for name, value in config.values.items() if value.origin != "default"
    ]
    chosen += [f"{len(config.keys)} keys"] if config.keys else []
    return Check(
        "configuration", "ok", ", ".join(chosen) or "nothing is set: all settings have their defaults"
    )


def true_colour(environ: Mapping[str, str]) -> bool:
    """Whether the terminal announces 24-bit colour."""
    return environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")


def _tmux_features() -> str | None:
    """The features of the outer terminal according to tmux; None if unknown."""
    try:
        done = subprocess.run(
            ["tmux", "display-message", "-p", "#{client_termfeatures}"],
            capture_output=True,
            text=True,
            timeout=TMUX_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
