"""Turn the errors of a command into one sentence and an exit code, and keep the traceback."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence

from hoptui.cli.support.terminal import INTERRUPTED, REJECTED, Fail, dump, give_up_stdout, warn

PIPE_CLOSED = 128 + 13
"""The code of a program that SIGPIPE ends: its reader closed the pipe, which is not an error."""


def carried_out(command: Callable[[], int], words: Sequence[str]) -> int:
    """Run one command and return its exit code; `words` is the command line."""
    try:
        return command()
    except Fail as fail:
        if str(fail):
            _print_error(str(fail), fail.code, words)
        return fail.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        give_up_stdout()
        return PIPE_CLOSED
    except SystemExit as ended:
        if isinstance(
            ended.__context__, BrokenPipeError
        ):  # the pipe was closed while a help page was printed
            return PIPE_CLOSED
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {one_line(str(error))}; {_keep_traceback(words)}"
        _print_error(text, REJECTED, words)
        return REJECTED


def _print_error(sentence: str, code: int, words: Sequence[str]) -> None:
    """Print an error on stderr, and with --json also as JSON on stdout."""
    warn(f"hoptui: {sentence}")
    if "--json" in words:
        with contextlib.suppress(Fail, BrokenPipeError):
            dump({"error": sentence, "code": code})


def one_line(text: str) -> str:
    """The text with single spaces between its words."""
    return " ".join(text.split())


def _keep_traceback(words: Sequence[str]) -> str:
    """Write the traceback to a log file and return a sentence with its path."""
    import traceback

    from hoptui.node.addresses import AddressError, addresses

    try:
        path = addresses().directory / "cli.log"
        with path.open("a") as file:
            file.write(f"{' '.join((sys.argv[0], *words))}\n{traceback.format_exc()}\n")
    except (AddressError, OSError) as error:
        return f"the traceback could not be saved ({error})"
    return f"the traceback is in {path}"
