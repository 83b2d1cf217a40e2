"""Daemons with less patience than the one that people have: what takes them seconds takes a test a moment."""

from __future__ import annotations

import os
import subprocess
import sys

from hoptui.node.addresses import Addresses
from tests.conftest import TestNode, until

BRISK = "server:HEARD_S:0.1 server:TICK_S:0.1 server:STILL_TICK_S:0.1 server:LATEST_TICK_S:0.1"
"""Runs are heard and things looked at so often that no test waits for it."""
SHORTEN = """
import importlib, os, sys
for given in os.environ["SHORTEN"].split():
    module, name, seconds = given.split(":")
    daemon = importlib.import_module(f"hoptui.daemon.{module}")
    assert isinstance(getattr(daemon, name), float), f"no such patience: {given}"
    setattr(daemon, name, float(seconds))
"""
"""Some of the daemon's patience as tests can afford it: `module:NAME:seconds`, with spaces between."""
SERVE_ALL = f"""{SHORTEN}
from hoptui.daemon.__main__ import main
sys.exit(main())
"""


def impatient_daemon(node: TestNode, *shorter: str) -> None:
    """Start the node's daemon, brisk; `shorter` is what else it has less patience with, such as `viewers:GONE_S:3`."""
    node.spawn([sys.executable, "-c", SERVE_ALL], SHORTEN=" ".join((BRISK, *shorter)))
    until(node.daemon_pid, what="the daemon")


def daemon_child(where: Addresses, *shorter: str) -> subprocess.Popen[bytes]:
    """Start a brisk daemon as a child of this process, which has to reap it."""
    own = {"HOPTUI_DIR": str(where.directory), "HOPTUI_STATE_DIR": str(where.state)}
    return subprocess.Popen(
        [sys.executable, "-c", SERVE_ALL],
        env={**os.environ, **own, "SHORTEN": " ".join((BRISK, *shorter))},
        stdin=subprocess.DEVNULL,
    )
