"""Errors of an adapter stay in the adapter: training goes on without hoptui."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

log = logging.getLogger("hoptui")

F = TypeVar("F", bound=Callable[..., Any])


class GivesUp(Protocol):
    """What `harmless` needs of the class whose methods it decorates."""

    def give_up(self) -> object:
        """End the run of this process, so that other ranks do not wait for it. Later calls do nothing."""


def harmless(method: F) -> F:
    """Decorate a method that a framework calls. An error is logged, the adapter gives up, None is returned.

    Example:
        ```python
        class Callback:
            @harmless
            def on_step_end(self, step):
                self.run.boundary(step)

            def give_up(self):
                self.run.close()
        ```
    """

    @functools.wraps(method)
    def call(self: GivesUp, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            log.warning(
                "hoptui is off in this run: %s raised %s: %s",
                method.__name__,
                type(error).__name__,
                error,
            )
        try:
            self.give_up()
        except Exception as error:
            log.debug("hoptui: the end of the run raised %s: %s", type(error).__name__, error)
        return None

    return call  # type: ignore[return-value]
