"""What the RAS service of NCCL says of the communicators of this node (NCCL 2.24; JSON since 2.28.7)."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

PORT = 28028
LIMIT_S = 2.0
"""How long all of it may take."""
PEERS_S = 1
"""How long the service waits for the processes that it asks, in whole seconds. Its own limit is 5 s."""
MOST_BYTES = 4 << 20
ACCEPTED = b"OK"


class Uneven(NamedTuple):
    """A collective that the ranks of a communicator have begun unequally often: ranks by their count."""

    collective: str
    ranks: dict[int, list[int]]


def status(
    host: str = "localhost", port: int | None = None, limit_s: float = LIMIT_S
) -> dict[str, Any] | None:
    """Return the answer of the service, None without one that speaks JSON within the limit.

    Ask it of a hung run only: several versions may crash by the question while a communicator starts
    (NVIDIA/nccl#1669, #2346). Older ones, without this format, are not asked for the status.

    The connection is not half closed. The thread of the service belongs to the training process, and would
    spin until its answer is ready.
    """
    until = time.monotonic() + limit_s
    try:
        with socket.create_connection((host, port or _port()), limit_s) as connection:
            for setting in (b"SET FORMAT json\n", b"TIMEOUT %d\n" % PEERS_S):
                connection.sendall(setting)
                if _read(connection, until, line=True).strip() != ACCEPTED:
                    return None
            connection.sendall(b"VERBOSE STATUS\n")
            found = json.loads(_read(connection, until))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def uneven(answer: Mapping[str, Any], ranks: Mapping[int, int]) -> list[Uneven]:
    """Return the collectives that some ranks have begun less often than others in the same communicator.

    Args:
        answer: The answer of the service.
        ranks: The ranks of a run on this node, by their pids. All others are left out.
    """
    found = []
    for communicator in _dicts(answer.get("communicators")):
        members = [each for each in _dicts(communicator.get("ranks")) if each.get("pid") in ranks]
        if len({each.get("host") for each in members}) != 1:  # the pid of a process on another node
            continue
        by_name: dict[str, dict[int, list[int]]] = {}
        for member in members:
            for name, count in _counts(member).items():
                by_name.setdefault(name, {}).setdefault(count, []).append(ranks[member["pid"]])
        found += [Uneven(name, counts) for name, counts in by_name.items() if len(counts) > 1]
    return found


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _counts(member: Mapping[str, Any]) -> dict[str, int]:
    counts = member.get("collective_counts")
    items = counts.items() if isinstance(counts, dict) else ()
    return {str(name): count for name, count in items if isinstance(count, int)}


def _port() -> int:
    """Return the port of NCCL_RAS_ADDR, or the usual one."""
    _, _, port = os.environ.get("NCCL_RAS_ADDR", "").rpartition(":")
    return int(port) if port.isdecimal() and 0 < int(port) < 65536 else PORT


def _read(connection: socket.socket, until: float, *, line: bool = False) -> bytes:
    """Read to the end, of a line or of all, or to the limit of size.

    Raises:
        TimeoutError: the time is up.
    """
    found = b""
    while len(found) < MOST_BYTES and not (line and found.endswith(b"\n")):
        connection.settimeout(max(0.001, until - time.monotonic()))
        part = connection.recv(64 << 10)
        if not part:
            break
        found += part
        if time.monotonic() > until:
            raise TimeoutError
    return found
