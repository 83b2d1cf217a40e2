"""What happens to the ranks of a run, and to the store that they share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.node import Node
    from tests.simulation.trainer import Trainer

HURRY = 50.0
"""How much faster iterations are in a burst."""


def _one(trainer: Trainer, number: float) -> Trainer:
    ranks = (trainer, *trainer.others)
    return ranks[int(number * 7e5) % len(ranks)]


def _other(trainer: Trainer, number: float) -> Trainer | None:
    return trainer.others[int(number * 7e5) % len(trainer.others)] if trainer.others else None


def signal(node: Node, trainer: Trainer, number: float) -> None:
    """The script asks for a stop, on one rank."""
    rank = _one(trainer, number)
    run = rank.run
    if run is not None and rank.process.alive:
        node.kernel.start(rank.process, "signal", lambda: run.stop("SIGTERM"))


def hurry(node: Node, trainer: Trainer, number: float, before_end: Callable[[], object]) -> None:
    """Some iterations are much shorter than the others. It is no fault: commands are as quick as ever.

    `before_end` is called in the last moments of it.
    """
    for rank in (trainer, *trainer.others):
        rank.iteration_s = rank.was.iteration_s / HURRY

    def over() -> None:
        for rank in (trainer, *trainer.others):
            rank.iteration_s = rank.was.iteration_s

    node.kernel.after(1.9 * number, before_end)
    node.kernel.after(0.1 + 2.0 * number, over)


def suspend(node: Node, trainer: Trainer, number: float) -> None:
    """One of the ranks that does not speak for the run is suspended. The others wait for it as they train."""
    rank, seconds = _other(trainer, number), 0.2 + 20 * number**3
    if rank is None or rank.process.stopped:
        return
    node.disturb(seconds + 20)
    trainer.was.suspended_s += seconds + 1
    rank.process.stop()
    node.kernel.after(seconds, rank.process.resume)


def leave(node: Node, trainer: Trainer, number: float) -> None:
    """A rank closes its run, and trains on. There are no joint boundaries any more."""
    rank = _other(trainer, number)
    if rank is not None:
        node.disturb(10.0 + 2 * trainer.was.iteration_s)
        rank.leaves = True


def slow_store(node: Node, trainer: Trainer, number: float) -> None:
    """Each operation of the store takes a while."""
    job, seconds = trainer.job, 1 + 10 * number
    if job is not None:
        node.disturb(seconds + 20)
        trainer.was.suspended_s += seconds
        job.slow_until_ns, job.slow_s = node.kernel.now_ns + int(seconds * 1e9), 0.01 + 0.3 * number


def broken_store(node: Node, trainer: Trainer, number: float) -> None:
    """The store raises for a while. Ranks that hear it go on alone, and refuse commands."""
    job, seconds = trainer.job, 0.01 + 3 * number
    if job is not None:
        node.disturb(seconds + 90)
        job.failing_until_ns = node.kernel.now_ns + int(seconds * 1e9)
