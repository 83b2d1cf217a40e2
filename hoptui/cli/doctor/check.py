"""One thing that was looked at, and how a probe is kept from hanging or taking the doctor down."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal, NamedTuple

Status = Literal["ok", "warning", "failed", "unknown"]
LIMIT_S = 3.0


class Check(NamedTuple):
    """One thing that was looked at; `unknown` if it could not be. `advice` may be empty where nothing needs to be done."""

    id: str
    status: Status
    detail: str
    advice: str = ""


def within(check_id: str, probe: Callable[[], Check], limit_s: float = LIMIT_S) -> Check:
    """What `probe` finds, or that it failed or took longer than `limit_s`.

    It runs in a thread of its own that is left alone when its time is up: a stale network file system or a wedged driver
    blocks whoever looks at it.
    """
    found: list[Check] = []

    def look() -> None:
        try:
            found.append(probe())
        except Exception as error:
            detail = f"could not be looked at: {type(error).__name__}: {error}"
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
