"""`hoptui daemon forward PATH`: what `hoptui attach ssh://…` runs on the other node, through ssh.

ssh forwards a socket by its path, but only this node knows the path of its daemon's socket. So the viewer
sends a secret path, and this command links it to the socket while the connection lasts. It ends when its
input is closed.

The viewer waits for this command, so it parses its one argument by hand. Importing the command-line library
would take longer than everything else here.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hoptui.cli.support.terminal import MISSING, OK, REJECTED, Fail, dump, give_up_stdout, usage, warn
from hoptui.client.routes import Here
from hoptui.client.tunnel import Forwarded
from hoptui.node import processes
from hoptui.node.addresses import AddressError, Addresses, addresses
from hoptui.node.processes import user_name
from hoptui.protocol import VERSION
from hoptui.protocol.messages import PROTOCOL

LOOK_S = 0.5
FIRST_LOOK_S = 0.01  # while a daemon starts


def main(words: Sequence[str]) -> int:
    """Keep a daemon running and a link to its socket until the input ends. Return the exit code.

    Print a line of JSON when the socket is ready.
    """
    try:
        if len(words) != 1 or not words[0].startswith("/"):
            raise usage(
                "hoptui daemon forward takes one absolute path; hoptui attach ssh://HOST runs it on HOST"
            )
        where = addresses()
        with _leading(Path(words[0]), where.viewers), _hung_up():
            _serve(where)
    except AddressError as error:
        warn(f"hoptui: {error}")
        return REJECTED
    except Fail as fail:
        warn(f"hoptui: {fail}")
        return fail.code
    except BrokenPipeError:
        give_up_stdout()
    return OK


def _serve(where: Addresses) -> None:
    """Start a daemon whenever there is none, and print a line for each."""
    here = Here(where)
    here.begin(time.monotonic())
    announced: tuple[int, int] | None = None
    while True:
        serves = _socket_of(where)
        if serves is not None and serves != announced:
            dump(Forwarded(protocol=PROTOCOL, version=VERSION, user=user_name()))
            announced = serves
        trouble = here.check(time.monotonic(), 0.0, greeted=announced is not None)
        if trouble is not None and trouble.failed:
            raise Fail(trouble.reason, MISSING)
        if select.select([sys.stdin], [], [], FIRST_LOOK_S if announced is None else LOOK_S)[
            0
        ] and not os.read(0, 4096):
            return


def _socket_of(where: Addresses) -> tuple[int, int] | None:
    """Identify the socket of the daemon by inode and time; None while there is no daemon."""
    try:
        found = where.viewers.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns) if processes.daemon_lives(where) else None


@contextlib.contextmanager
def _leading(path: Path, to: Path) -> Iterator[None]:
    """Make a link at `path`, in a new private directory.

    Raises:
        Fail: the directory exists, or it cannot be made.
    """
    try:
        path.parent.mkdir(mode=0o700)
        path.symlink_to(to)
    except OSError as error:
        raise Fail(f"{path} cannot be made: {error.strerror}", REJECTED) from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
            path.parent.rmdir()


@contextlib.contextmanager
def _hung_up() -> Iterator[None]:
    """Clean up on the signals that arrive when the connection ends."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
