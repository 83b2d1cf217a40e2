"""Where a command writes what is longer than a few lines: a file that is whole or as it was before, or standard output."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, TextIO

from cyclopts import Parameter

from hoptui.cli.terminal import REJECTED, Fail, give_up_stdout, warn

Output = Annotated[
    str,
    Parameter(
        name=("--output", "-o"), allow_leading_hyphen=True, help="The file to write; - is standard output."
    ),
]
Force = Annotated[bool, Parameter(negative=(), show_default=False, help="Overwrite the output file.")]


def target(output: str, *, force: bool) -> Path | None:
    """The file that is meant, None for standard output.

    Raises:
        Fail: it cannot be written there, or is there already and was not to be overwritten.
    """
    if output == "-":
        return None
    path = Path(output).expanduser()
    if path.is_dir():
        raise Fail(f"{path} is a directory", REJECTED)
    if path.exists() and not force:
        raise Fail(f"{path} is there already: give another name, or --force to overwrite it", REJECTED)
    if not path.absolute().parent.is_dir():
        raise Fail(f"there is no directory {path.absolute().parent}", REJECTED)
    return path


def keep_recording(path: Path | None, recording: Path) -> None:
    """Refuse to write over what is read. Raises Fail."""
    if path is not None and path.resolve() == recording.resolve():
        raise Fail(f"{path} is the recording itself", REJECTED)


def to_file(path: Path, write: Callable[[Path], None]) -> None:
    """Write beside `path` and rename, so that a file of that name is always whole."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(part)
        part.replace(path)
    except KeyboardInterrupt:
        warn(f"hoptui: interrupted; {path} was not written")
        raise
    except OSError as error:
        raise Fail(f"{path} was not written: {error.strerror or error}", REJECTED) from None
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def to_stdout() -> Iterator[TextIO]:
    """Standard output as UTF-8 with the writer's own line ends, whatever the terminal's encoding is."""
    stream = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="")
    try:
        yield stream
        stream.flush()
    except KeyboardInterrupt:
        warn("hoptui: interrupted; the output ends early")
        raise
    except OSError as error:
        give_up_stdout()
        if isinstance(error, BrokenPipeError):
            raise
        raise Fail(f"standard output cannot be written: {error.strerror or error}", REJECTED) from None
    finally:
        stream.detach()
