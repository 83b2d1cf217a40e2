"""Are there file descriptors left for what would not ask? libzmq aborts the whole process where its threads find none."""

from __future__ import annotations

import contextlib
import os

NEEDED = 32
"""A context of libzmq's with one socket takes eight; the rest is for what others open meanwhile."""


def need(count: int = NEEDED) -> None:
    """Make sure that so many can be opened.

    Raises:
        OSError: there are fewer, in this process or on the machine.
    """
    with contextlib.ExitStack() as spare:
        for _ in range(count):
            spare.callback(os.close, os.open(os.devnull, os.O_RDONLY))
