"""The Python blocks of the pages that need a framework. Those of a page are one script."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import TestNode
from tests.docs import python_pages
from tests.docs.markdown import name


@pytest.mark.timeout(200)
@pytest.mark.parametrize("page", python_pages.WITH_FRAMEWORKS, ids=name)
def test_python_blocks_of_a_page_run_in_order(page: Path, node: TestNode, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    python_pages.source(page, script)
    # Ray keeps results in the home directory, and another version cannot read them.
    environment = {"HOPTUI": "off", "HOME": str(tmp_path)}
    child = node.spawn(["env", "-C", str(tmp_path), sys.executable, script.name], **environment)
    _, errors = child.communicate(timeout=150)
    assert child.returncode == 0, errors[-4000:]
