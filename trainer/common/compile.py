"""torch.compile as the workloads use it: fixed shapes, one whole graph, never a silent return to eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch
from torch._dynamo import config as dynamo

from trainer.common.modes import CompileMode

P = ParamSpec("P")
R = TypeVar("R")

RECOMPILE_LIMIT = 64
"""Shapes of one function before torch.compile raises. Its own limit is 8, and without `fullgraph` the ninth is eager."""

_INDUCTOR: dict[CompileMode, str] = {"default": "default", "max-autotune": "max-autotune-no-cudagraphs"}


def compiled(function: Callable[P, R], mode: CompileMode, *, dynamic: bool = False) -> Callable[P, R]:
    """`function` compiled as one graph, or itself with `off`.

    With `dynamic`, one compilation serves all sizes of tensors; Python's numbers are constants all the same. CUDA graphs are never made here: `graphs.py` captures them in the
    open, where it is seen what is frozen in them.
    """
    if mode == "off":
        return function
    dynamo.recompile_limit = RECOMPILE_LIMIT
    dynamo.specialize_int = True
    whole: Callable[P, R] = torch.compile(function, fullgraph=True, dynamic=dynamic, mode=_INDUCTOR[mode])
    return whole


@contextmanager
def steady(mode: CompileMode) -> Iterator[None]:
    """The steady state: a compiled function that meets a new shape raises in here, instead of stalling for a minute."""
    if mode == "off":
        yield
        return
    with torch.compiler.set_stance("fail_on_recompile"):
        yield
