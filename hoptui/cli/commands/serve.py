"""`hoptui serve`: the dashboard in a browser, on this machine's loopback."""

from __future__ import annotations

import os
import shlex
import socket
import stat
import sys
from typing import Annotated

from cyclopts import Parameter

from hoptui.cli.support.snapshot import look, refuse_read_only
from hoptui.cli.support.terminal import OK, REJECTED, Fail, say, usage
from hoptui.client.transport.target import is_path

PORT = 8765
DRIVER = "hoptui.tui.driver:BrowserDriver"


def serve(
    run: Annotated[str, Parameter(help="A run's name or id, or the file of a recording.")] | None = None,
    /,
    *,
    port: Annotated[int, Parameter(help="The port on 127.0.0.1; 0 takes any free one.")] = PORT,
    steer: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Let the browser send commands; else it only looks."),
    ] = False,
) -> int:
    """The dashboard in a browser on this machine, behind an address that opens once; Ctrl-C ends it."""
    try:
        from hoptui.web.gate import Gate
        from hoptui.web.server import Dashboards
        from hoptui.web.server import serve as serve_until_ended
    except ImportError as error:
        raise usage(f"hoptui serve needs textual-serve: pip install 'hoptui[web]' ({error})") from None

    if not 0 <= port < 1 << 16:
        raise usage(f"--port takes 0 to 65535, not {port}")
    if steer:
        refuse_read_only("the browser could send nothing")
    title, target = "hoptui", run
    if run is not None and is_path(run):
        title = f"hoptui {run}"
    elif run is not None:
        with look() as seen:
            found = seen.find(run)
        title, target = f"hoptui {found.name}", found.run
    try:
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise Fail(f"127.0.0.1:{port} cannot be served: {os.strerror(error.errno or 0)}", REJECTED) from None
    with listening:
        bound = listening.getsockname()[1]
        gate = Gate()

        def invite() -> None:
            say(f"  http://127.0.0.1:{bound}/?token={gate.token}")

        def entered() -> None:
            say("it was opened; for another browser:")
            invite()

        say(
            f"{title}: {'commands are sent' if steer else 'read-only'}, Ctrl-C ends it; this address opens once:"
        )
        invite()
        say(
            f"from another machine: ssh -L {bound}:127.0.0.1:{bound} {socket.gethostname()}, then the same address"
        )
        serve_until_ended(Dashboards(_command(target, steer=steer), title, gate, entered), listening)
    return OK


def _command(run: str | None, *, steer: bool) -> str:
    """A shell command that runs the dashboard of one tab in the place of the shell."""
    words = [sys.executable, "-m", "hoptui"]
    words += [] if run is None else ["attach", run]
    words += [] if steer else ["--read-only"]
    return f"TEXTUAL_DRIVER={DRIVER} exec {shlex.join(words)}{_faults()}"


def _faults() -> str:
    """Has the shell tell a tab's faults on our stderr, behind what stands there if it is a file. A socket, as that of a service,
    cannot be opened once more: textual-serve then tells them, as far as it has read them."""
    return "" if stat.S_ISSOCK(os.fstat(2).st_mode) else f" 2>>/proc/{os.getpid()}/fd/2"
