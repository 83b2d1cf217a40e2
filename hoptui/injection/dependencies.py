"""Packages that hoptui needs and the interpreter of the script may lack."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class PlacedPackages:
    """A finder of certain packages, each in a directory of its own."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See importlib.abc.MetaPathFinder."""
        if path is not None or name not in self._places:
            return None
        return PathFinder.find_spec(name, [self._places[name]], target)


@contextlib.contextmanager
def available(places: Mapping[str, str]) -> Iterator[None]:
    """Within the block, imports that fail look in these directories too.

    Nothing else in the directories can be imported: they may hold another torch.

    Args:
        places: The directory of each package.
    """
    finder = PlacedPackages(places)
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
