"""A text file that grows by whole lines: each is in it or not, also after a kill or on a full disk."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from types import TracebackType

from hoptui.cli.support.terminal import REJECTED, Fail


class LineLog:
    """Appends lines to a file, which begins with a header. A file that begins with it is continued.

    Args:
        path: the file.
        header: its first line, with its end.

    Raises:
        Fail: the file cannot be written, holds something else, or ends in the middle of a line.
    """

    def __init__(self, path: Path, header: str) -> None:
        self.path = path
        self._fd = -1
        first = header.encode()
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            self._regular = stat.S_ISREG(os.fstat(self._fd).st_mode)
            size = os.fstat(self._fd).st_size if self._regular else 0
            found = os.pread(self._fd, len(first), 0) if size else b""
            whole = not size or os.pread(self._fd, 1, size - 1) == b"\n"
        except OSError as error:
            self.close()
            raise _refused(path, error) from None
        if size and found != first:
            self.close()
            raise Fail(f"{path} has other columns or is another file: give another name", REJECTED)
        if not whole:
            self.close()
            raise Fail(f"{path} ends in the middle of a line: complete or remove that line first", REJECTED)
        if not size:
            self.add(header)

    def __enter__(self) -> LineLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, lines: str) -> None:
        """Append whole lines in one write.

        Raises:
            Fail: the disk is full or failing; what was written of them is taken back.
        """
        data = lines.encode()
        before = os.fstat(self._fd).st_size
        try:
            done = 0
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError as error:
            if self._regular:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, before)
            raise _refused(self.path, error) from None

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _refused(path: Path, error: OSError) -> Fail:
    return Fail(f"{path} cannot be written: {error.strerror or error}", REJECTED)
