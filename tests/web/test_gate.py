"""Who gets in, and what a page elsewhere or another user of the node sees."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("textual_serve", reason="needs the extra 'web'")

from aiohttp import WSServerHandshakeError
from aiohttp.test_utils import TestClient, TestServer

from hoptui.web import Dashboards, Gate, refusal
from tests.golden import Golden

Script = Callable[[TestClient[Any, Any], Dashboards], Awaitable[None]]


@pytest.mark.guarantee("browser-gate")
def test_a_token_opens_once_and_the_next_one_is_another() -> None:
    gate = Gate()
    first = gate.token
    assert not gate.admit("")
    assert not gate.admit(first + "x")
    assert not gate.admit("ä")
    assert gate.admit(first)
    assert not gate.admit(first)
    assert gate.token not in (first, gate.session)
    assert gate.admit(gate.token)


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:9000", "localhost", "[::1]:8765"])
def test_loopback_by_any_port_is_served(host: str) -> None:
    assert refusal({"Host": host}, websocket=False) == ""
    assert refusal({"Host": host, "Origin": f"http://{host}"}, websocket=True) == ""


@pytest.mark.guarantee("browser-gate")
def test_any_other_name_is_turned_away(golden: Golden) -> None:
    hosts = ("", "gpu07:8765", "evil.example", "127.0.0.1.evil.example", "[::1", "user@evil")
    [sentence] = {refusal({"Host": host}, websocket=False) for host in hosts}
    assert sentence
    golden(sentence)


@pytest.mark.guarantee("browser-gate")
def test_a_page_elsewhere_opens_no_websocket(golden: Golden) -> None:
    host = {"Host": "localhost:8765"}
    origins = ("null", "http://localhost:1", "https://localhost:8765", "http://evil.example")
    asked = [host, *(host | {"Origin": origin} for origin in origins)]
    [sentence] = {refusal(headers, websocket=True) for headers in asked}
    assert sentence
    golden(sentence)


def play(script: Script, command: str = "false") -> list[str]:
    """Run a script against a server; how often somebody entered."""
    entered: list[str] = []

    async def main() -> None:
        dashboards = Dashboards(command, "hoptui toy", Gate(), lambda: entered.append("!"))
        async with TestClient(TestServer(await dashboards.application())) as client:
            await asyncio.wait_for(script(client, dashboards), 30)

    asyncio.run(main())
    return entered


def test_the_address_leads_to_the_page_once() -> None:
    async def script(client: TestClient[Any, Any], dashboards: Dashboards) -> None:
        token = dashboards.gate.token
        page = await client.get(f"/?token={token}")
        body = await page.text()
        assert (page.status, page.url.path) == (200, f"/{dashboards.gate.session}/")
        assert "<title>hoptui toy</title>" in body
        port = client.port
        assert f"ws://127.0.0.1:{port}/{dashboards.gate.session}/ws" in body
        assert "https://" not in body  # nothing is fetched from elsewhere
        assert page.headers["Referrer-Policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]
        again = await client.get(f"/?token={token}")
        assert again.status == 403
        assert "opens once" in await again.text()

    assert play(script) == ["!"]


@pytest.mark.parametrize("upgrade", ["h2c, websocket", "websocket, h2c", "h2c", "websocket2"])
def test_another_upgrade_is_refused_before_anything_else(upgrade: str) -> None:
    async def script(client: TestClient[Any, Any], dashboards: Dashboards) -> None:
        headers = {"Upgrade": upgrade, "Connection": "Upgrade", "Origin": "http://evil.example"}
        answer = await client.get(f"/{dashboards.gate.session}/ws", headers=headers)
        assert answer.status == 400

    play(script)


def test_a_look_at_the_heads_alone_does_not_use_the_address_up() -> None:
    async def script(client: TestClient[Any, Any], dashboards: Dashboards) -> None:
        token = dashboards.gate.token
        assert (await client.head(f"/?token={token}", allow_redirects=False)).status == 405
        assert (await client.get(f"/?token={token}")).status == 200

    assert play(script) == ["!"]


def test_a_forwarded_port_is_the_one_that_the_page_names() -> None:
    async def script(client: TestClient[Any, Any], dashboards: Dashboards) -> None:
        page = await client.get(f"/{dashboards.gate.session}/", headers={"Host": "localhost:9000"})
        assert f"ws://localhost:9000/{dashboards.gate.session}/ws" in await page.text()

    play(script)


@pytest.mark.parametrize(
    "path", ["/", "/?token=", "/?token=guess", "/ws", "/static/", "/guess/", "/guess/ws"]
)
@pytest.mark.guarantee("browser-gate")
def test_without_the_token_there_is_nothing(path: str) -> None:
    async def script(client: TestClient[Any, Any], dashboards: Dashboards) -> None:
        assert (await client.get(path)).status in (403, 404)

    assert play(script) == []


def test_a_page_elsewhere_starts_no_dashboard() -> None:
    async def script(client: TestClient[Any, Any], dashboards: Dashboards) -> None:
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            with pytest.raises(WSServerHandshakeError) as refused:
                await client.ws_connect(f"/{dashboards.gate.session}/ws", headers=headers)
            assert refused.value.status == 403

    play(script)
