"""`hoptui daemon forward PATH`: what `hoptui attach ssh://…` runs on the other node, through ssh.

ssh forwards a socket by its path, and only this node knows where its daemon's socket lies. So the viewer names a path that nobody
else can guess, and this makes it lead there for as long as the connection lasts. It ends with its input, whatever ends that.

A person waits for it and nobody types it, so its one argument is read by hand: the library of the command line takes longer to
import than all that is done here.
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
from hoptui.client.transport.routes import Here
from hoptui.client.transport.ssh import Forwarded
from hoptui.node import presence
from hoptui.node.addresses import AddressError, Addresses, addresses
from hoptui.node.credentials import user_name
from hoptui.protocol.messages import PROTOCOL
from hoptui.protocol.version import VERSION

LOOK_S = 0.5
FIRST_LOOK_S = 0.01  # while a daemon begins


def main(words: Sequence[str]) -> int:
    """Keep a daemon running and let the path lead to its socket, until the input ends; says so in a line of JSON.

    Returns the exit code, as every command of `hoptui`.
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
    """Start a daemon whenever there is none, and tell of each."""
    here = Here(where)
    here.begin(time.monotonic())
    told: tuple[int, int] | None = None
    while True:
        serves = _socket_of(where)
        if serves is not None and serves != told:
            dump(Forwarded(protocol=PROTOCOL, version=VERSION, user=user_name()))
            told = serves
        trouble = here.check(time.monotonic(), 0.0, greeted=told is not None)
        if trouble is not None and trouble.failed:
            raise Fail(trouble.reason, MISSING)
        if select.select([sys.stdin], [], [], FIRST_LOOK_S if told is None else LOOK_S)[0] and not os.read(
            0, 4096
        ):
            return


def _socket_of(where: Addresses) -> tuple[int, int] | None:
    """Which socket the daemon of this node serves, None while there is none: each was made at another time."""
    try:
        found = where.viewers.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns) if presence.daemon_lives(where) else None


@contextlib.contextmanager
def _leading(path: Path, to: Path) -> Iterator[None]:
    """A link at `path`, in a directory of its own that nobody else may enter.

    Raises:
        Fail: somebody is there already, or it cannot be made.
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
    """Leave in good order on the signals of a connection that ends."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
