"""torch.compile with fixed shapes and one whole graph. It never falls back to eager silently."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from typing import ParamSpec, TypeVar, cast

import torch
from torch._dynamo import config as dynamo

from hoptui_trainer.common.modes import CompileMode

P = ParamSpec("P")
R = TypeVar("R")

RECOMPILE_LIMIT = 64
"""Shapes of one function before torch.compile raises. Its own limit is 8, and without `fullgraph` the ninth
is eager."""

_INDUCTOR: dict[CompileMode, str] = {"default": "default", "max-autotune": "max-autotune-no-cudagraphs"}


def choose_mode(name: str, device: torch.device) -> CompileMode:
    """How to compile; `auto` is `default` on a GPU, and `off` on a CPU, where it seldom pays for its time."""
    if name == "auto":
        return "default" if device.type == "cuda" else "off"
    return cast(CompileMode, name)


def compiled(function: Callable[P, R], mode: CompileMode, *, dynamic: bool = False) -> Callable[P, R]:
    """`function` compiled as one graph, or itself with `off`.

    With `dynamic`, one compilation serves all sizes of tensors; Python's numbers remain constants.
    CUDA graphs are never made here: `cuda_graphs.py` captures them in the open, where it is seen what is
    frozen in them.
    """
    if mode == "off":
        return function
    dynamo.recompile_limit = RECOMPILE_LIMIT
    dynamo.specialize_int = dynamo.specialize_float = True
    whole: Callable[P, R] = torch.compile(function, fullgraph=True, dynamic=dynamic, mode=_INDUCTOR[mode])
    return whole


@contextmanager
def steady(mode: CompileMode) -> Iterator[None]:
    """The steady state: a compiled function that meets a new shape raises in here, instead of stalling for a
    minute."""
    if mode == "off":
        yield
        return
    with torch.compiler.set_stance("fail_on_recompile"):
        yield


class Shapes:
    """The shapes that functions compiled in `mode` have met: with one of these they are in their steady
    state."""

    def __init__(self) -> None:
        self.mode: CompileMode = "off"
        self._met: set[Hashable] = set()
        self._plain = False

    def reset(self, mode: CompileMode) -> None:
        """The functions are new, and compiled like this."""
        self.mode = mode
        self._met.clear()

    @contextmanager
    def meet(self, shape: Hashable) -> Iterator[None]:
        """In here they are called with `shape`: they compile for it if it is new, and else raise before they
        compile."""
        with steady(self.mode) if shape in self._met and not self._plain else nullcontext():
            yield
        if not self._plain:
            self._met.add(shape)

    @contextmanager
    def plainly(self) -> Iterator[None]:
        """In here they are called as they are written: for what is done once, and not worth a compilation."""
        self._plain = True
        try:
            with nullcontext() if self.mode == "off" else torch.compiler.set_stance("force_eager"):
                yield
        finally:
            self._plain = False
