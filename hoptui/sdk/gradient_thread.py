"""The thread in which torch computes the gradients of a GPU, told from the other threads that run Python."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Literal

CALLED_BY_ENGINE = re.compile(r"/torch/(?:autograd/|utils/hooks|utils/checkpoint|nn/modules/|_functorch/)")
"""Files of torch whose functions the thread for gradients calls."""
THREADING = threading.__file__
ENOUGH_OUTSIDE = 10
"""Samples outside of a backward pass after which it is known which threads run Python there."""
MOST_THREADS = 4096
"""Threads that are remembered."""
Origin = Literal["Python", "gradients", "unknown"]
"""What has started a thread: `threading`, or C code. `gradients`: torch calls Python in it for gradients."""


class GradientThread:
    """The thread of torch that computes the gradients of a GPU, and what it calls in Python.

    torch starts it without `threading`. Python that it calls, such as a hook, a checkpoint or a compiler, is
    part of the backward pass. It is in Python in a backward pass alone, which other threads are not that C
    code has started. Where its outermost frame is of torch, it is known at once.
    """

    def __init__(self) -> None:
        self._known = 0
        self._elsewhere: set[int] = set()  # threads of C code that were in Python outside of a backward pass
        self._outside = 0
        self._origins: dict[int, tuple[CodeType, Origin]] = {}  # with the innermost function then

    def pop(self, threads: dict[int, FrameType]) -> FrameType | None:
        """Take the thread out of those that are in Python, and return its innermost frame.

        None: it is not in Python, or it is unknown which of several it is.

        Args:
            threads: The innermost frames of all threads but the sampled one, which is in a backward pass.
        """
        if self._known not in threads:
            self._known = self._found(threads)
        return threads.pop(self._known, None)

    def see_outside(self, threads: Mapping[int, FrameType]) -> None:
        """Learn which threads of C code run Python. The sampled one is in no backward pass."""
        if len(self._elsewhere) + len(self._origins) > MOST_THREADS:
            self._elsewhere.clear()
            self._origins.clear()
            self._outside = 0
        self._outside += 1
        for one, frame in threads.items():
            if one not in self._elsewhere and self._origin(one, frame) == "unknown":
                self._elsewhere.add(one)
        if self._known in self._elsewhere:
            self._known = 0

    def may_be(self, thread: int) -> bool:
        """Whether a thread that `pop` left may be the one. No frame is looked at."""
        known = self._origins.get(thread)
        return known is not None and known[1] != "Python" and thread not in self._elsewhere

    def _found(self, threads: Mapping[int, FrameType]) -> int:
        """Return the identifier of the thread, 0 if none of these is known to be it."""
        found = foreign = certain = 0
        for one, frame in threads.items():  # no comprehension: it would call a function, in cold caches
            if one in self._elsewhere or (origin := self._origin(one, frame)) == "Python":
                continue
            if origin == "gradients":
                found, certain = one, certain + 1
            elif not certain:
                found, foreign = one, foreign + 1
        if certain:
            return found if certain == 1 else 0
        return found if foreign == 1 and self._outside >= ENOUGH_OUTSIDE else 0

    def _origin(self, thread: int, frame: FrameType) -> Origin:
        """Return the origin of a thread, which is known as long as it is in the same function.

        Its identifier alone does not say it: the system gives that of one that has ended to another one.
        """
        known = self._origins.get(thread)  # to go through all frames takes longer than all else
        if known is None or known[0] is not frame.f_code:
            known = self._origins[thread] = frame.f_code, _origin(frame)
        return known[1]


def _origin(frame: FrameType) -> Origin:
    """Return what has started a thread, or calls Python in it, by its outermost frame."""
    while (outer := frame.f_back) is not None:
        frame = outer
    file = frame.f_code.co_filename
    if file == THREADING:
        return "Python"
    return "gradients" if CALLED_BY_ENGINE.search(file) else "unknown"
