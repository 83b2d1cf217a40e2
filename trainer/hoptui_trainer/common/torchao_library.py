"""torchao, which is installed only where it is wanted."""

from __future__ import annotations

import importlib
from typing import Any

from hoptui_trainer.common.errors import UsageError


def torchao(part: str, option: str, instead: str) -> Any:
    """The module `torchao.<part>`, which `option` needs; `instead` is an option that does without it.

    Raises:
        UsageError: torchao is not installed, or fits another torch.
    """
    try:
        return importlib.import_module(f"torchao.{part}")
    except ImportError:
        raise UsageError(
            f"{option} needs the torchao library: pip install 'hoptui-trainer[fp8]' (or {instead})"
        ) from None
