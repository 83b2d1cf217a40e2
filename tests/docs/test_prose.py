"""The documentation is written in short sentences, and the README is short."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from tests.docs.markdown import PAGES, ROOT, name, sentences

LONG = 30
MOST_LONG = 5
MEAN = 14.0
SHORT_PAGES = ("README.md", "docs/internals/protocol.md", "docs/internals/architecture.md")


def test_the_readme_has_at_most_100_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


@pytest.mark.parametrize("page", SHORT_PAGES)
def test_sentences_are_short_on_average(page: str) -> None:
    assert fmean(len(sentence.split()) for sentence in sentences(ROOT / page)) <= MEAN


def test_hardly_a_sentence_of_the_documentation_is_long() -> None:
    long = [
        f"{name(page)}: {sentence}"
        for page in PAGES
        for sentence in sentences(page)
        if len(sentence.split()) > LONG
    ]
    assert len(long) <= MOST_LONG, "\n".join(long)


def test_sentences_are_told_apart(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Not this\n\nOne two three. Four `five six` seven:\n- eight nine ten\n- too short\n\n| no | "
        "table |\n"
    )
    assert sentences(page) == ["One two three.", "Four x seven:", "eight nine ten"]
