"""Daemons with less patience than the one that people have: what takes them seconds takes a test a moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from hoptui.domain.pacing import Timings
from hoptui.node.addresses import Addresses
from tests.conftest import TestNode, until

BRISK = {"heard_s": 0.1, "tick_s": 0.1, "still_tick_s": 0.1, "latest_tick_s": 0.1}
"""Runs are heard and things looked at so often that no test waits for it."""
PROGRAM = Path(__file__).with_name("brisk_daemon.py")


def brisk_command(**shorter: float) -> list[str]:
    """What starts a brisk daemon; `shorter` are other fields of `Timings`."""
    timings = asdict(Timings(**(BRISK | shorter)))
    return [sys.executable, str(PROGRAM), json.dumps(timings)]


def impatient_daemon(node: TestNode, **shorter: float) -> None:
    """Start the node's daemon, brisk; `shorter` is what else it waits less for, such as `gone_s=3`."""
    node.spawn(brisk_command(**shorter))
    until(node.daemon_pid, what="the daemon")


def daemon_child(where: Addresses, **shorter: float) -> subprocess.Popen[bytes]:
    """Start a brisk daemon as a child of this process, which has to reap it."""
    own = {"HOPTUI_DIR": str(where.directory), "HOPTUI_STATE_DIR": str(where.state)}
    return subprocess.Popen(brisk_command(**shorter), env={**os.environ, **own}, stdin=subprocess.DEVNULL)
