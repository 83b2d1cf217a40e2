"""The HTTP server of the Prometheus endpoint: few connections at once, each for a short time.

Every process of the machine can connect to it, also those of other users. Connections above the limit are
closed at once, so they take neither threads nor file descriptors. On loopback, requests must name this
machine as their host. Else a web page could read the metrics by a name that resolves to 127.0.0.1 (DNS
rebinding).
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

log = logging.getLogger("hoptui.daemon")

MOST_CONNECTIONS = 8
REQUEST_S = 5.0
"""How long a connection may last, from the first byte of the request to the last of the answer."""
App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S

    def address_string(self) -> str:
        """Return the client's address without a question to a name server."""
        return str(self.client_address[0])

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Log nothing."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves a WSGI application in threads of its own, from the start until `close`.

    Raises:
        OSError: the address cannot be served.
    """

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, host: str, port: int, app: App, *, request_s: float = REQUEST_S) -> None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        self._request_s = request_s
        self._slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self.problem = ""
        """The error that ended the server, "" without one."""
        super().__init__(address, _Handler)  # type: ignore[arg-type]
        self.set_app(_local(app) if _loopback(str(address[0])) else app)
        self._thread = threading.Thread(target=self._main, name="metrics", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        try:
            self.serve_forever()
        except BaseException as error:  # the daemon lives on, and reports it
            log.exception("the server of the metrics has ended")
            self.problem = f"{type(error).__name__}: {error}"

    def close(self, timeout: float) -> None:
        """Stop serving. Wait for the loop, not for requests."""
        self.shutdown()
        self.server_close()
        self._thread.join(timeout)

    def server_bind(self) -> None:
        """Bind without a question to a name server."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Take a connection if one of the slots is free. Else it is closed at once."""
        return self._slots.acquire(blocking=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer one request in a thread. If there can be no thread, its slot is free again."""
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one request. The connection is closed after `request_s`, also if it sends byte by byte."""
        end = threading.Timer(self._request_s, _end, (request,))
        end.daemon = True
        try:
            end.start()
            super().process_request_thread(request, client_address)
        except RuntimeError:  # there can be no further thread
            self.shutdown_request(request)
        finally:
            end.cancel()
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a client that has gone is no fault of the daemon."""


def _end(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _local(app: App) -> App:
    """Refuse requests whose host is not this machine."""

    def checked(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        name = str(environ.get("HTTP_HOST", "localhost"))
        host = name.partition("]")[0].removeprefix("[") if name.startswith("[") else name.partition(":")[0]
        if host.lower() != "localhost" and not _loopback(host):
            start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
            return [b"the host of the request must be localhost or 127.0.0.1\n"]
        return app(environ, start_response)

    return checked
