"""The table of knobs that are safe to change while a run trains, made from the markers of the tests.

A test of such a knob has the marker `@pytest.mark.live_safe(framework=…, knob=…, effect=…, when=…)`, and the
fixture `proof` of tests/integrations/conftest.py, which has to be given what the table claims.
`python -m docs._generate.live_safe` writes the table of `PAGE`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from docs._generate.markers import ROOT, marked

PAGE = ROOT / "docs/frameworks/live_safe.md"
"""The page with the table. It is between `<!-- live safe -->` and `<!-- end -->`."""
COMMAND = "python -m docs._generate.live_safe"
EFFECTS = ("speed", "learning")
_BLOCK = re.compile(r"(?s)(<!-- live safe -->\n).*?(<!-- end -->)")
_HEAD = ("knob", "what a change affects", "takes effect", "ranks equal", "samples seen = due", "test")


class LiveSafeKnob(NamedTuple):
    """One row: the arguments of a marker, and its test."""

    test: str
    framework: str
    knob: str
    effect: str
    when: str
    note: str = ""
    ranks: int = 2


def rows(root: Path = ROOT) -> list[LiveSafeKnob]:
    """The proven knobs, in order of files and lines.

    Raises:
        TypeError: a marker has other arguments, or an argument without its name.
        ValueError: its effect is neither speed nor learning, or it cannot be read without running the test.
    """
    found = []
    for marker in marked("live_safe", root):
        if marker.arguments:
            raise TypeError(f"{marker.test}: write live_safe(framework=…, knob=…, effect=…, when=…)")
        try:
            row = LiveSafeKnob(marker.test, **marker.keywords)
        except TypeError as error:
            raise TypeError(f"{marker.test}: {error}") from None
        if row.effect not in EFFECTS:
            raise ValueError(f"{row.test}: effect={row.effect!r} is none of {EFFECTS}")
        found.append(row)
    return found


def fill(page: str, found: list[LiveSafeKnob] | None = None) -> str:
    """The page with its table as it should be."""
    text = _tables(rows() if found is None else found)
    return _BLOCK.sub(lambda block: f"{block[1]}\n{text}\n\n{block[2]}", page)


def _tables(found: list[LiveSafeKnob]) -> str:
    by_framework = defaultdict[str, list[LiveSafeKnob]](list)
    for row in found:
        by_framework[row.framework].append(row)
    parts = []
    for framework in sorted(by_framework, key=str.lower):
        lines = [_HEAD, ("---",) * len(_HEAD), *map(_cells, by_framework[framework])]
        parts += [f"## {framework}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join(parts)


def _cells(row: LiveSafeKnob) -> tuple[str, ...]:
    same = "the speed alone: weights equal an unchanged run" if row.effect == "speed" else "what is learned"
    when = f"{row.when}; {row.note}" if row.note else row.when
    ranks = f"yes, {row.ranks} ranks" if row.ranks > 1 else "one process"
    return f"`{row.knob}`", same, when, ranks, "yes", f"`{row.test}`"


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text()))
