"""The markers of tests, read from their sources: so they are there without what the tests import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]


class MarkedTest(NamedTuple):
    """One marker of one test. `test` has the path of the file and the name of the function."""

    test: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


def marked(name: str, root: Path = ROOT) -> Iterator[MarkedTest]:
    """The markers of this name in order of files and lines: decorators, and marks of parameters in them.

    Raises:
        ValueError: an argument of a marker is not a literal.
    """
    for path in sorted((root / "tests").rglob("test_*.py")):
        source = path.read_bytes()
        if name.encode() not in source:
            continue
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for call in _calls(node.decorator_list, f"pytest.mark.{name}"):
                    yield MarkedTest(
                        f"{path.relative_to(root)}::{node.name}",
                        tuple(ast.literal_eval(argument) for argument in call.args),
                        {str(word.arg): ast.literal_eval(word.value) for word in call.keywords},
                    )


def _calls(decorators: list[ast.expr], function: str) -> list[ast.Call]:
    found = [
        node
        for decorator in decorators
        for node in ast.walk(decorator)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == function
    ]
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))
