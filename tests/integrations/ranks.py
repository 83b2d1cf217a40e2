"""Two processes as torchrun starts them, each with a script of its own framework, without a daemon."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psutil

from tests.sdk.two_ranks import pair

LIMIT_S = 500.0
"""Two processes import a framework and train several times, on two cores that are shared with other tests."""


def both(module: str, main: str = "main", limit_s: float = LIMIT_S) -> list[dict[str, Any]]:
    """Run a function of a module as two ranks. Return what each reported last.

    Both are read at once: a rank that cannot write its report keeps the other from ending.
    """
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    environment = {
        **os.environ,
        "HOPTUI": "off",
        "PYTHONFAULTHANDLER": "1",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "test",
    }
    of_ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    script = f"from {module} import {main}; {main}()"
    with pair(script, environment, of_ranks=of_ranks, begin="") as children:
        with ThreadPoolExecutor(len(children)) as threads:
            ended = list(threads.map(lambda child: _outputs(child, limit_s), children))
        for child, (_, errors) in zip(children, ended, strict=True):
            assert child.returncode == 0, errors[-12000:]
        return [json.loads(out.splitlines()[-1]) for out, _ in ended]


def _outputs(child: subprocess.Popen[str], limit_s: float) -> tuple[str, str]:
    """Return what a rank writes until it ends.

    After `limit_s` it is aborted, with its data workers: each writes where its threads are. A worker that
    hangs would keep the pipe open.
    """
    try:
        return child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        rank = psutil.Process(child.pid)
        for process in (*rank.children(recursive=True), rank):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGABRT)
        out, errors = child.communicate()
        return out, f"it did not end within {limit_s:g} s\n{errors}"
