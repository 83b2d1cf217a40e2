"""The examples as tests see them: how each is started, and what it shows."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MARK = "# hoptui"


class Example(NamedTuple):
    """What the first lines of an example tell the reader to type."""

    command: list[str]
    run: str
    knob: str
    value: str


def read(path: Path) -> Example:
    """The two command lines in the docstring: how it starts, and one `hoptui set RUN KNOB=VALUE`.

    Raises:
        AssertionError: there is no such line, or more than one.
    """
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    starts = re.findall(rf"(?m)^ *((?:python|torchrun|accelerate launch) .*{re.escape(path.name)}.*)$", text)
    sets = re.findall(r"(?m)^ *hoptui set (\S+) ([\w.]+)=(\S+)$", text)
    assert len(starts) == 1, f"{path.name}: one line in its docstring shows how it starts"
    assert len(sets) == 1, f"{path.name}: one line in its docstring is `hoptui set RUN KNOB=VALUE`"
    return Example(starts[0].split(), *sets[0])


def marked_lines(path: Path) -> list[str]:
    """The lines with the mark, without those that have nothing else."""
    return [
        line
        for line in path.read_text().splitlines()
        if line.rstrip().endswith(MARK) and line.strip() != MARK
    ]


def unmarked_uses(path: Path) -> list[str]:
    """The lines of code that use hoptui, or what it returned, without the mark."""
    source = path.read_text()
    tree, lines = ast.parse(source), source.splitlines()
    names = {"hoptui"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "hoptui":
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("hoptui."):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    used = {getattr(node, "lineno", 0) for node in ast.walk(tree) if _uses(node, names)}
    return [lines[number - 1] for number in sorted(used) if MARK not in lines[number - 1]]


def _uses(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.startswith("hoptui") for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").startswith("hoptui")
    return isinstance(node, ast.Name) and node.id in names
