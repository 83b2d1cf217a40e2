"""`hoptui serve`: serve the dashboard to a browser on this machine's loopback."""

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
from hoptui.client.target import is_path

PORT = 8765
DRIVER = "hoptui.tui.driver:BrowserDriver"


def serve(
    run: Annotated[str, Parameter(help="A run's name or id, or a recording file.")] | None = None,
    /,
    *,
    port: Annotated[int, Parameter(help="The port on 127.0.0.1; 0 selects any free port.")] = PORT,
    steer: Annotated[
        bool,
        Parameter(
            negative=(), show_default=False, help="Let the browser send commands (default: read-only)."
        ),
    ] = False,
) -> int:
    """Serve the dashboard to a browser on this machine. The address works once; Ctrl-C stops it."""
    try:
        from hoptui.web import Dashboards, Gate
        from hoptui.web import serve as serve_until_ended
    except ImportError as error:
        raise usage(f"hoptui serve needs textual-serve: pip install 'hoptui[web]' ({error})") from None

    if not 0 <= port < 1 << 16:
        raise usage(f"--port must be 0 to 65535, not {port}")
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
            say("opened; for another browser use:")
            invite()

        say(
            f"{title}: {'commands are sent' if steer else 'read-only'}, Ctrl-C stops it; "
            "this address works once:"
        )
        invite()
        say(
            f"from another machine: ssh -L {bound}:127.0.0.1:{bound} {socket.gethostname()}, "
            "then use the same address"
        )
        serve_until_ended(Dashboards(_command(target, steer=steer), title, gate, entered), listening)
    return OK


def _command(run: str | None, *, steer: bool) -> str:
    """A shell command that replaces the shell by the dashboard of one tab."""
    words = [sys.executable, "-m", "hoptui"]
    words += [] if run is None else ["attach", run]
    words += [] if steer else ["--read-only"]
    return f"TEXTUAL_DRIVER={DRIVER} exec {shlex.join(words)}{_faults()}"


def _faults() -> str:
    """A redirection that appends a tab's errors to our stderr.

    A socket, such as the stderr of a service, cannot be opened again. Then textual-serve reports the errors.
    """
    return "" if stat.S_ISSOCK(os.fstat(2).st_mode) else f" 2>>/proc/{os.getpid()}/fd/2"
