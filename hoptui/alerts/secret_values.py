"""Values that may be secrets: from the configuration, an environment variable, or a file."""

from __future__ import annotations

import os
from pathlib import Path

from hoptui.domain.alerts import AlertTarget
from hoptui.domain.facts import Fact, fact
from hoptui.node.files import expanded

LONGEST = 4096


class DeliveryError(Exception):
    """A delivery failed. `fact` is why, without a secret."""

    def __init__(self, why: Fact) -> None:
        super().__init__(why.code)
        self.fact = why


def secret_value(target: AlertTarget, name: str) -> str:
    """Return the `url` or the `token` of a target, "" if it has none.

    Raises:
        DeliveryError: the variable is not set, the file cannot be read, or the value is not one line.
    """
    given, variable, file = (str(getattr(target, f"{name}{end}")) for end in ("", "_env", "_file"))
    if file:
        value = _in_file(file, f"{name}_file")
    elif variable:
        value = os.environ.get(variable, "").strip()
        if not value:
            raise DeliveryError(fact("alert.no_variable", key=f"{name}_env"))
    else:
        value = given.strip()
    if not (value.isascii() and value.isprintable()):
        raise DeliveryError(fact("alert.bad_secret", key=name))
    return value


def _in_file(file: str, key: str) -> str:
    path: Path = expanded(file)
    try:
        if not path.is_file():  # a pipe would block
            raise DeliveryError(fact("alert.no_file", key=key))
        with path.open("rb") as opened:
            value = opened.read(LONGEST).decode("ascii", "replace").strip()
    except OSError as error:
        raise DeliveryError(fact("alert.unreadable", key=key, error=error.strerror or "")) from None
    if not value:
        raise DeliveryError(fact("alert.no_file", key=key))
    return value
