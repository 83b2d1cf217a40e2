"""The documentation as tests see it: pages, their code blocks, their prose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
POLICIES = tuple(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"))
PAGES = (*POLICIES, *sorted((ROOT / "docs").rglob("*.md")))

_FENCE = re.compile(r"(?P<before>(?:<!--.*?-->\s*)*)^```(?P<kind>\w*)\n(?P<code>.*?)^```$", re.S | re.M)
_COMMENT = re.compile(r"<!--\s*(?P<what>setup|test):\s*(?P<text>.*?)\s*-->", re.S)


class Block(NamedTuple):
    """A fenced block. `setup` is hidden code to run before it, `replace` a text in it and what stands for it
    in tests."""

    page: Path
    line: int
    kind: str
    code: str
    setup: str
    replace: tuple[str, str] | None

    @property
    def place(self) -> str:
        return f"{name(self.page)}:{self.line}"


def name(page: Path) -> str:
    """A page's path from the root of the repository."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, *kinds: str) -> Iterator[Block]:
    """The fenced blocks of a page, of these kinds."""
    text = page.read_text()
    for found in _FENCE.finditer(text):
        if found["kind"] not in kinds:
            continue
        hidden = {"setup": "", "test": ""}
        hidden |= {comment["what"]: comment["text"] for comment in _COMMENT.finditer(found["before"])}
        replaced = re.fullmatch(r"replace (.+) with (.+)", hidden["test"])
        assert replaced or not hidden["test"], f"{name(page)}: what is {hidden['test']!r}?"
        line = text.count("\n", 0, found.start("kind")) + 1
        pair = (replaced[1], replaced[2]) if replaced else None
        yield Block(page, line, found["kind"], found["code"], hidden["setup"], pair)


def sentences(page: Path) -> list[str]:
    """The sentences of a page: without code, tables, headings and pictures; code in a line is one word."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "#", "[!"))]
    text = re.sub(r"`[^`]*`", "x", "\n".join(lines))
    parts = re.split(r"\n\s*\n|\n\s*[-*] ", text)
    found = [sentence for part in parts for sentence in re.split(r"(?<=[.!?:])\s+", " ".join(part.split()))]
    return [sentence for sentence in found if len(sentence.split()) > 2]
