"""Which pages have Python blocks, and where they are run: with `make test`, or where the frameworks are."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.docs.markdown import PAGES, Block, blocks, name

FRAMEWORKS = ("accelerate", "lightning", "ray", "stable_baselines3", "transformers")
"""The packages that `make test-integrations` installs, and `make test` does not need."""


def needs(page: Path) -> set[str]:
    """The frameworks that the Python blocks of a page import, also through an adapter of hoptui."""
    return {framework for block in blocks(page, "python") for framework in _imported(block)}


def _imported(block: Block) -> set[str]:
    modules = set[str]()
    for node in ast.walk(ast.parse(block.setup + "\n" + block.code)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    adapters = {ADAPTERS.get(module, "") for module in modules}
    return ({module.partition(".")[0] for module in modules} | adapters) & set(FRAMEWORKS)


ADAPTERS = {
    "hoptui.integrations.accelerate": "accelerate",
    "hoptui.integrations.lightning": "lightning",
    "hoptui.integrations.ray": "ray",
    "hoptui.integrations.sb3": "stable_baselines3",
    "hoptui.integrations.transformers": "transformers",
}
WITH_PYTHON = [page for page in PAGES if any(blocks(page, "python"))]
HERE = [page for page in WITH_PYTHON if not needs(page)]
"""Pages that `make test` runs."""
WITH_FRAMEWORKS = [page for page in WITH_PYTHON if needs(page)]
"""Pages that `make test-integrations` runs."""


def source(page: Path, path: Path) -> None:
    """Write the Python blocks of a page as one script whose lines have the numbers of the page."""
    lines = [""] * len(page.read_text().splitlines())
    for block in blocks(page, "python"):
        code = block.code
        if block.replace:
            assert block.replace[0] in code, f"{block.place}: nothing to replace"
            code = code.replace(*block.replace)
        for number, line in enumerate(code.splitlines()):
            lines[block.line + number] = line
        if block.setup:
            # Hidden code stands where the opening fence is, so that it takes no line of its own.
            lines[block.line - 1] = f"exec({block.setup!r})"
    path.write_text("\n".join((f"# {name(page)}" if not lines[0] else lines[0], *lines[1:])) + "\n")
