"""Knobs that are chosen automatically when training starts, unless the user sets them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, cast

import torch

from hoptui_trainer.common.compilation import choose_mode
from hoptui_trainer.common.modes import CompileMode, Precision
from hoptui_trainer.common.precision import choose_precision

AUTOMATIC: Mapping[str, int | str] = {"micro_batch": 0, "precision": "auto", "compile": "auto"}
"""Their names, and the values that mean "choose"."""


class Modes(Protocol):
    """A config with a number format and a compile mode."""

    precision: str
    compile: str


class AutoSettings:
    """Which of these knobs are chosen automatically."""

    def __init__(self, config: object) -> None:
        self.names = {name for name, value in AUTOMATIC.items() if getattr(config, name) == value}

    def choose(self, name: str, value: object) -> None:
        """Note that `name` was set: it stays as it is, unless `value` means "choose"."""
        (self.names.add if value == AUTOMATIC[name] else self.names.discard)(name)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Changes made in this context are the run's own. They do not count as chosen."""
        names = set(self.names)
        try:
            yield
        finally:
            self.names = names

    def values(self) -> dict[str, int | str]:
        """The values that a checkpoint holds for them."""
        return {name: AUTOMATIC[name] for name in sorted(self.names)}


def resolve_modes(config: Modes, device: torch.device) -> tuple[Precision, CompileMode]:
    """How to compute on this device; `auto` in `config` is replaced by it.

    Raises:
        UsageError: the device cannot do it; nothing has changed.
    """
    precision = choose_precision(cast(Precision, config.precision), device)
    mode = choose_mode(config.compile, device)
    config.precision, config.compile = precision, mode
    return precision, mode
