"""`hoptui serve` in a real browser: what it draws, what a key does, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import base64
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psutil
import pytest

pytest.importorskip("textual_serve", reason="needs the extra 'web'")

import pyte
from aiohttp import ClientSession, ClientWebSocketResponse

from tests.conftest import TestNode, until
from tests.golden import Golden

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


class Served:
    """`hoptui serve` on a free port."""

    def __init__(self, node: TestNode, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hoptui", "serve", "--port", "0", *options],
            env=node.environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    def address(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.search(r"http://\S+token=\S+", line):
                return found.group()
        raise AssertionError("no address was printed")

    def dashboards(self) -> list[psutil.Process]:
        """The dashboards, without what they start themselves, such as a daemon."""
        return psutil.Process(self.process.pid).children()

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(20)


@pytest.fixture
def serve(node: TestNode) -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(*options: str) -> Served:
        started.append(Served(node, *options))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate(timeout=10)


class Page:
    """A page of Chromium over its debugging protocol: the terminal that it draws, read from its websocket's
    frames."""

    def __init__(self, link: ClientWebSocketResponse, session: str) -> None:
        self._link = link
        self._session = session
        self._next = 0
        self.screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self.screen)
        self.closed = False
        self.errors: list[str] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._next += 1
        number = self._next
        await self._link.send_json(
            {"id": number, "method": method, "params": params, "sessionId": self._session}
        )
        while True:
            message = await self._receive()
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])

    async def shows(self, pattern: str) -> re.Match[str]:
        """Wait until the terminal shows it."""
        while not (found := re.search(pattern, "\n".join(self.screen.display))):
            await self._receive()
        return found

    async def press(self, key: str) -> None:
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=key, key=key)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def until_closed(self) -> None:
        while not self.closed:
            await self._receive()

    async def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = await self._link.receive_json()
        params = message.get("params", {})
        match message.get("method"):
            case "Network.webSocketCreated":
                size = parse_qs(urlsplit(params["url"]).query)
                self.screen.resize(int(size["height"][0]), int(size["width"][0]))
            case "Network.webSocketFrameReceived" if params["response"]["opcode"] == 2:
                self._stream.feed(base64.b64decode(params["response"]["payloadData"]))
            case "Network.webSocketClosed":
                self.closed = True
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.errors.append(params["entry"]["text"])
        return message


@asynccontextmanager
async def chromium(profile: Path) -> AsyncIterator[Page]:
    assert CHROMIUM is not None
    process = await asyncio.create_subprocess_exec(
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--remote-debugging-port=0", f"--user-data-dir={profile}", "--window-size=1200,800", "about:blank",
        stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        address = ""
        while not address:
            line = (await process.stderr.readline()).decode()
            assert line, "Chromium ended"
            address = line.partition("DevTools listening on ")[2].strip()
        async with ClientSession() as session, session.ws_connect(address, max_msg_size=0) as link:
            await link.send_json({"id": 0, "method": "Target.getTargets"})
            targets = (await link.receive_json())["result"]["targetInfos"]
            target = next(t["targetId"] for t in targets if t["type"] == "page")
            attach = {"targetId": target, "flatten": True}
            await link.send_json({"id": 0, "method": "Target.attachToTarget", "params": attach})
            while "result" not in (message := await link.receive_json()):
                pass
            page = Page(link, message["result"]["sessionId"])
            for domain in ("Network", "Log", "Page"):
                await page.call(f"{domain}.enable")
            await page.call("Emulation.setFocusEmulationEnabled", enabled=True)
            yield page
    finally:
        with_children = [*psutil.Process(process.pid).children(recursive=True)]
        process.kill()
        await process.wait()
        psutil.wait_procs(with_children, timeout=10)


@needs_chromium
def test_a_browser_shows_the_dashboard_and_takes_keys(
    node: TestNode, serve: Callable[..., Served], tmp_path: Path
) -> None:
    node.start()
    run = node.viewer().run()
    served = serve(run.run, "--steer")

    async def script() -> None:
        async with chromium(tmp_path) as page:
            await page.call("Page.navigate", url=served.address())
            await page.shows(run.name)
            assert page.errors == []  # nothing that the page's policy forbids, nothing that was not found
            await page.press("?")  # without a click before
            await page.shows("Help")

    asyncio.run(asyncio.wait_for(script(), 60))
    until(lambda: not served.dashboards(), what="the end of the tab's dashboard")


@asynccontextmanager
async def opened(address: str) -> AsyncIterator[ClientWebSocketResponse]:
    """A tab without a browser: what its page does."""
    async with ClientSession() as session:
        async with session.get(address) as page:
            found = re.search(r'websocket-url="(ws:\S+)"', await page.text())
            assert found is not None
        origin = f"http://{page.url.host}:{page.url.port}"
        async with session.ws_connect(
            f"{found.group(1)}?width=100&height=30", headers={"Origin": origin}
        ) as tab:
            await tab.receive_bytes()
            yield tab


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -9)])
def test_no_dashboard_outlives_the_server(
    node: TestNode, serve: Callable[..., Served], number: signal.Signals, code: int
) -> None:
    served = serve()

    async def script() -> list[psutil.Process]:
        async with opened(served.address()):
            [dashboard] = served.dashboards()
            assert await asyncio.to_thread(served.end, number) == code
            return [dashboard]

    left = asyncio.run(asyncio.wait_for(script(), 60))
    assert psutil.wait_procs(left, timeout=20)[1] == []


@pytest.mark.guarantee("browser-gate")
def test_leaving_the_dashboard_ends_the_tab_and_not_the_server(
    node: TestNode, serve: Callable[..., Served]
) -> None:
    served = serve()

    async def script() -> None:
        async with opened(served.address()) as tab:
            seen = b""
            while b"read-only" not in seen:  # unless asked for more
                seen += await tab.receive_bytes()
            await tab.send_json(["stdin", "q"])
            async for _ in tab:  # until it is closed
                pass
        async with opened(served.address()):
            pass

    asyncio.run(asyncio.wait_for(script(), 60))
    assert served.end() == 0


def test_what_cannot_be_served_is_one_sentence(node: TestNode, golden: Golden) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = node.hoptui("serve", "--port", str(port))
    assert (done.returncode, f"127.0.0.1:{port}" in done.stderr) == (1, True)
    text = done.stderr.replace(str(port), "PORT")
    done = node.hoptui("serve", "--port", "99999")
    assert (done.returncode, done.stdout) == (2, "")
    text += done.stderr
    node.environment["HOPTUI_READ_ONLY"] = "1"
    done = node.hoptui("serve", "--steer", "--port", "0")
    assert (done.returncode, done.stdout) == (1, "")
    text += done.stderr
    done = node.hoptui("serve", "nope")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    golden(text + done.stderr)


def test_a_tab_takes_nothing_from_the_file_that_it_is_told_in(node: TestNode, tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = [sys.executable, "-m", "hoptui", "serve", "--port", "0"]
    with told.open("w") as file:
        process = subprocess.Popen(command, env=node.environment, stdout=file, stderr=file)
    try:
        found = until(lambda: re.search(r"http://\S+token=\S+", told.read_text()), what="the address")

        async def script() -> None:
            async with opened(found.group()) as tab:
                await tab.receive_bytes()

        asyncio.run(asyncio.wait_for(script(), 60))
        assert found.group() in told.read_text()
    finally:
        process.terminate()
        process.wait(20)


def test_a_socket_for_faults_is_not_opened_once_more() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        said = subprocess.run(
            [sys.executable, "-c", "from hoptui.cli.commands.serve import _faults; print(_faults())"],
            stdout=subprocess.PIPE, stderr=theirs.fileno(), text=True, check=True, timeout=30,
        )  # fmt: skip
    assert said.stdout.strip() == ""
