"""Every sentence about a run: the catalogue turns codes and fields into words.

An entry is a template or a function of the fields. A template names fields with a format:
`{share:percent}`. To add one, add it to the table of its subject in this package, then a sample to
`tests/presentation/sentence_samples.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hoptui.domain.facts import Fact
from hoptui.domain.tuning import Measured, Trial, Tuned, TunerState
from hoptui.presentation import numbers
from hoptui.presentation.sentences import (
    alerts,
    commands,
    diagnosis,
    hardware,
    jobs,
    notes,
    runs,
    targets,
    tuner,
)
from hoptui.presentation.sentences.template import Entry, fill
from hoptui.protocol.messages import CommandRecord, Event

LONGEST = 300
"""Characters of a sentence."""

CATALOGUE: Mapping[str, Entry] = {
    **runs.SENTENCES,
    **jobs.SENTENCES,
    **commands.SENTENCES,
    **diagnosis.SENTENCES,
    **tuner.SENTENCES,
    **hardware.SENTENCES,
    **targets.SENTENCES,
    **notes.SENTENCES,
    **alerts.SENTENCES,
}
RETIRED: frozenset[str] = frozenset()
"""Codes that nothing makes any more. Their sentences stay for the recordings that have them."""


def sentence(fact: Fact) -> str:
    """Return the sentence of a fact: one line, safe for a terminal.

    The code of a newer hoptui, or fields that do not fit, give the code and the fields as they are.
    """
    for write in (_from_catalogue, _as_it_is):
        try:
            return numbers.clean(write(fact), LONGEST)
        except Exception:  # fields come from other processes and files: nothing in them may stop a viewer
            continue
    return numbers.clean(fact.code, LONGEST)


def _from_catalogue(fact: Fact) -> str:
    entry = CATALOGUE[fact.code]
    return fill(entry, fact.fields, sentence) if isinstance(entry, str) else entry(fact.fields, sentence)


def _as_it_is(fact: Fact) -> str:
    fields = ", ".join(f"{name} {value}" for name, value in fact.fields.items())
    return f"{fact.code} ({fields})" if fields else fact.code


def text_of(fact: Fact | None) -> str:
    """Return the sentence of a fact that may be absent, "" for None."""
    return sentence(fact) if fact is not None else ""


def joined(facts: Iterable[Fact], between: str = "; ") -> str:
    """Return the sentences of facts as one text."""
    return between.join(filter(None, map(sentence, facts)))


def event_text(event: Event) -> str:
    """Return the text of an event. Notes of a run, and events of older recordings, have it themselves."""
    if event.code:
        return sentence(Fact(event.code, event.fields))
    return numbers.clean(event.text, LONGEST)


def reason(record: CommandRecord) -> str:
    """Return why a command came to its outcome, "" if there is nothing to add. Older runs say it in words."""
    if record.reason:
        return numbers.clean(record.reason, LONGEST)
    return sentence(Fact(record.code, record.fields)) if record.code else ""


def remarks(measured: Measured) -> str:
    """Return why an effect has no figure, or what shares it, "" if nothing qualifies it."""
    return joined(measured.remarks, ", ") or numbers.clean(measured.note, LONGEST)


def purpose(record: CommandRecord) -> str:
    """Return why a command was given: a user's note, or the reasons of the tuner; "" without one."""
    return _either(record.purpose, record.why)


def standing(state: TunerState) -> str:
    """Return what a tuner does now, "" if it does not say so."""
    return _either(state.facts, state.text)


def why(trial: Trial) -> str:
    """Return why something was tried, and how the trial ended."""
    return _either(trial.why, trial.text)


def refusal(answer: Tuned) -> str:
    """Return why a request to a tuner was refused. Older daemons say it in words."""
    return _either((Fact(answer.code, answer.fields),) if answer.code else (), answer.reason)


def _either(facts: Iterable[Fact], text: str) -> str:
    """Return the sentences of facts, or the text that an older hoptui has in their place."""
    return numbers.clean(joined(facts) or text, LONGEST)
