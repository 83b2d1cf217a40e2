"""Two real processes that stand for two ranks, without torch: they talk over a socket pair."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hoptui.protocol.messages import Command, Origin, Outcome
from hoptui.sdk.run import Run
from tests.run_state import run_state

LIMIT_S = 20.0


class SocketRanks:
    """The operations of `hoptui.sdk.ranks.Ranks` for two; a peer that is gone makes them raise."""

    def __init__(self) -> None:
        self.rank = int(sys.argv[1])
        self.world = 2
        self.operations = 0
        self._peer = socket.socket(fileno=int(sys.argv[2]))
        self._peer.settimeout(LIMIT_S)
        self._stream = self._peer.makefile("rwb")

    def all(self, ok: bool) -> bool:
        return all(self.gather(ok))

    def share(self, payload: bytes | None) -> bytes:
        first: bytes = self.gather(payload)[0]
        return first

    def gather(self, value: object) -> list[Any]:
        self.operations += 1
        pickle.dump(value, self._stream)
        self._stream.flush()
        other = pickle.load(self._stream)
        return [value, other] if self.rank == 0 else [other, value]


def command(run: Run, verb: Any = "set", **fields: Any) -> None:
    """Give rank 0 a command, as the link thread would."""
    made: dict[str, Any] = {
        "id": f"c{time.monotonic_ns()}",
        "epoch": run_state(run).epoch,
        "origin": Origin(user="kim"),
    }
    run_state(run).inbox.receive(
        Command(run=run.id, verb=verb, **(made | fields)), time.monotonic(), run.step + 1
    )
    run_state(run).wake_boundary()


def outcomes(run: Run) -> list[Outcome]:
    """What became of the commands since the last call."""
    return run_state(run).inbox.collect_outcomes()


def report(**found: Any) -> None:
    """Print what this rank found, for `both`."""
    print(json.dumps(found, default=str), flush=True)


BEGIN = """
import os, sys, time, hoptui
from tests.sdk.two_ranks import SocketRanks, command, outcomes, report
ranks = SocketRanks()
rank = ranks.rank
run = hoptui.connect("two", ranks=ranks)
"""


@contextmanager
def pair(
    script: str, environment: Mapping[str, str], *, of_rank_0: Mapping[str, str] | None = None
) -> Iterator[list[subprocess.Popen[str]]]:
    """`script` as rank 0 and rank 1, which are gone afterwards."""
    ends = socket.socketpair()
    root = str(Path(__file__).resolve().parents[2])
    children = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN + script, str(rank), str(end.fileno())],
            env={**environment, "PYTHONPATH": root, **((of_rank_0 or {}) if rank == 0 else {})},
            pass_fds=(end.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, end in enumerate(ends)
    ]
    for end in ends:
        end.close()
    try:
        yield children
    finally:
        for child in children:
            child.kill()
            child.communicate(timeout=LIMIT_S)


def both(script: str) -> list[dict[str, Any]]:
    """Run `script` as ranks 0 and 1 without a daemon. Return what each reported last, and its `stderr`."""
    found = []
    with pair(script, {**os.environ, "HOPTUI": "off"}) as children:
        for child in children:
            out, err = child.communicate(timeout=2 * LIMIT_S)
            assert child.returncode == 0, err
            found.append({**json.loads(out.splitlines()[-1]), "stderr": err})
    return found
