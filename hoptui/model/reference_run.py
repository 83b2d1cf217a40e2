"""A recording beside the run on screen, to compare with: all of it is known, and of a run that goes on more
and more."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hoptui.model.recorded.store import RecordedStore
from hoptui.node.addresses import AddressError, addresses
from hoptui.presentation import numbers, vocabulary
from hoptui.protocol.messages import RunState
from hoptui.recording import Recording, RecordingError, library

AGAIN_S = 5.0  # a recording that is being written is read anew so often


class CannotCompare(ValueError):  # noqa: N818 - says what is the case
    """A file is no recording, cannot be read, or has nothing in it; the text is one sentence."""


class Companion:
    """The recording at `path`; `now` is seconds of any monotonic clock. Used by one thread.

    Raises:
        CannotCompare: there is nothing to compare with in it.
    """

    def __init__(self, path: Path, now: float) -> None:
        self.path = path
        self.store, self._recording = _opened(path)
        self._opened_at = now

    @property
    def run(self) -> RunState:
        """The run as it was known last."""
        return self.store.chronicle.state

    def renew(self, now: float) -> bool:
        """Read on where the run goes on; says whether `store` is another one now."""
        if self.run.exit_reason or now - self._opened_at < AGAIN_S:
            return False
        self._opened_at = now
        try:
            fresh, recording = _opened(self.path)
        except CannotCompare:  # what is known stays known
            return False
        self.close()
        self.store, self._recording = fresh, recording
        return True

    def close(self) -> None:
        """Close the recording."""
        self._recording.close()


class Recorded(NamedTuple):
    """A recording that can be compared with."""

    path: Path
    name: str
    about: str


def comparable(but: str, beside: Path | None = None) -> list[Recorded]:
    """The recordings of this user, and those that lie `beside` a file, the last written first; not that of
    the run `but`.

    Those that cannot be read are left out. Reads a few pages of each file.
    """
    found: dict[Path, Recorded] = {}
    for directory in _directories(beside):
        try:
            entries = library.entries(directory)
        except RecordingError:
            continue
        for entry in entries:
            if entry.state is not None and entry.run != but and entry.first_wall:
                found.setdefault(
                    entry.path.resolve(),
                    Recorded(entry.path, numbers.clean(entry.state.name, 40), _about(entry)),
                )
    return list(found.values())


def _directories(beside: Path | None) -> list[Path]:
    found = [beside.resolve().parent] if beside is not None else []
    with suppress(AddressError):
        found.append(addresses().state)
    return found


def _about(entry: library.RecordingEntry) -> str:
    """`2026-05-04 12:45:01 · 2 h 14 m · finished`."""
    state = entry.state
    ended = (
        vocabulary.STATES["live"].text
        if state is None or not state.exit_reason
        else numbers.clean(state.exit_reason, 20)
    )
    return " · ".join(
        (numbers.day_clock(entry.first_wall), numbers.duration(entry.last_wall - entry.first_wall), ended)
    )


def _opened(path: Path) -> tuple[RecordedStore, Recording]:
    try:
        recording = Recording.open(path)
        try:
            store = RecordedStore(recording)
        except BaseException:
            recording.close()
            raise
    except RecordingError as error:
        raise CannotCompare(str(error)) from None
    store.seek(store.span[1])
    return store, recording
