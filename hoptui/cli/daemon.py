"""`hoptui daemon start|stop|status`: the background process that connects runs and viewers."""

from __future__ import annotations

import json as jsonlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from cyclopts import App

from hoptui.cli.node import look
from hoptui.cli.options import Json
from hoptui.cli.terminal import MISSING, OK, REJECTED, Fail, dump, say
from hoptui.viewer import format as text
from hoptui.viewer.session import NoDaemon, Session, Unreachable
from hoptui.wire import presence
from hoptui.wire.addresses import AddressError, Addresses, addresses

STOP_S = 5.0

daemon = App(name="daemon", help="The background process that connects runs and viewers.")


@daemon.default
@daemon.command
def status(*, json: Json = False) -> int:
    """Whether the daemon runs, since when, and for whom."""
    try:
        with look(start_daemon=False) as seen:
            node = seen.node
            runs = sum(seen.lives(run) for run in node.runs)
            told = {
                **_told(seen.session),
                "started": node.started_wall,
                "runs": runs,
                "viewers": node.viewers,
                "sampler": node.sampler,
                "history": node.history,
            }
    except NoDaemon as error:
        if json:
            dump({"running": False})
        else:
            say(f"{error}; it starts with the first run, or with hoptui attach")
        return MISSING
    if json:
        dump(told)
        return OK
    since = text.duration(time.time() - node.started_wall)
    say(f"the daemon is running: pid {node.pid}, hoptui {node.version}, for {since}, in {told['directory']}")
    say(f"{runs} live {'run' if runs == 1 else 'runs'}")
    for what, problem in (("readings", node.sampler), ("history", node.history)):
        if problem:
            say(f"{what}: {problem}")
    return OK


@daemon.command
def start(*, json: Json = False) -> int:
    """Start the daemon, if none is running, and wait until it answers."""
    there = presence.daemon_lives(_where())
    with look() as seen:
        told = {**_told(seen.session), "already": there}
    if json:
        dump(told)
    else:
        say(f"the daemon {'was running already' if there else 'is running'}: pid {told['pid']}")
    return OK


@daemon.command
def stop(*, json: Json = False) -> int:
    """End the daemon. Training goes on; live runs do not start it again."""
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
        say(f"the daemon (pid {pid}) has ended; training goes on")
    return OK


def _told(session: Session) -> dict[str, Any]:
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
    """End a daemon that cannot be talked to, for instance one of another version: ask its process.

    Raises:
        Fail: it cannot be told which process that is, or it stays.
    """
    try:
        pid = int(jsonlib.loads(where.info.read_text())["pid"])
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, KeyError, TypeError):
        raise Fail(f"{why}; and {where.info} does not say which process it is", MISSING) from None
    if b"hoptui.daemon" not in command:
        raise Fail(f"{why}; and pid {pid}, named in {where.info}, is no daemon of hoptui", MISSING)
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError as error:
        raise Fail(f"{why}; and pid {pid} cannot be told to end: {error.strerror}", MISSING) from None
    until = time.monotonic() + STOP_S
    while presence.daemon_lives(where):
        if time.monotonic() > until:
            raise Fail(f"the daemon (pid {pid}) does not end within {STOP_S:g} s", MISSING)
        time.sleep(0.02)
    return pid
