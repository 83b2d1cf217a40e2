"""Stores a run's rows, events and commands in one SQLite file.

The daemon writes the file. Replay, exports and other programs read it.

The package never listens on a socket, waits or starts a thread. Each failure is a `RecordingError`; the
caller decides what to do about the history.
"""

from hoptui.recording.database import RecordingError
from hoptui.recording.recording import Recording

__all__ = ["Recording", "RecordingError"]
