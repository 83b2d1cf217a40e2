"""What happens to the errors of a command: one sentence, an exit code, and nothing lost."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence

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
