"""What stands in for the parts of wandb that `hoptui.wandb` lacks: it does nothing, and a warning says so."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from typing import Any

FORGIVEN = ("Settings", "setup", "AlertLevel", "require", "sdk")
"""Names of wandb that need no warning: without them, nothing is missing."""

log_of_hoptui = logging.getLogger("hoptui")
_warned: set[str] = set()
_made: dict[str, Any] = {}  # so that isinstance finds the same class again


def warn(key: str, text: str) -> None:
    """Log a warning, once for each key."""
    if key not in _warned:
        _warned.add(key)
        log_of_hoptui.warning(text)


def unsupported(name: str) -> Any:
    """Return something that does nothing under a name of wandb, and say so once."""
    last = name.rpartition(".")[2]
    if last.endswith("Error"):
        return type(last, (Exception,), {})
    if name not in FORGIVEN:
        warn(name, f"hoptui.wandb has no {name}: it does nothing here, and training goes on")
    return _made.setdefault(name, type(last, (Placeholder,), {})) if last[:1].isupper() else Placeholder()


class _PlaceholderType(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return cls(name)


class Placeholder(metaclass=_PlaceholderType):
    """Accepts every call and attribute, and does nothing."""

    def __init__(self, *args: Any, **others: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        pass

    def __call__(self, *args: Any, **others: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not others else self

    def __getitem__(self, name: Any) -> Any:
        return self

    def __setitem__(self, name: Any, value: Any) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __fspath__(self) -> str:
        return ""


class Errors:
    """`wandb.errors`: every name is an exception that nothing raises."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {})


class Util:
    """`wandb.util`."""

    @staticmethod
    def generate_id(length: int = 8) -> str:
        return secrets.token_hex(length)[:length]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return unsupported(f"util.{name}")
