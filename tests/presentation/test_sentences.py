"""The catalogue of sentences: nothing is missing, nothing is left over, and this is how it reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hoptui.domain.facts import Fact, fact
from hoptui.domain.knobs import KnobSpec, KnobState
from hoptui.domain.tuning import Limits, Measured
from hoptui.presentation import numbers, sentences, tuner
from hoptui.presentation.sentences import CATALOGUE, template
from hoptui.presentation.sentences import tuner as tuner_sentences
from hoptui.protocol.messages import CommandRecord, Event
from hoptui.tui.screens.tuner.content import LimitsDraft
from tests.golden import Golden
from tests.presentation.sentence_samples import SAMPLES, Fields

ROOT = Path(__file__).parents[2]
TABLES = Path("hoptui/presentation/sentences")
MAKERS = ("fact", "Fact", "_rejected")
"""Functions whose first argument is a code."""


def made() -> Iterator[tuple[str, frozenset[str] | None, str]]:
    """Every code that the sources make, its fields (None: not written out), and the place."""
    for path in sorted((ROOT / "hoptui").rglob("*.py")):
        place = path.relative_to(ROOT)
        if place.is_relative_to(TABLES):
            continue
        tree = ast.parse(path.read_text())
        if not any(isinstance(n, ast.ImportFrom) and n.module == "hoptui.domain.facts" for n in tree.body):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id not in MAKERS or not node.args:
                continue
            code = node.args[0]
            if isinstance(code, ast.Constant) and isinstance(code.value, str):
                named = frozenset(keyword.arg for keyword in node.keywords if keyword.arg)
                whole = len(named) == len(node.keywords) and len(node.args) == 1
                yield code.value, named if whole else None, f"{place}:{node.lineno}"


def variants(code: str) -> list[Fields]:
    found = SAMPLES[code]
    return found if isinstance(found, list) else [found]


def test_every_code_has_a_sentence() -> None:
    for code, _, place in made():
        assert code in CATALOGUE, f"{place} makes {code!r}: add its sentence to a table in {TABLES}"


def test_every_template_has_its_fields() -> None:
    for code, given, place in made():
        entry = CATALOGUE[code]
        if isinstance(entry, str) and given is not None:
            lacking = template.names(entry) - given
            assert not lacking, (
                f"the sentence of {code!r} needs {sorted(lacking)}, which {place} does not give"
            )


def test_every_sentence_has_a_sample() -> None:
    lacking = [code for code in CATALOGUE if code not in SAMPLES]
    assert not lacking, f"add fields of {lacking} to tests/presentation/sentence_samples.py"
    left_over = [code for code in SAMPLES if code not in CATALOGUE]
    assert not left_over, f"{left_over} have samples and no sentence: remove them"


def test_every_sentence_is_used() -> None:
    """By its code anywhere in the sources. Recordings keep old codes: say so in the table with RETIRED."""
    text = "".join(
        path.read_text()
        for path in (ROOT / "hoptui").rglob("*.py")
        if not path.relative_to(ROOT).is_relative_to(TABLES)
    )
    unused = [code for code in CATALOGUE if f'"{code}"' not in text and code not in sentences.RETIRED]
    assert not unused, f"nothing makes {unused}: remove the sentences, or retire the codes"


def test_the_sentences(golden: Golden) -> None:
    lines = []
    for code in CATALOGUE:
        lines.append(f"{code}\n")
        lines += [f"    {sentences.sentence(Fact(code, fields))}\n" for fields in variants(code)]
    golden("".join(lines))


@pytest.mark.parametrize("code", CATALOGUE)
def test_a_sentence_is_one_line_and_never_raises(code: str) -> None:
    hostile = {name: "\x1b[31m\n" + "x" * 1000 for fields in variants(code) for name in fields}
    for fields in (*variants(code), {}, hostile, dict.fromkeys(hostile), dict.fromkeys(hostile, 1e400)):
        text = sentences.sentence(Fact(code, fields))
        assert text.isprintable()
        assert len(text) <= sentences.LONGEST


@pytest.mark.parametrize("code", CATALOGUE)
def test_samples_fit_their_sentences(code: str) -> None:
    """Fields that do not fit show as they are, with the code: no sample may."""
    for fields in variants(code):
        assert not sentences.sentence(Fact(code, fields)).startswith(f"{code} (")


def test_nothing_in_a_field_brings_a_viewer_down() -> None:
    """A hostile recording may hold a number without end, or facts in facts in facts."""
    endless = Fact("state.no_pulse", {"age_s": 10**400})
    assert sentences.sentence(endless).isprintable()
    deep = fact("raised", error="no")
    for _ in range(2000):
        deep = Fact("several", {"facts": [{"code": deep.code, "fields": deep.fields}]})
    for one in (deep, Fact("of.next.year", deep.fields)):
        assert len(sentences.sentence(one)) <= sentences.LONGEST


def test_what_is_not_known_here_shows_as_it_is() -> None:
    assert sentences.sentence(Fact("of.next.year", {"share": 0.5})) == "of.next.year (share 0.5)"
    assert sentences.sentence(Fact("of.next.year")) == "of.next.year"


def test_fields_have_no_way_to_attributes() -> None:
    assert template.fill("{a}", {"a": 1}, sentences.sentence) == "1"
    with pytest.raises(LookupError):
        template.fill("{a.__class__}", {"a": 1}, sentences.sentence)


def test_an_unknown_field_shows_as_unknown() -> None:
    assert template.fill("{a:percent}", {"a": None}, sentences.sentence) == numbers.UNKNOWN


def test_an_older_recording_speaks_for_itself() -> None:
    event = Event(seq=1, t=1, wall=1.0, kind="exited", text="as it was written")
    record = CommandRecord(id="a", run="r", epoch=1, verb="set", reason="as it was written")
    assert sentences.event_text(event) == "as it was written"
    assert sentences.reason(record) == "as it was written"
    assert sentences.remarks(Measured(note="as it was written")) == "as it was written"


def test_facts_join() -> None:
    two = (fact("run.reconnected"), fact("restarted"))
    assert sentences.joined(two, " | ") == " | ".join(map(sentences.sentence, two))


MOST_WORDS = 20
JARGON = re.compile(
    r"\b(boundar\w+|frozen|freezes?|stand|baseline|incumbent|lever|candidate|turn(s|ed)?|of effect speed|"
    r"holding|hardly|reopened|epoch)\b",
    re.IGNORECASE,
)


def messages_of_the_tuner() -> Iterator[str]:
    """The sentences of a tuner with realistic values, and the texts of its form and its states."""
    for code in tuner_sentences.SENTENCES:
        yield from (sentences.sentence(fact(code, **fields)) for fields in variants(code))
    yield from (f"{word.text}: {tuner.STANDS_FOR[stand]}" for stand, word in tuner.STANDS.items())
    yield from tuner.OBJECTIVES.values()
    learning = KnobSpec(name="num_envs", kind="int", default=8, effect="learning", cost="rebuild")
    for dry in (False, True):
        draft = LimitsDraft(Limits(dry=dry), [KnobState(spec=learning, value=8)], [700.0])
        yield from (text for line in draft.lines() for text in (line.name, line.value, line.help))


@pytest.mark.parametrize("text", list(messages_of_the_tuner()))
def test_messages_of_the_tuner_are_short_and_plain(text: str) -> None:
    """Numbers and signs do not count as words."""
    words = [word for word in text.split() if any(c.isalpha() for c in word)]
    assert len(words) <= MOST_WORDS
    assert not JARGON.search(text)
