"""No module of hoptui imports itself through others: imports in functions and for type checking count too."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "hoptui"


def module_files(root: Path) -> dict[str, Path]:
    """Every module of a package, by its dotted name."""
    files = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imported_names(path: Path) -> set[str]:
    """The dotted names that a file imports anywhere; relative imports are refused."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def import_graph(root: Path) -> dict[str, set[str]]:
    """The modules of the package that each of its modules imports."""
    files = module_files(root)
    graph = {}
    for module, path in files.items():
        found = {name if name in files else name.rpartition(".")[0] for name in imported_names(path)}
        graph[module] = (found & files.keys()) - {module}
    return graph


def import_cycle(root: Path) -> list[str]:
    """The modules of one import cycle; empty where there is none."""
    try:
        TopologicalSorter(import_graph(root)).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_hoptui_has_no_import_cycles() -> None:
    assert len(import_graph(ROOT)) > 100
    assert import_cycle(ROOT) == []


@pytest.mark.parametrize(
    "back",
    [
        "from package.first import value",
        "from package import first",
        "import package.first",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import package.first",
        "def later():\n    import package.first",
    ],
)
def test_an_import_cycle_is_found(tmp_path: Path, back: str) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "first.py").write_text("import package.second")
    (package / "second.py").write_text(back)
    assert set(import_cycle(package)) == {"package.first", "package.second"}
