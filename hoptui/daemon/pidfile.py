"""daemon.json: which process the daemon is, and what another is to take over should it be killed.

It is removed when a daemon ends in good order: one that is found was left behind.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from hoptui.protocol.messages import PROTOCOL
from hoptui.protocol.version import VERSION
from hoptui.recording.clock_offsets import this_boot


def write(path: Path, metrics: str) -> None:
    """Say who the daemon is and where it was asked to serve metrics ("": nowhere); all at once, as others may
    read it."""
    told = {
        "pid": os.getpid(),
        "version": VERSION,
        "protocol": PROTOCOL,
        "started": time.time(),
        "boot": this_boot().id,
        "metrics": metrics,
    }
    new = path.with_suffix(".tmp")
    with new.open("w") as file:
        json.dump(told, file)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)


def metrics_left_behind(path: Path) -> str:
    """Where a daemon that was killed served metrics, since the machine was started; "" if nowhere, or if none
    was killed."""
    try:
        told = json.loads(path.read_text())
        return str(told["metrics"]) if told["boot"] == this_boot().id else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""
