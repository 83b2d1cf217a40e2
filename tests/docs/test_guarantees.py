"""Each guarantee has a test, each marker of a test a guarantee, and the pages show them as they are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from docs._generate import guarantees
from tests.docs.markdown import name

KEYS = [guarantee.key for section in guarantees.GUARANTEES.values() for guarantee in section]


@pytest.mark.parametrize("key", KEYS)
def test_a_guarantee_has_a_test(key: str) -> None:
    assert guarantees.marked().get(key)


def test_each_marker_is_of_a_guarantee() -> None:
    assert set(guarantees.marked()) - set(KEYS) == set()
    assert [key for key, count in Counter(KEYS).items() if count > 1] == []


def test_each_section_is_on_one_page() -> None:
    shown = [section for page in guarantees.PAGES for section in guarantees.sections(page.read_text())]
    assert sorted(shown) == sorted(guarantees.GUARANTEES)


@pytest.mark.parametrize("page", guarantees.PAGES, ids=name)
def test_a_page_shows_what_is_guaranteed_now(page: Path) -> None:
    text = page.read_text()
    assert text == guarantees.fill(text), f"to write it: {guarantees.COMMAND}"


def test_markers_are_read_as_pytest_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "tests" / "deep" / "test_x.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "import pytest\n\n\n"
        "@pytest.mark.guarantee('a')\n@pytest.mark.guarantee('b')\n@pytest.mark.slow\n"
        "def test_one(): ...\n\n\n"
        "@pytest.mark.guarantee('a')\nasync def test_two(): ...\n"
    )
    one, two = "tests/deep/test_x.py::test_one", "tests/deep/test_x.py::test_two"
    assert guarantees.marked(tmp_path) == {"a": [one, two], "b": [one]}
