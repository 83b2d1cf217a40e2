"""`hoptui mcp`: let an LLM agent observe runs and steer them, over MCP on standard input and output."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from hoptui.cli.support.snapshot import refuse_read_only
from hoptui.cli.support.terminal import OK, usage


def mcp(
    *,
    control: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Also offer the tools that change runs."),
    ] = False,
) -> int:
    """Serve runs to an LLM agent over MCP, on standard input and output; read-only by default.

    A program that runs agents starts this command. It ends when standard input is closed.
    """
    try:
        from hoptui.cli.agent.server import serve
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "hoptui":
            raise
        raise usage("hoptui mcp needs the MCP SDK: pip install 'hoptui[mcp]'") from None
    if control:
        refuse_read_only("the agent could send nothing")
    serve(steers=control)
    return OK
