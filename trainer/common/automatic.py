"""Knobs that a person may leave open: settled when training starts, and open again in the next process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, cast

import torch

from trainer.common.compile import choose_mode
from trainer.common.modes import CompileMode, Precision
from trainer.common.precision import choose_precision

AUTOMATIC: Mapping[str, int | str] = {"micro_batch": 0, "precision": "auto", "compile": "auto"}
"""Their names, and the values that leave them open."""


class Modes(Protocol):
    """A config that says how it is computed."""

    precision: str
    compile: str


class LeftOpen:
    """Which of them nobody has chosen."""

    def __init__(self, config: object) -> None:
        self.names = {name for name, value in AUTOMATIC.items() if getattr(config, name) == value}

    def choose(self, name: str, value: object) -> None:
        """Somebody set `name`: it is theirs from now on, unless they left it open again."""
        (self.names.add if value == AUTOMATIC[name] else self.names.discard)(name)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """What is set in here is set by the run and chosen by nobody."""
        names = set(self.names)
        try:
            yield
        finally:
            self.names = names

    def values(self) -> dict[str, int | str]:
        """What a checkpoint says of them."""
        return {name: AUTOMATIC[name] for name in sorted(self.names)}


def settle_modes(config: Modes, device: torch.device) -> tuple[Precision, CompileMode]:
    """How to compute on this device; `auto` in `config` is replaced by it.

    Raises:
        UsageError: the device cannot do it; nothing has changed.
    """
    precision = choose_precision(cast(Precision, config.precision), device)
    mode = choose_mode(config.compile, device)
    config.precision, config.compile = precision, mode
    return precision, mode
