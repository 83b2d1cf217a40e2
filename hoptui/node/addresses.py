"""Paths of sockets, locks and recordings, and the checks that they are safe.

The runtime directory is not $XDG_RUNTIME_DIR: logind deletes that at logout, and training outlives logins.
Recordings stay on local disk, because SQLite must not be used on NFS homes.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

IPC_PATH_MAX = 107  # sun_path of AF_UNIX without its final NUL


class AddressError(Exception):
    """A path cannot be used. The text is one sentence that names it."""


class StateError(AddressError):
    """The directory of recordings cannot be used."""


@dataclass(frozen=True)
class Addresses:
    """The files of one daemon."""

    directory: Path
    state: Path

    @cached_property
    def lock(self) -> Path:
        return self.directory / "daemon.lock"

    @cached_property
    def runs(self) -> Path:
        return self.directory / "runs.sock"

    @cached_property
    def viewers(self) -> Path:
        return self.directory / "viewers.sock"

    @cached_property
    def info(self) -> Path:
        return self.directory / "daemon.json"

    @cached_property
    def log(self) -> Path:
        return self.directory / "daemon.log"

    @cached_property
    def alerts(self) -> Path:
        """Return the file of the alerts that have fired."""
        return self.directory / "alerts.json"

    def recording(self, run: str) -> Path:
        """Return the SQLite file of a run."""
        return self.state / f"{run}.hoptui"


def addresses(*, create: bool = True) -> Addresses:
    """Return this user's addresses, checked.

    `HOPTUI_DIR` and `HOPTUI_STATE_DIR` override `/tmp/hoptui-<uid>` and `/var/tmp/hoptui-<uid>`.

    Raises:
        AddressError: a variable is not an absolute path or not UTF-8, or the directory is missing (with
            `create=False`), a symlink, owned by another user, open to others, or its path is too long for
            a socket.
        StateError: the directory of recordings exists, and is a symlink, owned by another user, or open to
            others.
    """
    uid = os.getuid()
    directory = _given("HOPTUI_DIR", f"/tmp/hoptui-{uid}")
    found = Addresses(directory, _given("HOPTUI_STATE_DIR", f"/var/tmp/hoptui-{uid}"))
    longest = os.fsencode(f"{found.viewers}.new")
    if len(longest) > IPC_PATH_MAX:
        raise AddressError(
            f"{found.viewers} is {len(longest) - 4} bytes long and a socket's path may have "
            f"{IPC_PATH_MAX - 4}: set HOPTUI_DIR to a shorter directory"
        )
    secure(directory, create=create)
    try:
        state = found.state.lstat()
    except OSError:  # the daemon makes it, or reports why it cannot
        return found
    if stat.S_ISDIR(state.st_mode) or stat.S_ISLNK(state.st_mode):
        try:
            secure(found.state, create=False)
        except AddressError as error:
            raise StateError(str(error)) from None
    return found


def _given(variable: str, usual: str) -> Path:
    """Return a directory from the environment.

    A relative path would give each working directory its own daemon.
    """
    path = Path(os.environ.get(variable) or usual)
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise AddressError(f"{variable} is {os.fsencode(path)!r}: it must be UTF-8") from None
    if not path.is_absolute():
        raise AddressError(f"{variable} is {str(path)!r}: it must be an absolute path")
    return path


def secure(directory: Path, *, create: bool = True) -> None:
    """Create `directory` with mode 0700 if it is missing. Reject it unless it is a private directory of this
    user.

    Raises:
        AddressError: it is not a directory, is a symlink, is open to others, or belongs to another user.
    """
    try:
        if create:
            try:
                directory.mkdir(mode=0o700)
            except FileExistsError:
                pass
            except FileNotFoundError:
                directory.parent.mkdir(parents=True, exist_ok=True)
                directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise AddressError(f"{directory} cannot be used: {error.strerror}") from None
    if stat.S_ISLNK(found.st_mode):
        raise AddressError(f"{directory} is a symlink: it must be a directory")
    if not stat.S_ISDIR(found.st_mode):
        raise AddressError(f"{directory} is not a directory")
    if found.st_uid != os.getuid():
        raise AddressError(f"{directory} belongs to uid {found.st_uid}, not to you (uid {os.getuid()})")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise AddressError(
            f"{directory} is open to others (mode {stat.S_IMODE(found.st_mode):o}): chmod 700 it"
        )
