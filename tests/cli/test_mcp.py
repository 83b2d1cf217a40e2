"""`hoptui mcp`: an agent over the SDK's own client, against a real daemon and a real run."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from hoptui.domain.diagnosis import Advice, Diagnosis
from hoptui.domain.facts import fact
from tests import factories
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.conftest import DEADLINE_S, TestNode, until
from tests.golden import Golden

WITHOUT = "the MCP SDK is not installed: pip install 'hoptui[mcp]'"
OBSERVES = ["runs", "status", "list_knobs", "wait_for", "history", "where", "stack"]
STEERS = ["set", "tune", "checkpoint", "pause", "resume", "stop"]
SESSION_S = 110.0
EFFECT_S = 40.0
"""The longest wait for a measured effect: on a busy machine iterations differ much."""

SAVES = """
import time, hoptui
run = hoptui.connect("toy")
grad_accum = run.knob("grad_accum", 4, min=1, max=64, effect="speed")
lr = run.knob("lr", 3e-4, min=1e-6, max=1e-1, scale="log")
run.knob("width", 8, min=1, max=64, effect="speed", cost="restart")
run.on_checkpoint(lambda: "/tmp/toy.pt")
for i in run.iterations():
    time.sleep(0.01)
    run.log(samples=100 * grad_accum.value, loss=1.0 / (i + 1))
