"""Two processes as torchrun starts them, each with a script of its own framework, without a daemon."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from tests.sdk.two_ranks import pair

LIMIT_S = 500.0
"""Two processes import a framework and train several times, on two cores that are shared with other tests."""


def both(module: str, main: str = "main") -> list[dict[str, Any]]:
    """Run a function of a module as two ranks. Return what each reported last."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    environment = {
        **os.environ,
        "HOPTUI": "off",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "test",
    }
    of_ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    found_by_rank = []
    script = f"from {module} import {main}; {main}()"
    with pair(script, environment, of_ranks=of_ranks, begin="") as children:
        for child in children:
            out, err = child.communicate(timeout=LIMIT_S)
            assert child.returncode == 0, err[-4000:]
            found_by_rank.append(json.loads(out.splitlines()[-1]))
    return found_by_rank
