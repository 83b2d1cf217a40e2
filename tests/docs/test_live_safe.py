"""The page of live-safe knobs has what the markers of the tests claim."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from docs._generate import live_safe
from tests.docs.markdown import ROOT

SOURCE = """
import pytest


@pytest.mark.live_safe(framework="B", knob="lr", effect="learning", when="next step", note="scales")
@pytest.mark.parametrize("n", [
    1,
    pytest.param(
        2, marks=pytest.mark.live_safe(framework="a", knob="n", effect="speed", when="later", ranks=1)
    ),
])
def test_one(proof, n): ...
"""


def _write(root: Path, source: str) -> Path:
    file = root / "tests" / "deep" / "test_x.py"
    file.parent.mkdir(parents=True)
    file.write_text(source)
    return root


def test_the_page_shows_what_is_proven_now() -> None:
    text = live_safe.PAGE.read_text()
    assert text == live_safe.fill(text), f"to write it: {live_safe.COMMAND}"


def test_a_row_is_proven_once() -> None:
    keys = Counter((row.framework, row.knob, row.when, row.note) for row in live_safe.rows())
    assert [key for key, count in keys.items() if count > 1] == []


def test_the_test_of_a_row_gives_its_proof() -> None:
    """The fixture fails a test that does not show what the table claims."""
    for row in live_safe.rows():
        path, _, name = row.test.partition("::")
        assert path.startswith("tests/integrations/"), row.test
        source = (ROOT / path).read_text()
        assert "proof: Proof" in source.partition(f"\ndef {name}(")[2].partition(") ->")[0], row.test


def test_rows_are_read_without_the_frameworks(tmp_path: Path) -> None:
    root = _write(tmp_path, "import no_such_framework\n" + SOURCE)
    test = "tests/deep/test_x.py::test_one"
    assert live_safe.rows(root) == [
        live_safe.LiveSafeKnob(test, "B", "lr", "learning", "next step", "scales", 2),
        live_safe.LiveSafeKnob(test, "a", "n", "speed", "later", "", 1),
    ]


def test_the_table_has_a_part_for_each_framework(tmp_path: Path) -> None:
    page = "before\n<!-- live safe -->\nold\n<!-- end -->\nafter\n"
    text = live_safe.fill(page, live_safe.rows(_write(tmp_path, SOURCE)))
    assert "old" not in text
    assert text.index("## a\n") < text.index("## B\n")
    assert text.startswith("before\n")
    assert text.endswith("<!-- end -->\nafter\n")
    assert live_safe.fill(text, live_safe.rows(tmp_path)) == text


HELPER = """
def safe(knob):
    return pytest.mark.live_safe(framework="B", knob=knob, effect="speed", when="later")


@safe("workers")
def test_two(proof): ...
"""
PARAMETERS = """
@pytest.mark.parametrize("n", [
    pytest.param(
        1, marks=pytest.mark.live_safe(framework="B", knob=name, effect="speed", when="later")
    )
    for name in ("a", "b")
])
def test_two(proof): ...
"""
CLASS = """
class TestTwo:
    @pytest.mark.live_safe(framework="B", knob="workers", effect="speed", when="later")
    def test_two(self, proof): ...
"""
MODULE = """
pytestmark = pytest.mark.live_safe(framework="B", knob="workers", effect="speed", when="later")
"""
BARE = """
@pytest.mark.live_safe
def test_two(proof): ...
"""
ALIAS = """
from pytest import mark
safe = mark.live_safe
"""


@pytest.mark.parametrize("marker", [HELPER, PARAMETERS, CLASS, MODULE, BARE, ALIAS])
def test_a_marker_that_cannot_be_read_is_named_with_its_place(tmp_path: Path, marker: str) -> None:
    root = _write(tmp_path, SOURCE + marker)
    lines = enumerate((SOURCE + marker).splitlines(), 1)
    line = max(number for number, text in lines if "mark.live_safe" in text)
    with pytest.raises(ValueError, match=rf"tests/deep/test_x\.py:{line}: the marker live_safe is not read"):
        live_safe.rows(root)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('effect="learning"', 'effect="fast"', ValueError),
        ('framework="B", ', "", TypeError),
        ('framework="B", ', '"B", ', TypeError),
        ('note="scales"', 'notes="scales"', TypeError),
    ],
)
def test_a_wrong_marker_is_refused(tmp_path: Path, old: str, new: str, error: type[Exception]) -> None:
    root = _write(tmp_path, SOURCE.replace(old, new))
    with pytest.raises(error, match=r"tests/deep/test_x\.py::test_one"):
        live_safe.rows(root)
