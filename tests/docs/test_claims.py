"""How much faster the pictured run gets is said as its history says it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hoptui.cli.report.comparison import difference
from hoptui.domain.tuning import Measured
from hoptui.model import report
from hoptui.model.recorded.store import recorded_commands
from hoptui.presentation import numbers
from hoptui.recording import Recording

ROOT = Path(__file__).parents[2]
PICTURED = ROOT / "hoptui" / "examples" / "ppo-h200.hoptui"
"""The run of the animated picture."""
LONGER = ROOT / "tests" / "recordings" / "ppo-h100.hoptui"
"""Another one, whose throughput is known at its end too."""
CAPTIONED = ("README.md", "docs/index.md", "screenshots/README.md")
CAPTION = re.compile(r"takes it\s+from ([\d.]+ ?[kM]?) to ([\d.]+ ?[kM]?) steps/s")
PAGES = ("README.md", "docs/index.md", "docs/getting_started/tutorial.md", "screenshots/README.md")
WORDS = {"twice": 2, "three": 3, "four": 4, "five": 5, "ten": 10, "fifteen": 15, "twenty": 20}
CLAIM = re.compile(r"(twice|(?:[a-z]+|[\d.]+) times) what it was", re.IGNORECASE)


def claims(text: str) -> list[float]:
    """The factors that a page claims: 4 in `is more than four times what it was`."""
    numbers = [found.lower().removesuffix(" times") for found in CLAIM.findall(" ".join(text.split()))]
    return [float(WORDS.get(number, number)) for number in numbers]


def gained() -> tuple[float, float]:
    """The factor between the measured changes of the history, and that of the report."""
    measured = [c.measured for c in recorded_commands(LONGER) if c.measured is not None]
    before, after = measured[0].before, measured[-1].after
    assert before is not None
    assert after is not None
    with Recording.open(LONGER) as recording:
        found = report.read(recording)
    assert found.curve is not None
    assert found.first is not None
    assert found.last is not None
    ends = (period.figures[found.curve.metric] for period in (found.first, found.last))
    return after / before, float(difference(*ends).removeprefix("× "))


def test_a_claim_is_found() -> None:
    old = "the recorded run, whose throughput is more than\nfour times what it was"
    assert claims(old) == [4.0]
    assert claims("It is twice what it was, then 19.9 times what it was.") == [2.0, 19.9]


def test_history_and_report_agree() -> None:
    history, shown = gained()
    assert history == pytest.approx(shown, rel=0.02)


def advised() -> Measured:
    """The effect of the advised change of the pictured run, which is its first."""
    first = recorded_commands(PICTURED)[0]
    assert (first.verb, first.knob, first.effective) == ("set", "compile", "default")
    assert first.measured is not None
    assert first.measured.detectable
    return first.measured


@pytest.mark.parametrize("page", PAGES)
def test_a_page_claims_what_the_change_did(page: str) -> None:
    before, after = advised().before, advised().after
    assert before is not None
    assert after is not None
    for claim in claims((ROOT / page).read_text()):
        assert claim == pytest.approx(after / before, rel=0.03), page


@pytest.mark.parametrize("page", CAPTIONED)
def test_a_caption_says_what_was_measured(page: str) -> None:
    measured = advised()
    said = CAPTION.findall((ROOT / page).read_text())
    assert said == [(numbers.si(measured.before), numbers.si(measured.after))]
