"""What happens in few seeds: foreign recordings, a lock that is deleted, values that are no numbers, a clock
that is months ahead, a daemon that answers slowly.
"""

from __future__ import annotations

import shutil
import sqlite3
from functools import cache
from pathlib import Path

from tests.simulation.kernel import Process
from tests.simulation.node import Node
from tests.simulation.trainer import Trainer

EXAMPLE = Path(__file__).parents[1] / "recordings" / "ppo-cpu-tuned.hoptui"
AHEAD_S = 60 * 86400.0
"""A clock that is ahead by more than recordings are kept."""
HOURS_S = 2 * 3600.0
"""Then it is set right. One that is ahead for a day is believed."""


@cache
def malformed_recording() -> bytes:
    """Return a sound recording but for a cell of the wrong type."""
    sound = sqlite3.connect(":memory:")
    sound.deserialize(EXAMPLE.read_bytes())
    sound.execute("UPDATE meta SET value = 5 WHERE key = 'run'")
    sound.commit()
    found = sound.serialize()
    sound.close()
    return found


def foreign_recording(node: Node, number: float) -> None:
    """Somebody copies a malformed recording, or a link to nowhere, beside the others. A daemon finds it."""
    node.where.state.mkdir(mode=0o700, exist_ok=True)
    foreign = node.where.state / f"foreign{int(number * 1e6)}.hoptui"
    if number < 0.3 and not foreign.exists():
        foreign.symlink_to("/nowhere")
    else:
        foreign.write_bytes(malformed_recording())
    node.kill_daemon()


def delete_lock(node: Node, number: float) -> None:
    """A job that cleans up deletes the lock file, or its directory. A second daemon is started meanwhile.

    If the first one is suspended, it keeps its recordings locked, and the second can write none of them.
    """
    node.disturb(60.0)
    node.fail_disk(60.0)
    node.truth.lock_deleted_s.append(node.kernel.seconds)
    if number < 0.3:
        shutil.rmtree(node.where.directory, ignore_errors=True)
    else:
        node.where.lock.unlink(missing_ok=True)
    node.kernel.after(2.5 * number, lambda: None if node.settling else node.start_daemon())


def odd_knob(node: Node, number: float) -> None:
    """A run of one process gets a knob that reads back no number, as a learning rate that has diverged."""
    for trainer in node.living:
        if not trainer.others:
            trainer.odd = float("nan") if number < 0.5 else float("inf")


def clock_ahead(node: Node, trainer: Trainer, number: float) -> None:
    """A run ends for good. Later, a daemon starts while the wall clock is months ahead, for some hours."""
    trainer.ends = True

    def jump() -> None:
        node.jump(AHEAD_S)
        node.kernel.after(HOURS_S, lambda: node.jump(-AHEAD_S))
        node.kill_daemon()

    node.disturb(60.0)
    node.kernel.after(10.0 + 20 * number, lambda: None if node.settling else jump())


def slow_answers(node: Node, number: float) -> None:
    """The next daemon hangs as it begins, and runs say hello again and again. Then it answers one by one."""
    seconds = 33.0 + 10 * number
    node.disturb(seconds + 60.0)
    for trainer in node.trainers:
        trainer.was.suspended_s += seconds + 1

    def hang(daemon: Process) -> None:
        node.kernel.after(1e-6, daemon.stop)
        node.kernel.after(seconds, lambda: go_on(daemon))

    def go_on(daemon: Process) -> None:
        if not node.settling:
            node.fabric.slow_until_ns = node.kernel.now_ns + int(20e9)
        if daemon.stopped:
            daemon.resume()

    node.at_next_daemon = hang
    node.kill_daemon()
