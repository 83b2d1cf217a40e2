"""A real HTTP server on this machine that keeps what it receives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest


class Received(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Hook:
    """A webhook. `statuses` are those of its next answers, then 200. It is silent while `held` is cleared."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.statuses: list[int] = []
        self.held = threading.Event()
        self.held.set()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.received.append(Received(self.path, dict(self.headers), body))
                hook.held.wait(20)
                status = hook.statuses.pop(0) if hook.statuses else 200
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", f"{hook.url}/elsewhere")
                self.end_headers()

            def do_GET(self) -> None:
                hook.received.append(Received(self.path, dict(self.headers), b""))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.held.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    found = Hook()
    yield found
    found.close()
