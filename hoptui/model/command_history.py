"""Search and repetition of a run's commands, for the command line and the dashboard. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec import structs

from hoptui.domain.knobs import KnobValue
from hoptui.presentation import numbers, sentences, vocabulary
from hoptui.protocol.authors import author, author_word
from hoptui.protocol.messages import CommandRecord, NodeState, RunState

UNDO = "undo of "
"""Prefix of the reason of a command that undoes another. The id of that command follows."""
ENDED = "not measured: the run ended"
STAGE = "stage:"
BY = "by:"
LONGEST_WORD = 400
"""Maximum characters of a word that a user types."""


class Filter(NamedTuple):
    """Selects commands.

    All of `words` occur in a command's text, its stage begins with `stage` and its author with `by`. Case is
    ignored. An empty field selects everything.
    """

    words: tuple[str, ...] = ()
    stage: str = ""
    by: str = ""

    @classmethod
    def parse(cls, typed: str) -> Filter:
        """Parse `lr stage:applied by:ana`. Of two stages or two authors the last counts."""
        found, stage, by = [], "", ""
        for word in typed.lower().split():
            if word.startswith(STAGE):
                stage = word.removeprefix(STAGE)
            elif word.startswith(BY):
                by = word.removeprefix(BY)
            else:
                found.append(word)
        return cls(tuple(found), stage, by)

    def __str__(self) -> str:
        """The filter as a user types it."""
        stage = f"{STAGE}{self.stage}" if self.stage else ""
        by = f"{BY}{self.by}" if self.by else ""
        return " ".join(filter(None, (*self.words, stage, by)))

    def wants(self, record: CommandRecord) -> bool:
        """Return whether the filter selects a command."""
        if not vocabulary.stage_name(record).startswith(self.stage) or not author_word(
            record.origin
        ).startswith(self.by):
            return False
        parts = (
            author(record.origin),
            record.verb,
            vocabulary.change(record),
            vocabulary.stage_text(record),
            sentences.purpose(record),
        )
        said = " ".join(parts).lower()
        return all(word in said for word in self.words)


def newest_first(records: Iterable[CommandRecord], wanted: Filter | None = None) -> list[CommandRecord]:
    """Return the selected commands, newest first."""
    asked = wanted is not None and wanted != Filter()
    found = [record for record in records if wanted is None or not asked or wanted.wants(record)]
    return sorted(found, key=lambda record: (record.wall, record.seq), reverse=True)


def command_line(verb: str, run: str, *rest: str) -> str:
    """Return a command for a shell: `hoptui resume 'my run'`. `run` is the run's name or id. Words are
    quoted."""
    return shlex.join(["hoptui", verb, *(numbers.clean(word, LONGEST_WORD) for word in (run, *rest))])


def again(record: CommandRecord, run: str) -> str:
    """Return the shell command that repeats a command: `hoptui set ppo num_envs=2048`.

    `run` is the run's name or id. The value is the requested one with all digits, whatever the outcome was.
    """
    rest: tuple[str, ...] = ()
    if record.verb == "set":
        rest = (f"{record.knob}={as_typed(record.wanted)}",)
    elif record.verb == "profile":
        rest = ("--steps", str(record.wanted), *_options(record.options))
    return command_line(record.verb, run, *rest)


def _options(options: Mapping[str, int | bool]) -> Iterator[str]:
    for option, value in options.items():
        if value is True or value is False:
            yield f"--{'' if value else 'no-'}{option}"
        else:
            yield from (f"--{option}", str(value))


def reason(record: CommandRecord, commands: Mapping[str, CommandRecord]) -> str:
    """Return the author's reason for a command: `more work`, `undo of lr 1.0e-3 → 3.0e-4`; "" without one."""
    undone = commands.get(record.why.removeprefix(UNDO)) if record.why.startswith(UNDO) else None
    return sentences.purpose(record) if undone is None else f"{UNDO}{vocabulary.change(undone)}"


def left(record: CommandRecord) -> CommandRecord:
    """Return a command as the end of its run left it: no measurement goes on. An effect without a figure is
    marked as not measured.
    """
    found = record.measured
    if found is None or found.settled:
        return record
    if found.gain is not None:
        return structs.replace(record, measured=structs.replace(found, until=0))
    return structs.replace(record, measured=structs.replace(found, settled=True, note=ENDED))


def named(run: RunState, node: NodeState | None) -> str:
    """Return the word that identifies a run on a command line.

    It is the name, or the id if another run has the same name or the name cannot be typed.
    """
    same = [other for other in node.runs if other.name == run.name] if node else []
    typed = run.name and not run.name.startswith("-") and numbers.clean(run.name, LONGEST_WORD) == run.name
    return run.name if typed and len(same) < 2 else run.run


def as_typed(value: KnobValue | None) -> str:
    """Return a value as a user would type it, with all digits: `on`, `2048`, `0.0003`."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "" if value is None else str(value)
