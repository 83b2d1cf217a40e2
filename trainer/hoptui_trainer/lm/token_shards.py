"""Tokens in files: read where they are needed, never as a whole.

Reads go through `pread`, not through a memory map: they let other threads run, a file that shrinks is an
error and not the end of the process, and the pages read do not count as memory of the process.
"""

from __future__ import annotations

import errno
import os
import threading
import time
import weakref
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hoptui_trainer.common.errors import UsageError

TokenType = Literal["uint16", "uint32"]
Tokens = NDArray[Any]
STORED = {"uint16": torch.int16, "uint32": torch.int32}
"""The torch type with the bits of a token type: torch computes little with unsigned numbers."""
OPEN_FILES = 256
"""Files that stay open. Those beyond are opened for each read."""
TRANSIENT = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN})
"""Errors of network disks that may pass: what is read is read again."""
TRIES, PAUSE_S = 6, 2.0
LOADED = 1 << 22
"""Tokens that are copied to a device at once."""


class Shard(NamedTuple):
    """`tokens` tokens of a file, from byte `offset` on."""

    path: Path
    offset: int
    tokens: int


class TokenShards:
    """Tokens of one type in files, one after the other. Threads may read at once.

    Args:
        vocabulary: tokens are below it.
    """

    def __init__(self, shards: Sequence[Shard], dtype: TokenType, vocabulary: int) -> None:
        self.shards, self.dtype, self.vocabulary = tuple(shards), dtype, vocabulary
        self.numpy = np.dtype(dtype).newbyteorder("<")
        self._starts = [0, *accumulate(shard.tokens for shard in self.shards)]
        self._files: dict[Path, int] = {}
        self._lock = threading.Lock()
        self._given_up: list[int] = []
        weakref.finalize(self, _close, self._files, self._given_up)

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def nbytes(self) -> int:
        """Bytes of all tokens."""
        return len(self) * self.numpy.itemsize

    def read(self, start: int, out: Tokens) -> None:
        """Fill `out` (n,) with the tokens from `start` on; after the last one comes the first.

        Raises:
            UsageError: a file cannot be read, has become shorter, or holds a token out of the vocabulary.
        """
        done = 0
        while done < len(out):
            place = (start + done) % len(self)
            number = bisect_right(self._starts, place) - 1
            count = min(len(out) - done, self._starts[number + 1] - place)
            shard = self.shards[number]
            offset = shard.offset + (place - self._starts[number]) * self.numpy.itemsize
            self._read(shard.path, offset, out[done : done + count])
            done += count

    def check(self, tokens: Tokens) -> None:
        """Refuse tokens that the model's table has no row for.

        Raises:
            UsageError: the largest token is beyond the vocabulary.
        """
        if len(tokens) and (largest := int(tokens.max())) >= self.vocabulary:
            where = self.shards[0].path
            raise UsageError(
                f"--vocab-size {self.vocabulary}: {where if len(self.shards) == 1 else where.parent} holds "
                f"the token {largest:,}, which needs a larger vocabulary or another --token-dtype"
            )

    def head(self, count: int) -> Tensor:
        """The first `count` tokens at most, as `STORED` has them.

        Raises:
            UsageError: see `read` and `check`.
        """
        found = np.empty(min(count, len(self)), self.numpy)
        self.read(0, found)
        self.check(found)
        return torch.from_numpy(found.view(_signed(self.numpy)))

    def load(self, device: torch.device) -> Tensor:
        """All tokens on the device, copied in parts of a few megabytes, as `STORED` has them.

        Raises:
            UsageError: see `read` and `check`.
            torch.OutOfMemoryError: they do not fit.
        """
        found = torch.empty(len(self), dtype=STORED[self.dtype], device=device)
        for start in range(0, len(self), LOADED):
            read = np.empty(min(LOADED, len(self) - start), self.numpy)
            self.read(start, read)
            self.check(read)
            found[start : start + len(read)] = torch.from_numpy(read.view(_signed(self.numpy)))
        return found

    def _read(self, path: Path, offset: int, out: Tokens) -> None:
        view = out.view(np.uint8).data
        for tries_left in reversed(range(TRIES)):
            try:
                with self._opened(path) as file:
                    while view:
                        count = os.preadv(file, [view], offset)
                        if not count:
                            raise UsageError(f"{path} has become shorter since the run began to read it")
                        view, offset = view[count:], offset + count
                return
            except OSError as error:
                if error.errno not in TRANSIENT or not tries_left:
                    raise UsageError(f"{path}: {error.strerror}") from None
            with self._lock:  # other threads may still read from it: it is closed at the end
                if (file := self._files.pop(path, -1)) >= 0:
                    self._given_up.append(file)
            time.sleep(PAUSE_S)

    def _opened(self, path: Path) -> _Opened:
        with self._lock:
            file = self._files.get(path)
            if file is not None:
                return _Opened(file, kept=True)
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            kept = len(self._files) < OPEN_FILES
            if kept:
                self._files[path] = file
        # Blocks are read in random order: what the kernel would read ahead is not needed.
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        return _Opened(file, kept=kept)


class _Opened:
    """A file descriptor, closed on leaving unless it is kept."""

    def __init__(self, file: int, *, kept: bool) -> None:
        self._file, self._kept = file, kept

    def __enter__(self) -> int:
        return self._file

    def __exit__(self, *_: object) -> None:
        if not self._kept:
            os.close(self._file)


def samples(shards: TokenShards, places: int, size: int) -> Iterator[Tokens]:
    """Tokens of `places` stretches of at most `size`, evenly spread over the files, both ends among
    them. Starts and sizes are even."""
    size = min(size, len(shards)) // 2 * 2
    for number in range(places):
        start = (len(shards) - size) * number // max(1, places - 1) // 2 * 2
        found = np.empty(size, shards.numpy)
        shards.read(start, found)
        yield found


def _signed(kind: np.dtype[Any]) -> str:
    return f"<i{kind.itemsize}"


def _close(files: dict[Path, int], given_up: list[int]) -> None:
    for file in (*files.values(), *given_up):
        os.close(file)
