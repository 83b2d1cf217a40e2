"""The checks of `hoptui doctor`. Each probe returns a `Check`, changes nothing and has a time limit.

Only `hoptui.cli.commands.doctor` uses them. Probes take what they read (`/proc`, `/dev`, an environment)
as arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal, NamedTuple

Status = Literal["ok", "optional", "warning", "failed", "unknown"]
LIMIT_S = 3.0


class Check(NamedTuple):
    """The result of one check; `unknown` if it could not be made. `advice` is empty if none is needed.

    `optional` is what this node lacks and need not have, such as an optional package or a GPU.
    """

    id: str
    status: Status
    detail: str
    advice: str = ""


def within(check_id: str, probe: Callable[[], Check], limit_s: float = LIMIT_S) -> Check:
    """Run `probe`. Return its result, or a failure if it raises or exceeds `limit_s`.

    The probe runs in its own thread, which is abandoned at the limit: a stale network file system or a hung
    driver blocks every caller.
    """
    found: list[Check] = []

    def look() -> None:
        try:
            found.append(probe())
        except Exception as error:
            detail = f"the check failed: {type(error).__name__}: {error}"
            found.append(Check(check_id, "failed", detail, "this is a fault of hoptui: please report it"))

    thread = threading.Thread(target=look, name=f"check-{check_id}", daemon=True)
    thread.start()
    thread.join(limit_s)
    if found:
        return found[0]
    detail = f"did not answer within {limit_s:g} s"
    return Check(
        check_id, "failed", detail, "a file system or a driver of this node hangs: dmesg may say which"
    )
