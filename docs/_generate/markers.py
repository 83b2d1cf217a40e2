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
        ValueError: a marker has no arguments in brackets, or one that is not a literal; or it is not in a
            decorator of a test function, as in a helper that makes markers.
    """
    for path in sorted((root / "tests").rglob("test_*.py")):
        source = path.read_bytes()
        if name.encode() not in source:
            continue
        module = ast.parse(source)
        read = set()
        for node in module.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for call in _calls(node.decorator_list, name):
                    read.add(call.func)
                    try:
                        arguments = tuple(ast.literal_eval(argument) for argument in call.args)
                        keywords = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
                    except ValueError:
                        raise _unread(path.relative_to(root), call, name) from None
                    yield MarkedTest(f"{path.relative_to(root)}::{node.name}", arguments, keywords)
        for found in ast.walk(module):
            if _is_marker(found, name) and found not in read:
                raise _unread(path.relative_to(root), found, name)


def _calls(decorators: list[ast.expr], name: str) -> list[ast.Call]:
    found = [
        node
        for decorator in decorators
        for node in ast.walk(decorator)
        if isinstance(node, ast.Call) and _is_marker(node.func, name)
    ]
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))


def _is_marker(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == name
        and ast.unparse(node.value) in ("pytest.mark", "mark")
    )


def _unread(path: Path, node: ast.expr | ast.AST, name: str) -> ValueError:
    return ValueError(
        f"{path}:{getattr(node, 'lineno', '?')}: the marker {name} is not read here: "
        f"write @pytest.mark.{name}(…) with literal arguments above a test function, "
        "or as the marks of a parameter"
    )
