"""What the sources of the examples must have. tests/integrations/test_examples.py runs them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.docs.python_pages import FRAMEWORKS
from tests.examples import EXAMPLES, ROOT, marked_lines, read, unmarked_uses

MOST_LINES = {"plain_loop.py": 8, "transformers_trainer.py": 2, "accelerate_loop.py": 2, "lightning_module.py": 2, "sb3_ppo.py": 2}
"""How many lines are hoptui's, where that is promised."""
names = [path.name for path in EXAMPLES]


@pytest.mark.parametrize("path", EXAMPLES, ids=names)
def test_an_example_shows_how_it_starts_and_one_change(path: Path) -> None:
    assert read(path).command[-1].startswith("examples/") or "examples/" in " ".join(read(path).command)


@pytest.mark.parametrize("path", EXAMPLES, ids=names)
def test_each_line_of_hoptui_is_marked(path: Path) -> None:
    assert marked_lines(path)
    assert unmarked_uses(path) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=names)
def test_an_example_hides_no_package(path: Path) -> None:
    """Python looks in the folder of the script first."""
    assert path.stem not in {*FRAMEWORKS, "torch", "hoptui", *sys.stdlib_module_names}


@pytest.mark.parametrize("path", EXAMPLES, ids=names)
def test_few_lines_are_hoptuis(path: Path) -> None:
    assert len(marked_lines(path)) <= MOST_LINES.get(path.name, 1000)


def test_the_list_of_examples_is_complete() -> None:
    text = (ROOT / "examples/README.md").read_text()
    assert [name for name in names if f"[{name}]({name})" not in text] == []
