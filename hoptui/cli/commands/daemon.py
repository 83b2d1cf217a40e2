"""`hoptui daemon start|stop|status`: the background process that connects runs and viewers."""

from __future__ import annotations

import contextlib
import json as jsonlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from hoptui.cli.support.options import Json
from hoptui.cli.support.recordings import size, taken
from hoptui.cli.support.snapshot import NodeSnapshot, look, refuse_read_only
from hoptui.cli.support.terminal import MISSING, OK, REJECTED, Fail, dump, say, usage
from hoptui.client.session import NoDaemon, Session, Unreachable
from hoptui.node import processes
from hoptui.node.addresses import AddressError, Addresses, addresses
from hoptui.presentation import numbers, sentences
from hoptui.presentation.numbers import counted
from hoptui.protocol.messages import NodeState

STOP_S = 5.0
METRICS_S = 5.0

daemon = App(name="daemon", help="Manage the background process that connects runs and viewers.")


Metrics = Annotated[
    str | None,
    Parameter(
        name="--metrics",
        show_default=False,
        help="Serve Prometheus metrics at HOST:PORT; :PORT listens on this host only.",
    ),
]


@daemon.default
def default(*, metrics: Metrics = None, json: Json = False) -> int:
    """Show the status of the daemon; with --metrics, start it."""
    return status(json=json) if metrics is None else start(metrics=metrics, json=json)


@daemon.command
def status(*, json: Json = False) -> int:
    """Show whether the daemon is running, its runs and viewers, and the size of its recordings."""
    try:
        with look(start_daemon=False) as seen:
            node = seen.node
            count, used = taken(seen.session.where.state)
            found = {
                **_identity(seen.session),
                "started": node.started_wall,
                "runs": sum(seen.lives(run) for run in node.runs),
                "viewers": node.viewers,
                "sampler": sentences.joined(node.sampler_problems),
                "sampler_problems": node.sampler_problems,
                "history": node.history,
                "hz": node.hz,
                "metrics": node.metrics or None,
                "recordings": {"count": count, "size_bytes": used},
            }
    except NoDaemon as error:
        if json:
            dump({"running": False})
        else:
            say(f"{error}; to start it, start a run or use hoptui attach")
        return MISSING
    if json:
        dump(found)
    else:
        _print_status(node, found)
    return OK


@daemon.command
def start(*, metrics: Metrics = None, json: Json = False) -> int:
    """Start the daemon if it is not running, and wait until it answers."""
    if metrics is not None:
        _check_metrics(metrics)
    there = processes.daemon_lives(_where())
    with _with_metrics(metrics), look() as seen:
        found = {**_identity(seen.session), "already": there, "metrics": _await_metrics(seen, metrics, there)}
    if json:
        dump(found)
        return OK
    say(f"the daemon {'was already running' if there else 'is running'}: pid {found['pid']}")
    if found["metrics"]:
        say(f"metrics for Prometheus: http://{found['metrics']}/metrics")
    return OK


@daemon.command
def stop(*, json: Json = False) -> int:
    """Stop the daemon. Training continues; live runs do not start it again."""
    refuse_read_only("the daemon is not stopped")
    where = _where()
    pid: int | None = None
    try:
        with Session(where) as session:
            pid = session.hello.pid
            session.shutdown()
    except NoDaemon:
        if json:
            dump({"running": False, "stopped": None})
        else:
            say("no daemon is running")
        return OK
    except Unreachable as error:
        pid = _end_by_signal(where, str(error))
    if json:
        dump({"running": False, "stopped": pid})
    else:
        say(f"the daemon (pid {pid}) has stopped; training continues")
    return OK


def _print_status(node: NodeState, found: dict[str, Any]) -> None:
    since = numbers.duration(time.time() - node.started_wall)
    say(f"the daemon is running: pid {node.pid}, hoptui {node.version}, for {since}, in {found['directory']}")
    say(f"{counted(found['runs'], 'live run')}")
    if node.gpus and node.hz:
        say(f"GPUs are sampled {numbers.often(node.hz)}")
    if node.metrics:
        say(f"metrics for Prometheus: http://{node.metrics}/metrics")
    count, used = found["recordings"]["count"], found["recordings"]["size_bytes"]
    if count:
        say(f"{counted(count, 'recording')}, {size(used)}, in {found['state']}")
    for what, problem in (("readings", sentences.joined(node.sampler_problems)), ("history", node.history)):
        if problem:
            say(f"{what}: {problem}")


