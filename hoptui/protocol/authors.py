"""Who gave a command, in words: the same in the run, the daemon and the viewers."""

from __future__ import annotations

from hoptui.domain.tuning import TUNER
from hoptui.protocol.messages import Origin

LONGEST_NAME = 32
SOMEBODY = "somebody"


def author(origin: Origin, *, sentence: bool = False) -> str:
    """`ana (pid 4121)`, `tuner` or `daemon`; in a `sentence` it is `the tuner`.

    A user whose name is unknown is `somebody`. What cannot be printed in a name is left out.
    """
    if origin.kind == "tuner" and sentence:
        return TUNER
    if origin.kind != "person":
        return origin.kind
    name = _printable(origin.user) or SOMEBODY
    return f"{name} (pid {origin.pid})" if origin.pid else name


def author_word(origin: Origin) -> str:
    """The author in one word, as a filter has it: a user's name in lower case, `tuner` or `daemon`."""
    name = origin.user if origin.kind == "person" else origin.kind
    return "_".join(_printable(name).lower().split()) or SOMEBODY


def _printable(name: str) -> str:
    if not name.isprintable():
        name = "".join(c if c.isprintable() else " " if c.isspace() else "" for c in name)
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
