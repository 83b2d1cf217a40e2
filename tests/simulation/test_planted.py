"""The simulation finds planted defects. `python -m tests.simulation.planted` tries all of them."""

from __future__ import annotations

import pytest

from tests.simulation.defects import DEFECTS, MOST_SEEDS, planted
from tests.simulation.planted import find, published

QUICK = (
    "no deduplication of command ids",
    "only rank 0 carries commands out",
    "the value is shown before it is read back",
)
"""They are found within a few seeds. `make test` looks for the first one, `make test-slow` for the others."""


@pytest.mark.parametrize(
    "name", [QUICK[0], *(pytest.param(name, marks=pytest.mark.slow) for name in QUICK[1:])]
)
def test_a_planted_defect_is_found(name: str) -> None:
    found = find(name, most=40)
    assert found.seed is not None, f"no seed up to 40 finds: {name}"


def test_a_planted_defect_is_gone_afterwards() -> None:
    for defect in DEFECTS:
        patches = defect.patches()
        before = [owner.__dict__[name] for owner, name, _ in patches]
        with planted(defect):
            assert all(
                owner.__dict__[name] is not old for (owner, name, _), old in zip(patches, before, strict=True)
            )
        assert all(owner.__dict__[name] is old for (owner, name, _), old in zip(patches, before, strict=True))


def test_the_published_table_has_each_defect() -> None:
    assert sorted(published()) == sorted(defect.name for defect in DEFECTS)
    assert max(published().values()) < MOST_SEEDS
