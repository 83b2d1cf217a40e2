"""The words of a command line that are names: which words, and of what.

The parser knows the same, but importing it takes longer than a completion may take. A test compares both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Source = Literal["living", "known", "recorded", "example", "assignment", "knob"]
"""What a word names: a live run, any run, a recorded run, a recording that ships with hoptui,
`knob=value`, or a knob of the run before it."""


class Grammar(NamedTuple):
    """The names in a command line of one command.

    Attributes:
        first: what the first word names.
        rest: what every further word names; None: nothing.
        files: whether the first word may also be the file of a recording, and those of `rest` if `first` is
            also of `rest`.
        valued: the options that take the next word as their value.
        options: those of `valued` whose value is a name.
        flags: the options without a value after which the first word names something else.
    """

    first: Source
    rest: Source | None = None
    files: bool = False
    valued: tuple[str, ...] = ()
    options: tuple[tuple[str, Source], ...] = ()
    flags: tuple[tuple[str, Source], ...] = ()


_DASHBOARD = ("--theme",)
_OUTPUT = ("--output", "-o")

GRAMMARS: dict[str, Grammar] = {
    "attach": Grammar("known", "known", files=True, valued=("--hoptui", *_DASHBOARD)),
    "serve": Grammar("known", files=True, valued=("--port",)),
    "status": Grammar("known"),
    "watch": Grammar("living", valued=("--every", "--hz")),
    "wait": Grammar("living", valued=("--for", "--timeout")),
    "where": Grammar(
        "known", files=True, valued=("--rank", "--seconds", "--since", "--until", *_OUTPUT)
    ),
    "stack": Grammar("living", valued=("--rank",)),
    "output": Grammar("known", valued=("--rank", "--lines")),
    "history": Grammar("known", files=True, valued=("--filter", "--since")),
    "note": Grammar("known", files=True),
    "get": Grammar("known", "knob"),
    "set": Grammar("living", "assignment", valued=("--why", "--expect", "--timeout", "--measure")),
    "tune": Grammar(
        "living",
        valued=("--within", "--budget", "--objective", "--allow", "--freeze", "--release"),
        options=(("--allow", "knob"), ("--freeze", "knob"), ("--release", "knob")),
    ),
    "target": Grammar("living"),
    "pause": Grammar("living", valued=("--for", "--timeout")),
    "resume": Grammar("living", valued=("--timeout",)),
    "checkpoint": Grammar("living", valued=("--timeout",)),
    "profile": Grammar("living", valued=("--steps", "--wait", "--warmup", "--timeout")),
    "stop": Grammar("living", valued=("--timeout",)),
    "replay": Grammar(
        "recorded", files=True, valued=_DASHBOARD, flags=(("--example", "example"),)
    ),
    "report": Grammar("recorded", "recorded", files=True, valued=("--format", *_OUTPUT)),
    "export": Grammar(
        "recorded",
        files=True,
        valued=("--format", *_OUTPUT, "--source", "--metrics", "--since", "--until"),
    ),
    "rm": Grammar("recorded", "recorded", valued=("--older-than",)),
}  # fmt: skip
"""The commands that take names, as in `hoptui.cli.main.COMMANDS`."""


class Wanted(NamedTuple):
    """What the word at the cursor names. `run` is the run that is named before it, if any."""

    source: Source
    files: bool
    run: str


def wanted(words: Sequence[str]) -> Wanted | None:
    """What the last of these words names; None if it is no name. `words` are those behind `hoptui`."""
    if len(words) < 2 or (grammar := GRAMMARS.get(words[0])) is None or words[-1].startswith("-"):
        return None
    *before, _ = words[1:]
    names: list[str] = []
    option = ""
    for word in before:
        if option:
            option = ""
        elif word.startswith("-") and len(word) > 1:
            option = word if word in grammar.valued else ""
        else:
            names.append(word)
    run = names[0] if names else ""
    if flagged := [source for flag, source in grammar.flags if flag in before]:
        return None if names or option else Wanted(flagged[0], False, "")
    if option:
        source = dict(grammar.options).get(option)
        return Wanted(source, False, run) if source is not None else None
    if not names:
        return Wanted(grammar.first, grammar.files, "")
    if grammar.rest is None:
        return None
    return Wanted(grammar.rest, grammar.files and grammar.rest == grammar.first, run)
