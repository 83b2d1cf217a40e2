"""One sentence for a command line that the parser refuses. It ends with the help command to try."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from cyclopts import CycloptsError
from cyclopts.exceptions import MissingArgumentError, UnknownOptionError, UnusedCliTokensError

from hoptui.cli.support.errors import one_line

LISTED = {"RUN": "hoptui ls lists them", "RECORDING": "hoptui ls --all lists them"}
ELSEWHERE = {"top": "hoptui alone shows every GPU and run"}
"""Commands of other programs, and their equivalent here."""


def usage_sentence(error: CycloptsError, words: Sequence[str], commands: Sequence[str]) -> str:
    """Explain a parser error. `words` is the command line, `commands` are the valid first words."""
    first = words[0] if words else ""
    known = first in commands
    command = f"hoptui {first}" if known else "hoptui"
    unused = (error.unused_tokens or []) if isinstance(error, UnusedCliTokensError) else []
    typed = unused[0] if unused else first
    if not known and typed and not typed.startswith("-"):
        said = f"there is no command {typed!r}{_meant(typed, commands)}"
    elif isinstance(error, UnusedCliTokensError):
        said = f"{command} does not take {typed!r}"
    elif isinstance(error, UnknownOptionError):
        option = error.token.keyword or error.token.value
        options = [name for one in error.argument_collection for name in one.names if one.parse]
        said = f"{command} has no option {option}{_near(option, options)}"
    elif isinstance(error, MissingArgumentError):
        said = f"{command} needs {_missing(error)}"
    else:
        sentence = one_line(str(error)).rstrip(".")
        said = sentence[:1].lower() + sentence[1:]
    return f"{said}; try {command} --help"


def _missing(error: MissingArgumentError) -> str:
    name = error.keyword or (error.argument.name if error.argument else "")
    if name.startswith("-"):
        return f"a value for {name}"
    return f"{name} ({LISTED[name]})" if name in LISTED else name


def _meant(typed: str, commands: Iterable[str]) -> str:
    return f" ({ELSEWHERE[typed]})" if typed in ELSEWHERE else _near(typed, commands)


def _near(typed: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(typed, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""
