"""Terminal output: lines, tables and JSON on stdout; failures as one sentence and an exit code.

The traceback of an unexpected error goes to a log file.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

OK = 0
REJECTED = 1
"""The command was refused, failed or did not take effect."""
USAGE = 2
MISSING = 3
"""No such run, or no answer."""
INTERRUPTED = 130
PLAIN_WIDTH, LEAST_WIDTH = 80, 20
"""Characters of a line that is not for a terminal, and the fewest of a sentence beside its name."""
LONGEST_SENTENCE = 1000


class Fail(Exception):  # noqa: N818 - the sentence that the user reads, and the exit code
    """Ends the command: one sentence that names the cause, and the exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def usage(text: str) -> Fail:
    """A failure for bad usage."""
    return Fail(text, USAGE)


def say(text: str = "") -> None:
    """Print a line on stdout and flush it. Remove control characters; use ASCII if the terminal needs it."""
    _print(_fit(text, sys.stdout.encoding))


def warn(text: str) -> None:
    """Print a line on stderr."""
    print(_fit(text, sys.stderr.encoding), file=sys.stderr, flush=True)


def dump(value: object) -> None:
    """Print a JSON value as one line on stdout; unknown numbers (NaN) become null.

    Characters that are not Unicode, as in a path that is not UTF-8, become `?`.
    """
    import msgspec

    from hoptui.presentation.numbers import escaped

    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(_as_unicode(msgspec.to_builtins(value)))
    _print(escaped(encoded.decode()))


def _as_unicode(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_as_unicode(key): _as_unicode(item) for key, item in value.items()}
    return [_as_unicode(item) for item in value] if isinstance(value, list | tuple) else value


def emit(line: str) -> None:
    """Print a line of data on stdout and flush it. Only on a terminal, control characters are replaced."""
    from hoptui.presentation.numbers import plain

    _print(plain(line) if sys.stdout.isatty() else line)


def table(rows: Iterable[Sequence[str]], *, right: Sequence[int] = (), indent: str = "") -> None:
    """Print aligned columns two spaces apart; the columns in `right` are aligned to the right."""
    from hoptui.presentation.numbers import clean

    kept = [[clean(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*kept, strict=True)]
    for row in kept:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        say(indent + "  ".join(cells).rstrip())


def entries(rows: Iterable[tuple[str, str]], *, indent: str = "") -> None:
    """Print names and a sentence beside each, in lines of the width of the terminal, or of 80 characters."""
    from hoptui.presentation.numbers import clean

    kept = [(clean(name), clean(sentence, LONGEST_SENTENCE)) for name, sentence in rows]
    beside = max((len(name) for name, _ in kept), default=0)
    terminal = shutil.get_terminal_size().columns if sys.stdout.isatty() else PLAIN_WIDTH
    width = max(LEAST_WIDTH, terminal - len(indent) - beside - 2)
    for name, sentence in kept:
        for number, line in enumerate(textwrap.wrap(sentence, width) or [""]):
            say(f"{indent}{(name if number == 0 else '').ljust(beside)}  {line}".rstrip())


def interactive() -> bool:
    """Whether stdin and stdout are terminals."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def agreed(question: str) -> bool:
    """Ask a question on the terminal. Return whether the answer is yes; the default is no."""
    say(f"{question} [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def give_up_stdout() -> None:
    """Redirect stdout to /dev/null, so that buffered output does not fail again at exit."""
    with contextlib.suppress(io.UnsupportedOperation):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        give_up_stdout()
        raise Fail(f"cannot write to standard output: {error.strerror}", REJECTED) from None


def _fit(text: str, encoding: str | None) -> str:
    from hoptui.presentation.numbers import ascii_only, clean

    text = clean(text, 4000)
    if (encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32"):
        return text
    return ascii_only(text)


def target(output: str, *, force: bool) -> Path | None:
    """The output file, or None for standard output.

    Raises:
        Fail: it cannot be written, or it exists and `force` is false.
    """
    if output == "-":
        return None
    from hoptui.node.files import expanded

    path = expanded(output)
    try:
        path.lstat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise Fail(f"{one_line(output)[:80]} cannot be written: {error.strerror}", REJECTED) from None
    if path.is_dir():
        raise Fail(f"{path} is a directory", REJECTED)
    if path.exists() and not force:
        raise Fail(f"{path} already exists: give another name, or --force to overwrite it", REJECTED)
    if not path.absolute().parent.is_dir():
        raise Fail(f"no such directory: {path.absolute().parent}", REJECTED)
    return path


def keep_recording(path: Path | None, recording: Path) -> None:
    """Refuse to overwrite the recording that is read. Raises Fail."""
    if path is not None and path.resolve() == recording.resolve():
        raise Fail(f"{path} is the recording itself: give another name", REJECTED)


def to_file(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write beside `path` and rename, so that the file is never partial. Raises Fail."""
    from hoptui.node.files import replaced

    try:
        with replaced(path) as file:
            write(file)
    except KeyboardInterrupt:
        warn(f"hoptui: interrupted; {path} was not written")
        raise
    except OSError as error:
        raise Fail(f"{path} was not written: {error.strerror or error}", REJECTED) from None


class _Screen(io.TextIOWrapper):
    """A terminal, which must not obey what recordings contain."""

    def write(self, text: str, /) -> int:
        from hoptui.presentation.numbers import plain

        return super().write(plain(text))


@contextlib.contextmanager
def to_stdout() -> Iterator[TextIO]:
    """Standard output as UTF-8 with unchanged line ends, independent of the terminal's encoding.

    On a terminal, control characters are replaced. A file or a program gets the data as they are.
    """
    kind = _Screen if sys.stdout.isatty() else io.TextIOWrapper
    stream = kind(sys.stdout.buffer, encoding="utf-8", newline="")
    try:
        yield stream
        stream.flush()
    except KeyboardInterrupt:
        warn("hoptui: interrupted; the output is incomplete")
        raise
    except OSError as error:
        give_up_stdout()
        if isinstance(error, BrokenPipeError):
            raise
        raise Fail(f"cannot write to standard output: {error.strerror or error}", REJECTED) from None
    finally:
        stream.detach()


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
