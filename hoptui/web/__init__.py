"""The web server: the page and the websocket of textual-serve, under a secret path.

A token opens once and leads to the path. Only loopback names are served. Every user of a node can reach a
port on its loopback, and so can every page in the browser of its owner. All ports of a host share cookies,
and they do not share paths. So what was opened has a path that no other user can guess.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web
from textual_serve.server import Server

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
SECRET_BYTES = 24


class Gate:
    """`session` is the path of what is served, without slashes; `token` the word that leads there, once."""

    def __init__(self) -> None:
        self.session = secrets.token_urlsafe(SECRET_BYTES)
        self.token = secrets.token_urlsafe(SECRET_BYTES)

    def admit(self, token: str) -> bool:
        """Whether this is the token; one that was right opens nothing again."""
        right = hmac.compare_digest(token.encode(), self.token.encode())
        if right:
            self.token = secrets.token_urlsafe(SECRET_BYTES)
        return right


def refusal(headers: Mapping[str, str], *, websocket: bool) -> str:
    """Why a request is turned away before anything is looked at, "" if it is not.

    A name other than loopback's is a page elsewhere that had its own name point here; a websocket is open to
    any page of the browser unless its Origin is looked at.
    """
    host = headers.get("Host", "")
    if _hostname(f"http://{host}") not in LOOPBACK:
        return "this is served on localhost alone"
    if websocket and headers.get("Origin") != f"http://{host}":
        return "a page elsewhere may not open this"
    return ""


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


HERE = Path(__file__).parent
MOST_TABS = 8
"""Each tab is a process of its own, on a node that has better things to do."""
GOODBYE_S = 2.0
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self' ws:; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",  # the address holds the secret
    "X-Content-Type-Options": "nosniff",
}
USED = (
    "This address opens once, and was used or is not right. The terminal in which hoptui serve runs shows a "
    "new one.\n"
)


class Dashboards(Server):
    """Starts `command`, a shell command that runs the dashboard, for every tab."""

    def __init__(self, command: str, title: str, gate: Gate, entered: Callable[[], None]) -> None:
        super().__init__(command, title=title, templates_path=HERE)
        self.gate = gate
        self._entered = entered
        self._tabs: set[asyncio.Task[object]] = set()

    async def application(self) -> web.Application:
        """The gate and, behind it, what textual-serve serves."""
        inner = await self._make_app()
        inner.router.add_get("/focus.js", _focus)
        app = web.Application(middlewares=[_turn_away])
        app.router.add_get("/", self._enter, allow_head=False)  # a preview of the link must not use it up
        app.add_subapp(f"/{self.gate.session}", inner)
        app.on_response_prepare.append(_add_headers)
        return app

    async def on_startup(self, app: web.Application) -> None:
        """Say nothing: the command line does."""

    async def on_shutdown(self, app: web.Application) -> None:
        """End the dashboards of all tabs."""
        for tab in self._tabs:
            tab.cancel()
        if self._tabs:
            await asyncio.wait(self._tabs, timeout=GOODBYE_S)

    async def handle_index(self, request: web.Request) -> web.StreamResponse:
        """The page, with the addresses by which this browser reaches it: it may come through a forwarded
        port."""
        self.public_url = f"http://{request.host}"
        return await super().handle_index(request)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """A tab: a dashboard that lives as long as it does."""
        if len(self._tabs) >= MOST_TABS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_TABS} tabs are open already")
        tab = asyncio.current_task()
        assert tab is not None
        self._tabs.add(tab)
        try:
            return await super().handle_websocket(request)
        finally:
            self._tabs.discard(tab)

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        if not self.gate.admit(request.query.get("token", "")):
            raise web.HTTPForbidden(text=USED)
        self._entered()
        raise web.HTTPSeeOther(f"/{self.gate.session}/")


@web.middleware
async def _turn_away(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    upgrade = request.headers.getall("Upgrade", [])
    if upgrade and [one.strip().lower() for one in upgrade] != ["websocket"]:
        raise web.HTTPBadRequest(text="only an upgrade to websocket alone is possible\n")
    if why := refusal(request.headers, websocket=bool(upgrade)):
        raise web.HTTPForbidden(text=f"{why}\n")
    return await handler(request)


async def _focus(request: web.Request) -> web.StreamResponse:
    return web.FileResponse(HERE / "focus.js")


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


def serve(dashboards: Dashboards, listening: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM; dashboards that do not end by then see the end of their input."""
    web.run_app(
        dashboards.application(),
        sock=listening,
        print=None,
        access_log=None,
        shutdown_timeout=GOODBYE_S,
    )