"""


class Agent:
    """The tools of a connected server."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self._client.list_tools()).tools]

    async def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The answer of a tool, which must be the same as text and as a value."""
        answer = await self._client.call_tool(tool, arguments)
        assert not answer.is_error, answer.content[0].text
        assert json.loads(answer.content[0].text) == answer.structured_content
        found: dict[str, Any] = answer.structured_content
        return found

    async def refused(self, tool: str, **arguments: Any) -> str:
        answer = await self._client.call_tool(tool, arguments)
        assert answer.is_error
        return str(answer.content[0].text)

    async def waits(self, event: str, timeout_s: float = DEADLINE_S) -> dict[str, Any]:
        found = await self("wait_for", run="toy", event=event, timeout_s=timeout_s)
        assert found["happened"], found
        return dict(found["detail"])


def session(node: TestNode, act: Callable[[Agent], Awaitable[None]], *options: str) -> None:
    """Connect as the agent `coder` to `hoptui mcp`, and let it act."""
    pytest.importorskip("mcp", reason=WITHOUT)
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters
    from mcp_types import Implementation

    server = StdioServerParameters(
        command=sys.executable, args=["-m", "hoptui", "mcp", *options], env=node.environment
    )

    async def whole() -> None:
        async with (
            asyncio.timeout(SESSION_S),
            Client(server, client_info=Implementation(name="coder", version="1")) as client,
        ):
            await act(Agent(client))

    asyncio.run(whole())


def begun(node: TestNode, script: str) -> subprocess.Popen[str]:
    """A run whose first iterations are over."""
    process = node.start(script)
    viewer = node.viewer("watch")
    run = viewer.run()
    until(lambda: viewer.vital(run.run).step > 10, what="some iterations")
    return process


def test_a_whole_session(node: TestNode) -> None:
    process = begun(node, SAVES)

    def person(*words: str) -> str:
        done = node.hoptui(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def act(agent: Agent) -> None:
        assert await agent.tools() == [*OBSERVES, *STEERS]
        [run] = (await agent("runs"))["runs"]
        assert (run["name"], run["state"], run["pid"]) == ("toy", "live", process.pid)
        status = await agent("status", run="toy")
        assert (status["run"], status["state"], status["total"]) == (run["run"], "live", None)
        knobs = (await agent("list_knobs", run="toy"))["knobs"]
        accum = knobs["grad_accum"]
        assert (accum["value"], accum["min"], accum["max"], accum["effect"]) == (4, 1, 64, "speed")
        assert (accum["cost"], accum["held_by"]) == ("free", None)

        would = (await agent("set", run="toy", values={"grad_accum": 8}, dry_run=True))["dry_run"]
        assert [(one["knob"], one["from"], one["to"]) for one in would] == [("grad_accum", 4, 8)]
        assert (await agent("list_knobs", run="toy"))["knobs"]["grad_accum"]["value"] == 4
        assert "no knob" in await agent.refused("set", run="toy", values={"nope": 1})
        [beyond] = (await agent("set", run="toy", values={"grad_accum": 65}))["commands"]
        assert (beyond["stage"], beyond["code"]) == ("rejected", "out_of_range")
        assert "restart=true" in await agent.refused("set", run="toy", values={"width": 16})

        [done] = (await agent("set", run="toy", values={"grad_accum": 8}, why="more work"))["commands"]
        assert (done["stage"], done["effective"], done["from"]) == ("applied", 8, 4)
        assert done["effect"] == "not measured yet" or done["measured"]
        effect = await agent.waits(f"effect={done['id']}", EFFECT_S)
        assert effect["measured"]["gain"] > 0.3
        assert effect["measured"]["interval"] > 0
        assert effect["contended"] in (False, True)
        [back] = (await agent("set", run="toy", values={"grad_accum": 4}, measure_s=EFFECT_S))["commands"]
        assert back["measured"]["gain"] < -0.2

        person("set", "toy", "lr=1e-3")
        [refused] = (await agent("set", run="toy", values={"lr": 3e-3}))["commands"]
        assert (refused["stage"], refused["code"], refused["effective"]) == (
            "rejected",
            "held_by_person",
            None,
        )
        who = (await agent("list_knobs", run="toy"))["knobs"]["lr"]["held_by"]
        assert who
        assert who in refused["reason"]
        person("tune", "toy", "--release", "lr")
        [allowed] = (await agent("set", run="toy", values={"lr": 3e-3}))["commands"]
        assert (allowed["stage"], allowed["effective"]) == ("applied", 3e-3)

        found = await agent("history", run="toy", since=done["id"])
        told = [(c["by"]["kind"], c["client"], c["knob"], c["stage"]) for c in found["commands"]]
        assert told == [
            ("agent", "coder", "grad_accum", "applied"),
            ("person", "cli", "lr", "applied"),
            ("agent", "coder", "lr", "rejected"),
            ("agent", "coder", "lr", "applied"),
        ]
        assert "agent coder (pid" in person("history", "toy")

        assert (await agent("tune", run="toy", act="status"))["tuner"]["stand"] == "off"
        budget = {"budget": 0.03, "allow": ["grad_accum"]}
        assert (await agent("tune", run="toy", act="start", **budget))["tuner"]["limits"]["budget"] == 0.03
        assert (await agent("tune", run="toy", act="stop"))["tuner"]["stand"] == "off"

        saved = (await agent("checkpoint", run="toy"))["command"]
        assert (saved["stage"], "/tmp/toy.pt" in saved["reason"]) == ("applied", True)
        assert (await agent("pause", run="toy"))["command"]["stage"] == "applied"
        assert await agent.waits("paused") == {"state": "paused"}
        assert (await agent("resume", run="toy"))["command"]["stage"] == "applied"
        await agent.waits("iteration")
        assert (await agent("stack", run="toy"))["ranks"][0]["pid"] == process.pid
        assert (await agent("where", run="toy"))["lines"][0]["share"] > 0

        assert "confirm" in await agent.refused("stop", run="toy", confirm=False)
        assert (await agent("stop", run="toy", confirm=True))["command"]["stage"] == "applied"
        assert (await agent.waits("ended"))["reason"] == "stopped"

    session(node, act, "--control")
    assert process.wait(DEADLINE_S) == 0


def test_without_control_it_only_observes(node: TestNode) -> None:
    process = begun(node, SAVES)

    async def act(agent: Agent) -> None:
        assert await agent.tools() == OBSERVES
        with pytest.raises(Exception, match="set"):
            await agent("set", run="toy", values={"grad_accum": 8})
        with pytest.raises(Exception, match="stop"):
            await agent("stop", run="toy", confirm=True)
        assert (await agent("history", run="toy"))["commands"] == []
        assert (await agent("list_knobs", run="toy"))["knobs"]["grad_accum"]["value"] == 4
        assert '"code":3' in await agent.refused("status", run="nope")
        assert '"code":2' in await agent.refused("wait_for", run="toy", event="rain")

    session(node, act)
    assert process.poll() is None


HELLO = [
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "raw", "version": "1"},
        },
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
]
WAIT = {
    "jsonrpc": "2.0",
    "id": 2,
    "method": "tools/call",
    "params": {"name": "wait_for", "arguments": {"run": "toy", "event": "ended", "timeout_s": 300}},
}
STATUS = WAIT | {"id": 3, "params": {"name": "status", "arguments": {"run": "toy"}}}


@pytest.mark.parametrize(("end", "code"), [("ctrl-c", 130), ("closed", 0)])
def test_it_ends_silently_in_a_wait_and_the_run_goes_on(node: TestNode, end: str, code: int) -> None:
    pytest.importorskip("mcp", reason=WITHOUT)
    process = begun(node, SAVES)
    server = subprocess.Popen(
        [sys.executable, "-m", "hoptui", "mcp", "--control"],
        env=node.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdin is not None
        assert server.stdout is not None
        for message in (*HELLO, WAIT, STATUS):
            server.stdin.write(json.dumps(message) + "\n")
            server.stdin.flush()
        said = [json.loads(server.stdout.readline()) for _ in range(2)]
        assert [message["id"] for message in said] == [1, 3], "the wait blocks nothing"
        if end == "ctrl-c":
            server.send_signal(signal.SIGINT)
        else:
            server.stdin.close()
        assert server.wait(DEADLINE_S) == code
        assert server.stderr is not None
        assert server.stderr.read() == ""
        assert all("jsonrpc" in json.loads(line) for line in server.stdout)
    finally:
        server.kill()
        server.wait(DEADLINE_S)
        for stream in (server.stdin, server.stdout, server.stderr):
            assert stream is not None
            stream.close()
    assert process.poll() is None
    viewer = node.viewer("after")
    reached = viewer.vital(viewer.run().run).step
    until(lambda: viewer.vital(viewer.run().run).step > reached, what="more iterations")


def test_without_the_sdk_it_says_how_to_install_it(
    hoptui: Hoptui, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    monkeypatch.delitem(sys.modules, "hoptui.cli.agent.server", raising=False)
    ended = hoptui("mcp")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    golden(hoptui.transcript())


def test_a_read_only_configuration_refuses_control(
    hoptui: Hoptui, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    pytest.importorskip("mcp", reason=WITHOUT)
    monkeypatch.setenv("HOPTUI_READ_ONLY", "1")
    assert hoptui("mcp", "--control").code == 1
    golden(hoptui.transcript())


def test_a_status_is_small_and_what_is_not_known_is_null(daemon: FakeDaemon) -> None:
    from hoptui.cli.agent import observation

    advice = Advice(knob="k" * 300, direction="up", value="v" * 300, fact=fact("trial.note", text="t" * 900))
    long = Diagnosis(verdict="launch-bound", confidence=0.9, advice=(advice,))
    metrics = {f"{'m' * 70}_{i}": i / 3 for i in range(30)}
    daemon.add(factories.run(name="n" * 200, diagnosis=long), metrics=metrics)
    daemon.add(factories.run("efgh6789", "young", headline="", total=None))
    daemon.start()
    status = observation.status("abcd2345")
    assert len(msgspec.json.encode(status)) <= observation.STATUS_BYTES
    assert status["verdict"]["verdict"] == "launch-bound"
    assert status["metrics"]
    assert status["verdict"]["advice"]
    young = observation.status("young")
    for unknown in ("verdict", "throughput", "left_s"):
        assert young[unknown] is None, unknown


def test_an_older_daemon_gets_no_command_of_an_agent(ppo: FakeDaemon) -> None:
    from hoptui.cli.agent import control
    from hoptui.cli.support.terminal import Fail
    from hoptui.protocol.messages import Command

    with pytest.raises(Fail, match="older"):
        control.send("coder", "ppo", "stop", lambda: False)
    assert not ppo.of(Command)
