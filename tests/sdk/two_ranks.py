"""Two real processes that stand for two ranks, without torch: they share a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hoptui.protocol.messages import Command, Origin, Outcome
from hoptui.sdk.rank_schedule import RankSchedule
from hoptui.sdk.run import Run
from tests.run_state import run_state

LIMIT_S = 20.0


class FolderStore:
    """A `RankStore` of two ranks in a folder. `operations` counts those of the training thread."""

    world = 2

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self.operations = 0
        self._folder = folder

    def set(self, key: str, value: bytes) -> None:
        self._count()
        new = self._file(f"{key}.{self.rank}.new")
        new.write_bytes(value)
        new.rename(self._file(key))

    def get(self, key: str) -> bytes | None:
        self._count()
        self._folder.stat()  # it raises if the store has gone
        try:
            return self._file(key).read_bytes()
        except FileNotFoundError:
            return None

    def delete(self, key: str) -> None:
        self._count()
        self._file(key).unlink(missing_ok=True)

    def _count(self) -> None:
        self.operations += threading.current_thread() is threading.main_thread()

    def _file(self, key: str) -> Path:
        return self._folder / key.replace("/", "-")


def meet_always() -> None:
    """Make each boundary a joint one from now on, so that a test knows when a command is carried out."""
    RankSchedule.due = _joint_once_met  # type: ignore[method-assign, assignment]


def _joint_once_met(schedule: RankSchedule, passed: int) -> bool:
    """Wait for the meeting of the ranks, before which they can exchange nothing."""
    until = time.monotonic() + LIMIT_S
    session = schedule._session
    while session is not None and not session.met and time.monotonic() < until:
        time.sleep(0.001)
    return True


def joint(run: Run) -> bool:
    """Pass boundaries up to the next joint one, that included. Return whether the run goes on."""
    schedule = run._core._agreement.schedule
    assert schedule is not None
    before = schedule.finished
    while run.boundary() and schedule.finished == before:
        time.sleep(0.001)
    return not run.stopping


def command(run: Run, verb: Any = "set", **fields: Any) -> list[Outcome]:
    """Give rank 0 a command, as the link thread would. Return what it is told at once."""
    made: dict[str, Any] = {
        "id": f"c{time.monotonic_ns()}",
        "epoch": run_state(run).epoch,
        "origin": Origin(user="kim"),
    }
    told = run_state(run).inbox.receive(
        Command(run=run.id, verb=verb, **(made | fields)), time.monotonic(), run.step + 1
    )
    run_state(run).wake_boundary()
    return told


def outcomes(run: Run) -> list[Outcome]:
    """What became of the commands since the last call."""
    return run_state(run).inbox.collect_outcomes()


def report(**found: Any) -> None:
    """Print what this rank found, for `both`."""
    print(json.dumps(found, default=str), flush=True)


BEGIN = """
import os, sys, time, hoptui
from pathlib import Path
from tests.sdk.two_ranks import FolderStore, command, joint, outcomes, report
rank = int(sys.argv[1])
ranks = FolderStore(Path(sys.argv[2]), rank)
run = hoptui.connect("two", ranks=ranks)
"""


@contextmanager
def pair(
    script: str,
    environment: Mapping[str, str],
    *,
    of_ranks: Sequence[Mapping[str, str]] = ({}, {}),
    begin: str = BEGIN,
) -> Iterator[list[subprocess.Popen[str]]]:
    """`begin` and `script` as rank 0 and rank 1, which are gone afterwards.

    Their arguments are the rank and a folder of both. `of_ranks` is what each has in its environment.
    """
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as folder:
        children = [
            subprocess.Popen(
                [sys.executable, "-c", begin + script, str(rank), folder],
                env={**environment, "PYTHONPATH": path, **of_ranks[rank]},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            yield children
        finally:
            for child in children:
                child.kill()
                child.communicate(timeout=LIMIT_S)


def both(
    script: str, *, of_ranks: Sequence[Mapping[str, str]] = ({}, {}), begin: str = BEGIN
) -> list[dict[str, Any]]:
    """Run a `pair` without a daemon. Return what each reported last, and its `stderr`."""
    found = []
    with pair(script, {**os.environ, "HOPTUI": "off"}, of_ranks=of_ranks, begin=begin) as children:
        for child in children:
            out, err = child.communicate(timeout=2 * LIMIT_S)
            assert child.returncode == 0, err
            found.append({**json.loads(out.splitlines()[-1]), "stderr": err})
    return found
