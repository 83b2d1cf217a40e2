"""Paths that users type, and files that are replaced in one step, also where other users can write."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

PREFIX, SUFFIX = ".hoptui-", ".part"


def expanded(typed: str) -> Path:
    """Return a path, with the home directory for `~`. An unknown user stays as it is, as in a shell."""
    path = Path(typed)
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def place(environ: Mapping[str, str], kind: str, name: str) -> Path | None:
    """Return the path of a hoptui file by the XDG Base Directory Specification.

    A relative path in a variable is ignored.

    Args:
        kind: `CONFIG` or `STATE`.

    Returns:
        None if there is no home directory.
    """
    home = environ.get("HOME", "")
    given = environ.get(f"XDG_{kind}_HOME", "")
    if given.startswith("/"):
        return Path(given, "hoptui", name)
    if not home.startswith("/"):
        return None
    return Path(home, {"CONFIG": ".config", "STATE": ".local/state"}[kind], "hoptui", name)


@contextlib.contextmanager
def replaced(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` when the block ends without an exception. Else `path` stays as it is.

    The file is made beside `path` under a name that cannot be guessed, with O_EXCL and O_NOFOLLOW. So it is
    never a file or a link that another user has put there. It is on disk before it is renamed.

    Args:
        path: the file to replace. A symlink is replaced itself.
        mode: its permissions; None for those that new files have under the umask.

    Raises:
        OSError: it cannot be written, or another user has replaced it meanwhile.
    """
    import tempfile  # slow to import, and most programs write nothing

    number, name = tempfile.mkstemp(prefix=PREFIX, suffix=SUFFIX, dir=path.parent)
    new = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            os.fchmod(number, 0o666 & ~_umask() if mode is None else mode)
            yield file
            file.flush()
            os.fsync(number)
            if not os.path.samestat(new.lstat(), os.fstat(number)):
                raise OSError(None, "another process has replaced it meanwhile")
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _umask() -> int:
    """Return the umask. os.umask would change it for other threads."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Umask":
            return int(value, 8)
    return 0o077
