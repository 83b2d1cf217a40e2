"""The MCP server of runs, on standard input and output. Only this module imports the MCP SDK."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import anyio
import msgspec
from anyio import to_thread
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field

from hoptui import __version__
from hoptui.cli.agent import control, observation
from hoptui.cli.support.run_events import EVENTS
from hoptui.cli.support.terminal import INTERRUPTED, Fail
from hoptui.domain.knobs import KnobValue
from hoptui.domain.tuning import Objective

INSTRUCTIONS = """Observe GPU training runs and, if the tools for it are listed, steer them.
Null is unknown. A change of a knob is read back from the trainer; its effect on speed is measured over some
20 iterations afterwards. A knob that a person set is refused until a person releases it. An effect that is
`contended` may come from other processes. A command whose stage is not final stays in effect."""
UNNAMED = "unnamed"
"""An agent whose program does not say its name."""

Run = Annotated[str, Field(description="A run's name, its id, or the beginning of its id; see `runs`.")]
Event = Annotated[str, Field(description="; ".join(f"{name}: {text}" for name, text in EVENTS.items()))]
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
STEERS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
ENDS = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)


def serve(*, steers: bool) -> None:
    """Answer an agent until it closes standard input. Ctrl-C ends this process at once and silently.

    Commands that were sent stay in effect. With `steers`, there are also tools that change runs.
    """
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    server = MCPServer("hoptui", version=__version__, instructions=INSTRUCTIONS, log_level="ERROR")
    _observe(server)
    if steers:
        _steer(server)
    try:
        anyio.run(server.run_stdio_async)
    except* BrokenPipeError:  # the agent is gone
        pass


async def _answer(work: Callable[[Callable[[], bool]], dict[str, Any]]) -> CallToolResult:
    """Run blocking work in a thread. It is given a function that says whether the agent has given it up."""
    given_up = threading.Event()
    try:
        found = await to_thread.run_sync(work, given_up.is_set, abandon_on_cancel=True)
    except Fail as fail:
        return _result({"error": str(fail), "code": fail.code}, failed=True)
    finally:
        given_up.set()
    return _result(found)


def _result(found: dict[str, Any], *, failed: bool = False) -> CallToolResult:
    encoded = msgspec.json.encode(found)
    return CallToolResult(
        content=[TextContent(type="text", text=encoded.decode())],
        structured_content=msgspec.json.decode(encoded),
        is_error=failed,
    )


def _observe(server: MCPServer[Any]) -> None:
    """Add the tools that change nothing."""

    @server.tool(annotations=READS)
    async def runs() -> CallToolResult:
        """List the runs on this machine with their state."""
        return await _answer(lambda _: observation.runs())

    @server.tool(annotations=READS)
    async def status(run: Run) -> CallToolResult:
        """Show one run in less than 1 kB: state, speed, time left, what limits it, and the newest metrics."""
        return await _answer(lambda _: observation.status(run))

    @server.tool(annotations=READS)
    async def list_knobs(run: Run) -> CallToolResult:
        """List the knobs of a run: value, bounds, effect (`speed` or `learning`), cost, and who holds it."""
        return await _answer(lambda _: observation.list_knobs(run))

    @server.tool(annotations=READS)
    async def wait_for(run: Run, event: Event, timeout_s: float = 30.0) -> CallToolResult:
        """Wait until something happens to a run, at most `timeout_s` (up to 600)."""
        return await _answer(partial(observation.wait_for, run, event, timeout_s))

    @server.tool(annotations=READS)
    async def history(
        run: Run,
        since: Annotated[
            str,
            Field(description="Seconds since 1970, ISO 8601, an age such as 10m, or the id of a command."),
        ] = "",
        most: int = 20,
    ) -> CallToolResult:
        """List the newest commands sent to a run, whoever sent them, with outcome and measured effect."""
        return await _answer(lambda _: observation.history(run, since, most))

    @server.tool(annotations=READS)
    async def where(
        run: Run, rank: int | None = None, seconds: float = 60.0, most: int = 10
    ) -> CallToolResult:
        """Show the lines of the script that the time of a run goes to, from samples of its stack."""
        return await _answer(lambda _: observation.where(run, rank, seconds, most))

    @server.tool(annotations=READS)
    async def stack(run: Run) -> CallToolResult:
        """Show where the ranks of a run are now, the odd ones first. For a run that hangs."""
        return await _answer(lambda _: observation.stack(run))


def _steer(server: MCPServer[Any]) -> None:
    """Add the tools that change runs."""

    @server.tool(name="set", annotations=STEERS)
    async def set_knobs(
        ctx: Context[Any, Any],
        run: Run,
        values: Annotated[dict[str, KnobValue], Field(description="The wanted value of each knob.")],
        why: Annotated[str, Field(description="The reason, for the history.")] = "",
        dry_run: Annotated[bool, Field(description="Check the values and change nothing.")] = False,
        restart: Annotated[bool, Field(description="Permit knobs of cost `restart`.")] = False,
        measure_s: Annotated[
            float, Field(description="Wait so long for the measured effect; 0: do not wait.")
        ] = 0.0,
    ) -> CallToolResult:
        """Set knobs of a run. Returns the values that the trainer read back, and the effect with its
        interval, or that it is not measured yet (then use wait_for with effect=ID)."""
        work = partial(
            _set, _program(ctx), run, values, why=why, dry_run=dry_run, restart=restart, measure_s=measure_s
        )
        return await _answer(work)

    @server.tool(annotations=STEERS)
    async def tune(
        ctx: Context[Any, Any],
        run: Run,
        act: Annotated[
            control.Act, Field(description="plan: what the tuner would try next, without trying it.")
        ],
        budget: Annotated[
            float | None, Field(description="Share of the run's time that trials may cost, such as 0.04.")
        ] = None,
        objective: Objective | None = None,
        allow: Annotated[
            list[str], Field(description="Knobs of effect `learning` that it may change too.")
        ] = [],  # noqa: B006 - the SDK copies it
    ) -> CallToolResult:
        """Start or stop the tuner of a run, which keeps changes that help and reverts the rest."""
        program = _program(ctx)
        return await _answer(
            lambda ended: control.tune(
                program, run, act, budget=budget, objective=objective, allow=allow, ended=ended
            )
        )

    @server.tool(annotations=STEERS)
    async def checkpoint(ctx: Context[Any, Any], run: Run) -> CallToolResult:
        """Ask a run to write a checkpoint. `reason` says where it is."""
        return await _answer(partial(control.send, _program(ctx), run, "checkpoint"))

    @server.tool(annotations=STEERS)
    async def pause(ctx: Context[Any, Any], run: Run, seconds: float = 60.0) -> CallToolResult:
        """Pause a run after its current iteration. It resumes by itself after `seconds`."""
        return await _answer(partial(control.send, _program(ctx), run, "pause", hold_s=seconds))

    @server.tool(annotations=STEERS)
    async def resume(ctx: Context[Any, Any], run: Run) -> CallToolResult:
        """Let a paused run go on."""
        return await _answer(partial(control.send, _program(ctx), run, "resume"))

    @server.tool(annotations=ENDS)
    async def stop(
        ctx: Context[Any, Any],
        run: Run,
        confirm: Annotated[bool, Field(description="Must be true: the run ends and does not come back.")],
    ) -> CallToolResult:
        """Ask a run to stop after its current iteration. It shuts down normally."""
        if not confirm:
            return _result({"error": "the run was not stopped: confirm is false", "code": 2}, failed=True)
        return await _answer(partial(control.send, _program(ctx), run, "stop"))


def _set(
    agent: str, run: str, values: dict[str, KnobValue], ended: Callable[[], bool], **details: Any
) -> dict[str, Any]:
    return control.set_knobs(agent, run, values, ended=ended, **details)


def _program(ctx: Context[Any, Any]) -> str:
    """The program that runs the agent, as it says itself."""
    known = ctx.session.client_params
    return (known.client_info.name.strip() if known is not None else "") or UNNAMED
