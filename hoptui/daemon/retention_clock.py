"""A wall clock that is trusted before recordings are deleted for their age.

A clock that is ahead makes every recording look old: a node with a bad hardware clock before NTP has set it,
or a wrong `date`. So the time used here runs on with the uptime of the node. It follows a jump forward of
the wall clock only after the clock has gone on from there for `CONFIRMED_S`. While the node was off, at most
`OFF_S` is believed at once. A clock that is behind only makes recordings look younger, and is followed.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

import msgspec

from hoptui.node.files import replaced
from hoptui.recording.ingest import this_boot

log = logging.getLogger("hoptui.daemon")

NAME = "clock.json"
CONFIRMED_S = 86400.0
OFF_S = 86400.0
JUMP_S, DRIFT = 60.0, 1e-3
"""A difference from the uptime beyond this many seconds, and this share of the time, is a jump."""
MOST_BYTES = 4096


class ClockState(msgspec.Struct, frozen=True, kw_only=True):
    """The last look. `boot` is its uptime's boot, `wall` and `uptime` are its times, in seconds.

    `since` is the uptime at which the wall clock was found as it is, and `trusted` the time trusted then.
    """

    boot: str
    wall: float
    uptime: float
    since: float
    trusted: float


def advanced(state: ClockState | None, boot: str, wall: float, uptime: float, newest: float) -> ClockState:
    """Return the state of a look at the clock.

    Args:
        state: the look before, None for the first.
        boot: the present boot.
        wall: the wall clock, seconds since 1970.
        uptime: seconds since boot, with suspended time.
        newest: when the newest recording of an earlier daemon was last written; 0 for none.
    """
    if state is None:
        base = newest + OFF_S if newest else wall
    elif state.boot != boot or uptime < state.uptime:
        base = time_of(state) + OFF_S
    else:
        passed = uptime - state.uptime
        if abs(wall - state.wall - passed) <= JUMP_S + DRIFT * passed:
            return msgspec.structs.replace(state, wall=wall, uptime=uptime)
        base = time_of(state) + passed
    return ClockState(boot=boot, wall=wall, uptime=uptime, since=uptime, trusted=min(wall, base))


def time_of(state: ClockState) -> float:
    """Return the trusted time of a look, seconds since 1970. It is never ahead of the wall clock."""
    passed = state.uptime - state.since
    return state.wall if passed >= CONFIRMED_S else min(state.wall, state.trusted + passed)


class RetentionClock:
    """The trusted time, kept in a file of the state directory across daemons and boots."""

    def __init__(self, state: Path) -> None:
        self._path = state / NAME
        self._began = _uptime()
        self._warned = False

    def now(self, wall: float, written: list[float]) -> float:
        """Return the trusted time, seconds since 1970, and store this look.

        `written` are the times at which closed recordings were last written. Those that this daemon has seen
        being written say nothing about the clock.
        """
        uptime = _uptime()
        begun = wall - (uptime - self._began)
        newest = max((at for at in written if at < begun), default=0.0)
        state = advanced(self._read(), this_boot().id, wall, uptime, newest)
        trusted = time_of(state)
        if wall - trusted > 2 * OFF_S and not self._warned:
            self._warned = True
            log.warning(
                "the clock is %.0f days ahead of what is known: no recording is deleted for its age before "
                "the clock has gone on like this for a day",
                (wall - trusted) / 86400,
            )
        self._write(state)
        return trusted

    def _read(self) -> ClockState | None:
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(MOST_BYTES), type=ClockState)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def _write(self, state: ClockState) -> None:
        try:
            with replaced(self._path, 0o600) as file:
                file.write(msgspec.json.encode(state))
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error.strerror)


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
