"""What is installed: Python, libzmq, and the extras."""

from __future__ import annotations

import platform
import sys
from importlib.util import find_spec

from hoptui import __version__
from hoptui.cli.checks.check import Check

LEAST_ZMQ = (4, 3, 5)


def python() -> Check:
    """The interpreter; an older one cannot even import this."""
    detail = f"Python {platform.python_version()} at {sys.executable}, hoptui {__version__}"
    return Check("python", "ok", detail)


def zmq() -> Check:
    """libzmq has to have ipc, and `Peer-Address` with the peer's credentials."""
    import zmq

    version = f"libzmq {zmq.zmq_version()}, pyzmq {zmq.pyzmq_version()}"
    if not zmq.has("ipc"):
        return Check("zmq", "failed", f"{version} has no ipc", "install pyzmq from its wheel")
    if zmq.zmq_version_info() < LEAST_ZMQ:
        return Check("zmq", "failed", f"{version}; 4.3.5 is the least", "pip install --upgrade pyzmq")
    return Check("zmq", "ok", f"{version}, with ipc")


def parquet() -> Check:
    """Whether `hoptui export --format parquet` can write."""
    if find_spec("pyarrow") is None:
        return Check(
            "parquet", "ok", "pyarrow is not installed: no export to Parquet", "pip install 'hoptui[parquet]'"
        )
    return Check("parquet", "ok", "pyarrow is installed")
