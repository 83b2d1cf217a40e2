"""The kinds of stacks name files that the installed libraries have."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from hoptui.domain.kind_rules import COMPUTE, CONTEXTS, GENERAL, MOVES, WAITS

PATHS = sorted({rule.path for rule in (*CONTEXTS, *MOVES, *WAITS, *COMPUTE, *GENERAL) if rule.path})
ALWAYS = ("torch", "json", "gymnasium")
"""What is installed wherever these tests run."""


@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_that_of_a_file_or_a_package(path: str) -> None:
    top, *inner = path.split("/")
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # a namespace without a file
        found = None
    if found is None or found.origin is None:
        assert top not in ALWAYS, path
        pytest.skip(f"{top} is not installed")
    place = Path(found.origin)
    if found.submodule_search_locations is None:
        assert not inner, f"{top} is a module"
        return
    folder = place.parent.joinpath(*inner)
    assert folder.is_dir() or any(folder.parent.glob(f"{folder.name}.*")), folder
