"""The commands of a run as people search them and give them again: the same for the command line and the
dashboard. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import structs

from hoptui.domain.knobs import KnobValue
from hoptui.presentation import numbers, sentences, vocabulary
from hoptui.protocol.authors import author, author_word
from hoptui.protocol.messages import CommandRecord, NodeState, RunState

UNDO = "undo of "
"""How the reason of a command begins that undoes another; the id of that one follows."""
ENDED = "not measured: the run ended"
STAGE = "stage:"
BY = "by:"
LONGEST_WORD = 400
"""Of a line that is to be typed, in characters."""


class Filter(NamedTuple):
    """Which commands are wanted: all of `words` occur in what is said of one, its stage begins with `stage`,
    its author with `by`.

    Case does not matter, and what is empty asks for nothing.
    """

    words: tuple[str, ...] = ()
    stage: str = ""
    by: str = ""

    @classmethod
    def parse(cls, typed: str) -> Filter:
        """`lr stage:applied by:ana`; of two stages or two people the last counts."""
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
        """As it is typed."""
        stage = f"{STAGE}{self.stage}" if self.stage else ""
        by = f"{BY}{self.by}" if self.by else ""
        return " ".join(filter(None, (*self.words, stage, by)))

    def wants(self, record: CommandRecord) -> bool:
        """Whether a command is one of them."""
        if not record.stage.startswith(self.stage) or not author_word(record.origin).startswith(self.by):
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
    """The commands that are wanted, the newest on top."""
    asked = wanted is not None and wanted != Filter()
    found = [record for record in records if wanted is None or not asked or wanted.wants(record)]
    return sorted(found, key=lambda record: (record.wall, record.seq), reverse=True)


def command_line(verb: str, run: str, *rest: str) -> str:
    """What to type in a shell: `hoptui resume 'my run'`. `run` is what names its run; nothing in it is for
    the shell."""
    return shlex.join(["hoptui", verb, *(numbers.clean(word, LONGEST_WORD) for word in (run, *rest))])


def again(record: CommandRecord, run: str) -> str:
    """What to type in a shell to give a command again: `hoptui set ppo num_envs=2048`. `run` is what names
    its run.

    It is the value that was asked for, to the last digit, whatever became of it.
    """
    rest: tuple[str, ...] = ()
    if record.verb == "set":
        rest = (f"{record.knob}={as_typed(record.wanted)}",)
    elif record.verb == "profile":
        rest = ("--steps", str(record.wanted))
    return command_line(record.verb, run, *rest)


def reason(record: CommandRecord, commands: Mapping[str, CommandRecord]) -> str:
    """Why a command was given, as its author said: `more work`, `undo of lr 1.0e-3 → 3.0e-4`; empty where
    nothing was said."""
    undone = commands.get(record.why.removeprefix(UNDO)) if record.why.startswith(UNDO) else None
    return sentences.purpose(record) if undone is None else f"{UNDO}{vocabulary.change(undone)}"


def left(record: CommandRecord) -> CommandRecord:
    """A command as the end of its run has left it: an effect of which there is no figure yet is not measured
    any more."""
    found = record.measured
    if found is None or found.settled or found.gain is not None:
        return record
    return structs.replace(record, measured=structs.replace(found, settled=True, note=ENDED))


def named(run: RunState, node: NodeState | None) -> str:
    """What names a run on a command line: its name, or its id where the name does not: another run has the
    same, or nobody can type it."""
    same = [other for other in node.runs if other.name == run.name] if node else []
    typed = run.name and not run.name.startswith("-") and numbers.clean(run.name, LONGEST_WORD) == run.name
    return run.name if typed and len(same) < 2 else run.run


def as_typed(value: KnobValue | None) -> str:
    """A value as a person would type it, to its last digit: `on`, `2048`, `0.0003`."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "" if value is None else str(value)
