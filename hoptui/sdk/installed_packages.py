"""Which files are of installed packages, where the names of their folders do not show it.

`pip install --target DIR` and PYTHONPATH put packages anywhere, and they may be in a zip file. Each of them
has a folder `*.dist-info` beside it, whose RECORD lists its files (PyPA specification "Recording installed
projects"). An `*.egg-info` says nothing: `pip install -e` leaves one beside the code of the user.

Folders of `sys.path` may be on a network file system that does not answer. So each is read once, in a thread
of its own, and only if a sampled file is below it.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hoptui.domain.code_lines import shown_package_path

WAIT_S = 0.5
"""So long the thread that asks waits for a folder, once. A local one is read in milliseconds."""
PATIENCE_S = 15.0
"""A folder that has not been read by then counts as one without packages, until it has been."""
MOST_FILES = 16384
"""Files that are remembered."""
MOST_ENTRIES = 50_000
"""Entries of a folder that are looked at. A folder of data may have any number."""
MOST_LINES = 200_000
"""Lines of a RECORD that are read. That of torch has 12 000."""
SUFFIX = ".dist-info"


class PackageFolder(NamedTuple):
    """The packages that are installed in a folder.

    `names` are those of packages with an `__init__.py`, and of modules with their ending, such as `six.py`.
    Several installations, and a user, may share a namespace package. So `files` has the paths of its files.
    """

    names: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()

    def holds(self, path: str) -> bool:
        """Whether a file is of an installed package. `path` is relative to the folder."""
        return path.partition("/")[0] in self.names or path in self.files


NO_PACKAGES = PackageFolder()


class InstalledPackages:
    """Knows where the path of its installed package begins in the name of a file. Only one thread may ask."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._asked: dict[str, float] = {}  # a folder that is being read -> since when
        self._read: dict[str, PackageFolder] = {}  # by threads that read
        self._late: set[str] = set()

    def place(self, file: str) -> int | None:
        """Return where the path of its package begins in the name of a file, see `StackFrame.package_at`.

        None: a thread is finding that out.
        """
        found = self._files.get(file)
        if found is not None:
            return found
        if not file.startswith("/") or shown_package_path(file):
            return self._remember(file, 0)
        folders = _above(file)
        self._begin_to_read([folder for folder in folders if folder not in self._asked])
        for folder in folders:
            packages = self._read.get(folder)
            if packages is None:
                if time.monotonic() - self._asked[folder] < PATIENCE_S:
                    return None
                self._late.add(folder)
            elif packages.holds(file[len(folder) + 1 :]):
                return self._remember(file, len(folder) + 1)
        return self._remember(file, 0) if self._late.isdisjoint(folders) else 0

    def corrected(self) -> bool:
        """Whether a folder has been read later than `PATIENCE_S` since the last call. Earlier answers about
        files below it may be wrong."""
        read = self._late & self._read.keys()
        self._late -= read
        return bool(read)

    def _remember(self, file: str, place: int) -> int:
        if len(self._files) >= MOST_FILES:
            self._files.clear()
        self._files[file] = place
        return place

    def _begin_to_read(self, folders: Sequence[str]) -> None:
        """Begin to read folders. Each of them has an entry in `_read` afterwards, unless it never answers."""
        if not folders:
            return
        self._asked.update(dict.fromkeys(folders, time.monotonic()))
        reader = threading.Thread(target=self._main, args=(folders,), name="hoptui-packages", daemon=True)
        try:
            reader.start()
            reader.join(WAIT_S)
        except RuntimeError:  # the process has as many threads as it may have, or it ends
            self._read.update(dict.fromkeys(folders, NO_PACKAGES))

    def _main(self, folders: Iterable[str]) -> None:
        for folder in folders:
            found = NO_PACKAGES
            with suppress(Exception):  # whatever is wrong with a folder must not reach the script's stderr
                found = read(folder)
            self._read[folder] = found


def _above(file: str) -> list[str]:
    """Return the folders and zip files of `sys.path` that a file is below, the innermost first."""
    found = set()
    for entry in tuple(sys.path):
        if isinstance(entry, str):
            with suppress(OSError):  # the working directory is gone
                folder = (entry if entry.startswith("/") else str(Path.cwd() / entry)).rstrip("/")
                if folder and file.startswith(folder + "/"):
                    found.add(folder)
    return sorted(found, key=len, reverse=True)


def read(folder: str) -> PackageFolder:
    """Return the packages that are installed in a folder or a zip file of `sys.path`.

    Raises:
        OSError: it cannot be read.
    """
    names: set[str] = set()
    files: set[str] = set()
    for record in _zipped_records(folder) if Path(folder).is_file() else _records(folder):
        own: set[str] = set()
        others: set[str] = set()
        with suppress(OSError):
            for line in itertools.islice(record, MOST_LINES):
                path = line.partition(",")[0]
                top, _, below = path.partition("/")
                if top in own or not path.endswith(".py"):
                    continue
                if below in ("", "__init__.py"):
                    own.add(top)
                else:
                    others.add(path)
        names |= own
        files.update(path for path in others if path.partition("/")[0] not in own)
    return PackageFolder(frozenset(names), frozenset(files))


def _records(folder: str) -> Iterator[Iterable[str]]:
    """Yield the lines of each RECORD in a folder."""
    with os.scandir(folder) as entries:
        first = itertools.islice(entries, MOST_ENTRIES)
        found = [entry.path for entry in first if entry.name.endswith(SUFFIX)]
    for path in found:
        with (
            suppress(OSError),
            Path(path, "RECORD").open(encoding="utf-8", errors="surrogateescape") as record,
        ):
            yield record


def _zipped_records(file: str) -> Iterator[Iterable[str]]:
    """Yield the same of a zip file, by what the importer of Python has in memory."""
    importer: Any = sys.path_importer_cache.get(file)
    content = getattr(importer, "_files", None)
    for name in tuple(content) if isinstance(content, dict) else ():
        folder, _, record = name.partition("/")
        if folder.endswith(SUFFIX) and record == "RECORD":
            yield importer.get_data(f"{file}/{name}").decode("utf-8", "surrogateescape").splitlines()
