"""What a planted defect is, and the list of them. The modules `planted_…` name them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from hoptui.daemon import server

MOST_SEEDS = 2000
Patch = tuple[Any, str, Any]


class Planted(NamedTuple):
    """A defect: what is replaced, and where it would be in the life of a row or a command."""

    name: str
    patches: Callable[[], list[Patch]]
    needs: frozenset[str]
    """Actions without which it does nothing. Plans that lack one are skipped."""
    jobs: bool = False
    """Whether it needs a run on several nodes."""


class Found(NamedTuple):
    """How a defect was found. `seed` is None if no seed did."""

    name: str
    seed: int | None
    violation: str
    seconds: float


@contextlib.contextmanager
def planted(defect: Planted) -> Iterator[None]:
    """Break the code for a while."""
    patches = [(owner, name, owner.__dict__[name], new) for owner, name, new in defect.patches()]
    for owner, name, _, new in patches:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, old, _ in reversed(patches):
            setattr(owner, name, old)


DEFECTS: list[Planted] = []


def defect(
    name: str, *needs: str, jobs: bool = False
) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    """Name the function that returns the patches of a defect."""

    def add(patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        DEFECTS.append(Planted(name, patches, frozenset(needs), jobs))
        return patches

    return add


def clock() -> Any:
    """Return the clock of the node that is simulated now."""
    return vars(server)["time"]


def nothing(*_: Any, **__: Any) -> None:
    """Stand for what does not happen."""
