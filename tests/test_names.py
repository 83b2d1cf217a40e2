"""Names of modules and classes: nouns of the field, one meaning each."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "hoptui").rglob("*.py"))
NOUNS = {"lightning", "pacing", "recording", "sampling", "tuning"}
"""Names of modules and packages that end in -ing and are nouns of the field."""


def test_public_class_names_are_unique() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert len(places) > 300
    found = {name: where for name, where in places.items() if len(where) > 1}
    # each adapter has one, as users of its framework expect
    assert all(where.startswith("hoptui/integrations/") for where in found.pop("HoptuiCallback", ()))
    assert found == {}


def test_modules_are_named_by_nouns() -> None:
    names = {part for path in FILES for part in path.relative_to(ROOT).with_suffix("").parts}
    assert {name for name in names if name.endswith("ing")} <= NOUNS
