"""Who gets in: a token that opens once, a secret path behind it, loopback names only. No I/O.

Every user of a node can reach a port on its loopback, and so can every page in the browser of its owner.
Cookies are shared by all ports of a host; a path is not: what was opened lives under a path that nobody can
guess.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

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
