"""The file of what tuners settled on, one JSON line a result. Used by the archive's thread alone; `hoptui.tuner.prior_results` knows
what they mean."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from hoptui.tuner.prior_results import MOST, Settled, with_newer
from hoptui.wire.addresses import AddressError, secure

log = logging.getLogger("hoptui.daemon")

NAME = "tuner.jsonl"
MOST_BYTES = 4 << 20
"""More than so much of a file is not read, however it came to be."""


class SettledFile:
    """`results` are those that the file holds; what cannot be read or written costs memory of past runs and nothing else."""

    def __init__(self, state: Path) -> None:
        self._path = state / NAME
        self._lines = 0
        self.results: tuple[Settled, ...] = ()

    def read(self) -> None:
        """Take in what is there; lines that make no sense, as of a daemon killed while it wrote, are left out."""
        try:
            secure(self._path.parent)
            with self._path.open("rb") as file:
                lines = file.read(MOST_BYTES).splitlines()
        except FileNotFoundError:
            return
        except AddressError as error:
            log.warning("what tuners settled on is not read: %s", error)
            return
        except OSError as error:
            log.warning("%s cannot be read: %s", self._path, error.strerror)
            return
        self._lines = len(lines)
        for line in lines:
            try:
                self.results = with_newer(self.results, msgspec.json.decode(line, type=Settled))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                log.warning("%s has a line that is no result", self._path)

    def add(self, newer: Settled) -> None:
        """Keep a result; the file is written anew once most of its lines are of results that newer ones have replaced."""
        self.results = with_newer(self.results, newer)
        try:
            secure(self._path.parent)
            if self._lines >= 2 * MOST:
                self._write_anew()
            else:
                with os.fdopen(
                    os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab"
                ) as file:
                    file.write(msgspec.json.encode(newer) + b"\n")
                self._lines += 1
        except AddressError as error:
            log.warning("what tuners settled on is not kept: %s", error)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error.strerror)

    def _write_anew(self) -> None:
        new = self._path.with_suffix(".new")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.writelines(msgspec.json.encode(result) + b"\n" for result in self.results)
        new.rename(self._path)
        self._lines = len(self.results)