def _check_metrics(typed: str) -> None:
    """Check the form [HOST]:PORT. The daemon reports an address that it cannot bind."""
    from hoptui.daemon.prometheus import parse

    try:
        parse(typed)
    except ValueError as error:
        raise usage(f"--metrics: {error}") from None


@contextlib.contextmanager
def _with_metrics(metrics: str | None) -> Iterator[None]:
    """Set HOPTUI_METRICS, which a daemon that starts now inherits from this environment."""
    before = os.environ.get("HOPTUI_METRICS")
    if metrics is not None:
        os.environ["HOPTUI_METRICS"] = metrics
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("HOPTUI_METRICS", None)
        else:
            os.environ["HOPTUI_METRICS"] = before


def _await_metrics(seen: NodeSnapshot, asked: str | None, there: bool) -> str | None:
    """Wait for the metrics endpoint and return its address, or None if no metrics were requested.

    Raises:
        Fail: a running daemon serves another address or none, or the new daemon cannot serve metrics.
    """
    until = time.monotonic() + METRICS_S
    why = _no_metrics(seen)
    while asked and not there and not seen.node.metrics and not why and time.monotonic() < until:
        time.sleep(0.05)
        seen.refresh()
        why = _no_metrics(seen)
    served = seen.node.metrics
    if not asked or (served and (not there or _is_it(served, asked))):
        return served or None
    if not there:
        why = why or f"no metrics at {asked}: see {seen.session.where.log}"
        raise Fail(f"the daemon is running, but with {why}", REJECTED)
    what = f"metrics at {served}" if served else "no metrics"
    again = f"hoptui daemon stop, then hoptui daemon --metrics {asked} (runs survive)"
    raise Fail(f"a daemon (pid {seen.node.pid}) is already running and serves {what}: {again}", REJECTED)


def _no_metrics(seen: NodeSnapshot) -> str:
    """The reason that the daemon reports for not serving metrics."""
    return next((sentences.event_text(e) for e in reversed(seen.store.events) if e.kind == "metrics"), "")


def _is_it(served: str, asked: str) -> bool:
    """Whether the endpoint is the requested one. Port 0 matches any port."""
    from hoptui.daemon.prometheus import parse

    (host, port), (wanted, its_port) = parse(served), parse(asked)
    return host == wanted and its_port in (0, port)


def _identity(session: Session) -> dict[str, Any]:
    hello, where = session.hello, session.where
    return {
        "running": True,
        "pid": hello.pid,
        "version": hello.version,
        "protocol": hello.protocol,
        "host": hello.host,
        "directory": str(where.directory),
        "state": str(where.state),
    }


def _where() -> Addresses:
    try:
        return addresses()
    except AddressError as error:
        raise Fail(str(error), REJECTED) from None


def _end_by_signal(where: Addresses, why: str) -> int:
    """Send SIGTERM to a daemon that does not understand us, for example one of another version.

    Raises:
        Fail: its process is unknown, or it does not stop.
    """
    try:
        pid = int(jsonlib.loads(where.info.read_text())["pid"])
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, KeyError, TypeError):
        raise Fail(f"{why}; and {where.info} does not name its process", MISSING) from None
    if b"hoptui.daemon" not in command:
        raise Fail(f"{why}; and pid {pid}, named in {where.info}, is not a hoptui daemon", MISSING)
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError as error:
        raise Fail(f"{why}; and pid {pid} cannot be stopped: {error.strerror}", MISSING) from None
    until = time.monotonic() + STOP_S
    while processes.daemon_lives(where):
        if time.monotonic() > until:
            raise Fail(f"the daemon (pid {pid}) did not stop within {STOP_S:g} s", MISSING)
        time.sleep(0.02)
    return pid
