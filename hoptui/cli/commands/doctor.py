"""`hoptui doctor`: check what works on this node, what does not, and what to do about it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from hoptui.cli.doctor import Check, gpus, machine, storage, within
from hoptui.cli.support.options import Json
from hoptui.cli.support.terminal import dump, say
from hoptui.node.addresses import AddressError, Addresses, StateError, addresses

SYMBOLS = {"ok": "✓", "optional": "○", "warning": "⚠", "failed": "✕", "unknown": "–"}
IDS = (
    "python",
    "zmq",
    "parquet",
    "terminal",
    "tmux",
    "configuration",
    "container",
    "runtime-directory",
    "state-directory",
    "disk",
    "recordings",
    "daemon",
    "sockets",
    "lock",
    "sampler",
    "history",
    "runs",
    "metrics",
    "alerts",
    "clock",
    "driver",
    "gpu-permissions",
    "nvml",
    "gpm",
    "cuda-visible",
)
"""Every result contains these ids, so scripts may rely on each of them."""


def doctor(*, json: Json = False) -> int:
    """Check what works on this node, what does not, and why.

    Exit codes: 0 nothing is wrong, 1 warnings, 2 failures. What is optional here is no warning.
    """
    checks = []
    for check in _every():
        checks.append(check)
        if not json:
            say(f"{SYMBOLS[check.status]} {check.id:<18} {check.detail}")
            if check.advice:
                say(f"  {'':<18} → {check.advice}")
    if json:
        dump({"checks": [check._asdict() for check in checks]})
    found = {check.status for check in checks}
    return 2 if "failed" in found else 1 if "warning" in found else 0


def _every() -> Iterator[Check]:
    """Run the checks. A check that cannot be made is unknown."""
    seen = set()
    for check in _checks():
        seen.add(check.id)
        yield check
    for missing in IDS:
        if missing not in seen:
            yield Check(missing, "unknown", "not checked: see the failure above")


def _checks() -> Iterator[Check]:
    yield machine.python()
    yield within("zmq", machine.zmq)
    yield within("parquet", machine.parquet)
    yield within("terminal", lambda: machine.terminal(os.environ))
    yield within("tmux", lambda: machine.multiplexer(os.environ))
    yield within("configuration", lambda: machine.configuration(os.environ))
    yield within("container", lambda: machine.container(os.environ))
    try:
        where = addresses()
    except StateError as error:
        advice = "make it private as it says, or set HOPTUI_STATE_DIR to a directory of your own"
        yield Check("state-directory", "failed", str(error), advice)
        yield from _machine()
        return
    except AddressError as error:
        yield Check("runtime-directory", "failed", str(error), "set HOPTUI_DIR to a directory of your own")
        yield from _machine()
        return
    yield within("runtime-directory", lambda: storage.runtime_directory(where))
    yield within("state-directory", lambda: storage.state_directory(where))
    yield within("disk", lambda: storage.disk(where))
    yield within("recordings", lambda: storage.recordings(where, os.environ))
    yield from _node(where)


def _node(where: Addresses) -> Iterator[Check]:
    """Check what the daemon reports, and what is compared with it."""
    from hoptui.cli.support.snapshot import look
    from hoptui.cli.support.terminal import Fail

    log = str(where.log)
    try:
        with look() as seen:
            node = seen.node
            yield machine.daemon(node, started=seen.session.started_daemon)
            before = time.monotonic()
            seen.refresh()
            answer_s = time.monotonic() - before
            yield within("sockets", lambda: storage.sockets(where, answer_s))
            yield within("lock", lambda: storage.lock(where, node.pid))
            seen.await_readings()
            yield machine.sampler(seen, log)
            live = machine.runs(seen)
            node = seen.node
            found = {gpu.uuid: seen.readings(f"gpu/{gpu.uuid}") for gpu in node.gpus}
    except Fail as error:
        where_to_look = log if where.log.exists() else "runtime-directory above"
        yield Check("daemon", "failed", str(error), f"see {where_to_look}")
        yield from _machine()
        return
    yield machine.history(node)
    yield live
    yield machine.metrics(node, os.environ, log)
    yield within("alerts", lambda: machine.alerts(node, os.environ))
    yield within("clock", lambda: machine.clock(machine.gained(node.pid, node.started_wall)))
    yield within("driver", lambda: gpus.driver(node.gpus))
    yield within("gpu-permissions", lambda: gpus.permissions(node.gpus))
    yield gpus.nvml(node.gpus, node.gpu_problem)
    if node.gpus:
        yield gpus.gpm(node.gpus, found)
    else:
        yield Check("gpm", "unknown", "no GPU to read counters from")
    yield gpus.cuda_visible(node.gpus, os.environ)


def _machine() -> Iterator[Check]:
    """The checks that do not need a daemon."""
    yield within("clock", lambda: machine.clock(None))
    yield within("driver", lambda: gpus.driver(()))
    yield within("gpu-permissions", lambda: gpus.permissions(()))
