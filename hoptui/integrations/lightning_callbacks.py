"""The time in callbacks of Lightning's `Trainer`, whatever their order: its profiler is told of each call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

BASE = "callbacks.callback"
"""The end of the module of Lightning's `Callback`, whose hooks do nothing."""


def hooks(callbacks: Iterable[Any]) -> frozenset[str]:
    """Return the names that a profiler gets of the hooks that callbacks define."""
    return frozenset(
        f"[Callback]{each.state_key}.{name}"
        for each in callbacks
        for name in dir(type(each))
        if name.startswith("on_") and not getattr(type(each), name).__module__.endswith(BASE)
    )


class CallbackTimer:
    """Reports when a hook of a callback begins and ends, from `start` to `stop`.

    Args:
        actions: The names of the hooks that are reported. Each takes about 8 µs more.
        begin: Called when a hook begins. It must not raise.
        end: Called with what `begin` has returned, when the hook ends. It must not raise.
    """

    def __init__(self, actions: frozenset[str], begin: Callable[[], Any], end: Callable[[Any], None]) -> None:
        self._actions, self._begin, self._end = actions, begin, end
        self._profiler: Any = None

    def start(self, profiler: Any) -> None:
        """Watch the actions of a profiler. One without `profile` reports nothing."""
        profile = getattr(profiler, "profile", None)
        if profile is None:
            return

        def timed(action_name: str) -> AbstractContextManager[Any]:
            action: AbstractContextManager[Any] = profile(action_name)
            return _Hook(action, self._begin, self._end) if action_name in self._actions else action

        profiler.profile = timed
        self._profiler = profiler

    def stop(self) -> None:
        """Leave the profiler as it was."""
        with contextlib.suppress(AttributeError):
            del self._profiler.profile  # the method of the class shows again
        self._profiler = None


class _Hook(AbstractContextManager[Any]):
    """An action of the profiler that is a hook of a callback."""

    __slots__ = ("_action", "_before", "_begin", "_end")

    def __init__(
        self, action: AbstractContextManager[Any], begin: Callable[[], Any], end: Callable[[Any], None]
    ) -> None:
        self._action, self._begin, self._end, self._before = action, begin, end, None

    def __enter__(self) -> Any:
        self._before = self._begin()
        return self._action.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        try:
            return self._action.__exit__(kind, error, traceback)
        finally:
            self._end(self._before)
