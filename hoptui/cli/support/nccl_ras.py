"""What the RAS service of NCCL says of the communicators of this node (NCCL 2.24; JSON since 2.28.7)."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

PORT = 28028
LIMIT_S = 1.0
"""How long all of it may take."""
MOST_BYTES = 4 << 20


def status(
    host: str = "localhost", port: int | None = None, limit_s: float = LIMIT_S
) -> dict[str, Any] | None:
    """Return the answer of the service, None without one that speaks JSON within the limit."""
    until = time.monotonic() + limit_s
    try:
        with socket.create_connection((host, port or _port()), limit_s) as connection:
            connection.sendall(b"SET FORMAT json\nVERBOSE STATUS\n")
            connection.shutdown(socket.SHUT_WR)
            answer = _read(connection, until)
    except (OSError, ValueError):
        return None
    begin = answer.find(b"{")
    try:
        found = json.loads(answer[begin:]) if begin >= 0 else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _port() -> int:
    """Return the port of NCCL_RAS_ADDR, or the usual one."""
    _, _, port = os.environ.get("NCCL_RAS_ADDR", "").rpartition(":")
    return int(port) if port.isdecimal() and 0 < int(port) < 65536 else PORT


def _read(connection: socket.socket, until: float) -> bytes:
    """Read to the end, or to the limit of time or size.

    Raises:
        TimeoutError: the time is up.
    """
    found = b""
    while len(found) < MOST_BYTES:
        connection.settimeout(max(0.001, until - time.monotonic()))
        part = connection.recv(64 << 10)
        if not part:
            break
        found += part
        if time.monotonic() > until:
            raise TimeoutError
    return found
