"""The author of a command as text. The run, the daemon and the viewers share it."""

from __future__ import annotations

from hoptui.domain.tuning import TUNER
from hoptui.protocol.messages import Origin

LONGEST_NAME = 32
SOMEBODY = "somebody"


def author(origin: Origin, *, sentence: bool = False) -> str:
    """Return `ana (pid 4121)`, `agent coder (pid 4121)`, `tuner` or `daemon`; in a `sentence`, `the tuner`.

    A user without a known name is `somebody`. Unprintable characters are removed.
    """
    if origin.kind == "tuner" and sentence:
        return TUNER
    if origin.kind not in ("person", "agent"):
        return origin.kind
    name = _name(origin)
    return f"{name} (pid {origin.pid})" if origin.pid else name


def author_word(origin: Origin) -> str:
    """Return the author as one word for a filter: a user's name in lower case, `agent_coder`, `tuner` or
    `daemon`."""
    name = _name(origin) if origin.kind in ("person", "agent") else origin.kind
    return "_".join(_printable(name).lower().split()) or SOMEBODY


def _name(origin: Origin) -> str:
    if origin.kind == "agent":
        return f"agent {_printable(origin.client)}".rstrip()
    return _printable(origin.user) or SOMEBODY


def _printable(name: str) -> str:
    if not name.isprintable():
        name = "".join(c if c.isprintable() else " " if c.isspace() else "" for c in name)
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
