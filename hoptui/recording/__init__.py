"""A run's rows, events and commands in one SQLite file: written by the daemon, read by replay, exports and
anyone.

It never listens, waits or starts a thread, and knows nothing of sockets; what it cannot do it says in one
`RecordingError`, and the caller decides what becomes of the run's history.
"""

from hoptui.recording.database import RecordingError
from hoptui.recording.recording import Recording

__all__ = ["Recording", "RecordingError"]
