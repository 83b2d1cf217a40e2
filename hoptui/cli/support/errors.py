"""What happens to the errors of a command: one sentence, an exit code, and nothing lost."""

from __future__ import annotations

import contextlib
import difflib
import sys
from collections.abc import Callable, Iterable, Sequence

from cyclopts import CycloptsError
from cyclopts.exceptions import MissingArgumentError, UnknownOptionError, UnusedCliTokensError

from hoptui.cli.support.terminal import INTERRUPTED, REJECTED, Fail, dump, give_up_stdout, warn

PIPE_CLOSED = 128 + 13
"""As of a program that the signal ends: who reads its output left early, which is no error."""


def carried_out(command: Callable[[], int], words: Sequence[str]) -> int:
    """Run one command and return its exit code; `words` are those of the command line."""
    try:
        return command()
    except Fail as fail:
        if str(fail):
            _tell(str(fail), fail.code, words)
        return fail.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        give_up_stdout()
        return PIPE_CLOSED
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # the same, while a help page was printed
            return PIPE_CLOSED
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {one_line(str(error))}; {_keep_traceback(words)}"
        _tell(said, REJECTED, words)
        return REJECTED


def _tell(sentence: str, code: int, words: Sequence[str]) -> None:
    """On stderr for a person; where JSON was asked for, as JSON on stdout too, which is then never just empty."""
    warn(f"hoptui: {sentence}")
    if "--json" in words:
        with contextlib.suppress(Fail, BrokenPipeError):
            dump({"error": sentence, "code": code})


def one_line(text: str) -> str:
    """The same words with single blanks between them."""
    return " ".join(text.split())


def _keep_traceback(words: Sequence[str]) -> str:
    """Write the traceback where it can be read later, and say where."""
    import traceback

    from hoptui.node.addresses import AddressError, addresses

    try:
        path = addresses().directory / "cli.log"
        with path.open("a") as file:
            file.write(f"{' '.join((sys.argv[0], *words))}\n{traceback.format_exc()}\n")
    except (AddressError, OSError) as error:
        return f"its traceback could not be kept ({error})"
    return f"the traceback is in {path}"


LISTED = {"RUN": "hoptui ls lists them", "RECORDING": "hoptui ls --all lists them"}
ELSEWHERE = {"top": "hoptui alone shows every GPU and run"}
"""Commands of other programs, and what does the same here."""


def told(error: CycloptsError, words: Sequence[str], commands: Sequence[str]) -> str:
    """The sentence; `words` are the command line, `commands` the names that its first word may be."""
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
