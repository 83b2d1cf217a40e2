"""`python -m hoptui.daemon [--detach] [--metrics HOST:PORT]`: the command that starts a daemon."""

from __future__ import annotations

import errno
import logging
import logging.handlers
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hoptui.domain.pacing import Timings

IDLE_S = 60.0


def main(timings: Timings | None = None) -> int:
    """Run the daemon. With `--detach`, return at once and run in the background.

    An existing daemon is not an error. Other programs start the daemon, so its options are few and parsed by
    hand.
    """
    from hoptui.node.addresses import AddressError, addresses

    try:
        detach, metrics = _options(sys.argv[1:])
    except ValueError as error:
        print(f"hoptui.daemon: {error}", file=sys.stderr)
        return 2
    try:
        where = addresses()
        idle = _seconds("HOPTUI_IDLE_S", IDLE_S)
    except (AddressError, ValueError) as error:
        print(f"hoptui.daemon: {error}", file=sys.stderr)
        return 1
    from hoptui.daemon.descriptors import DescriptorsError, raise_limit

    try:
        raise_limit()
    except DescriptorsError as error:
        print(f"hoptui.daemon: {error}", file=sys.stderr)
        return 1
    try:
        handler = _log_to(where.log)
    except OSError as error:
        print(f"hoptui.daemon: {where.log} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    if detach and _detach():
        return 0
    from hoptui.daemon.server import Server
    from hoptui.daemon.sockets import AlreadyRunningError
    from hoptui.domain.pacing import DEFAULT

    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("hoptui").addHandler(handler)
    logging.getLogger("hoptui").setLevel(logging.INFO)
    try:
        server = Server(where, idle, metrics, timings=timings or DEFAULT)
    except AlreadyRunningError:
        return 0
    except Exception:
        logging.getLogger("hoptui.daemon").exception("the daemon could not start")
        return 1
    logging.getLogger("hoptui.daemon").info("serving %s (pid %d)", where.directory, os.getpid())
    try:
        server.run()
    except Exception:
        logging.getLogger("hoptui.daemon").exception("the daemon ends because of an internal error")
        return 1
    return 0


def _log_to(path: Path) -> logging.handlers.RotatingFileHandler:
    """Return the handler for the log. A pipe in its place would block.

    Raises:
        OSError: it cannot be written, or is not a regular file.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file")
    return logging.handlers.RotatingFileHandler(path, maxBytes=1 << 20, backupCount=2)


def _options(arguments: list[str]) -> tuple[bool, str]:
    """Return whether to detach, and where to serve metrics or "".

    Raises:
        ValueError: an unknown option.
    """
    detach, metrics = False, ""
    rest = iter(arguments)
    for argument in rest:
        name, _, value = argument.partition("=")
        if argument == "--detach":
            detach = True
        elif name == "--metrics":
            from hoptui.daemon.prometheus import parse

            metrics = value or next(rest, "")
            parse(metrics)
        else:
            raise ValueError(f"unknown option {argument}")
    return detach, metrics or os.environ.get("HOPTUI_METRICS", "")


def _seconds(name: str, default: float) -> float:
    raw = os.environ.get(name)
    try:
        return float(raw) if raw else default
    except ValueError:
        raise ValueError(f"{name}={raw!r} is no number of seconds") from None


def _detach() -> bool:
    """Fork; True in the parent. The child closes what it inherited, so that its starter need not wait."""
    if os.fork():
        return True
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)
    return False


if __name__ == "__main__":
    sys.exit(main())
