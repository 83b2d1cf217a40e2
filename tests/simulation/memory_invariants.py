"""What stays bounded, however long a node lives and however slow a viewer is. And cursors only grow."""

from __future__ import annotations

from collections.abc import Iterator

from hoptui.daemon.archive import JOBS
from hoptui.daemon.state.node import EVENTS_KEPT
from hoptui.daemon.state.row_buffers import MAX_ROWS
from hoptui.sdk.command_inbox import REMEMBERED
from hoptui.sdk.send_buffer import RESEND_ROWS
from tests.simulation.invariants import Invariant
from tests.simulation.node import Node
from tests.simulation.trainer import Trainer

OPEN_COMMANDS = 2000
"""Of one run, in its daemon: further ones are refused."""


def of_settled(node: Node) -> list[str]:
    """Check what holds once all faults are over."""
    each: tuple[Invariant, ...] = (runs_bounded, daemon_bounded, viewers_bounded, cursors_grow, nothing_leaks)
    return [f"{check.__name__}: {found}" for check in each for found in check(node)]


def _above(what: str, **sizes: tuple[int, int]) -> Iterator[str]:
    for name, (size, most) in sizes.items():
        if size > most:
            yield f"{what} has {size} {name}, more than {most}"


def runs_bounded(node: Node) -> Iterator[str]:
    """A run keeps rows for 30 s, and the newest outcomes."""
    for trainer in (one for first in node.trainers for one in (first, *first.others)):
        if trainer.process.alive and trainer.run is not None:
            state = trainer.run._core.state
            yield from _above(
                trainer.name,
                outcomes=(len(state.inbox._seen), REMEMBERED),
                commands=(len(state.inbox._commands), REMEMBERED + 1),
                unacknowledged=(len(state.inbox.unacknowledged), REMEMBERED),
            )
            if state.link is None:
                if not _may_be_unknown(trainer):
                    yield f"rank {trainer.was.rank} of {trainer.name} has no link"
                continue
            buffer = state.link._buffer  # type: ignore[attr-defined]
            yield from _above(trainer.name, rows=(buffer._kept, RESEND_ROWS))
            if buffer._kept != sum(map(len, buffer._recent)):
                yield f"{trainer.name} counts {buffer._kept} rows, and has others"


def _may_be_unknown(trainer: Trainer) -> bool:
    """Return whether this rank may never have read which run it belongs to. It has no link then."""
    job, rank = trainer.job, trainer.was.rank
    return job is not None and rank > 0 and (job.failed or rank in job.left)


def daemon_bounded(node: Node) -> Iterator[str]:
    """The daemon keeps the newest rows and events, and what is open."""
    server = node.server
    if server is None or node.daemon is None:
        return
    live = len(node.living)
    processes = sum(rank.process.alive for trainer in node.trainers for rank in (trainer, *trainer.others))
    yield from _above(
        "the daemon",
        rows=(max((ring._rows for ring in server._node.rings), default=0), MAX_ROWS),
        events=(len(server._node.events), EVENTS_KEPT),
        jobs=(len(server._archive._jobs), JOBS),
        commands=(sum(map(len, server._run_desk._unsent.values())), OPEN_COMMANDS * max(1, live)),
        acknowledgements=(sum(map(len, server._run_desk._acks.values())), 0),
        viewers=(len(server._viewer_desk._viewers), sum(viewer.process.alive for viewer in node.viewers) + 1),
        processes=(len(server._processes._watched), processes),
    )


def viewers_bounded(node: Node) -> Iterator[str]:
    """A viewer has nothing to send again once all is answered."""
    for viewer in node.viewers:
        if viewer.process.alive and viewer.client is not None:
            talk = viewer.client._conversation
            yield from _above(
                viewer.name, commands=(len(talk._outbox._sent), 0), queries=(len(talk._asked_at), 64)
            )


def cursors_grow(node: Node) -> Iterator[str]:
    """A viewer never asks again for rows that it has."""
    for viewer in node.viewers:
        yield from viewer.fell


def nothing_leaks(node: Node) -> Iterator[str]:
    """There is one connection for each process that lives."""
    ranks = sum(rank.process.alive for t in node.trainers for rank in (t, *t.others))
    most = ranks + sum(viewer.process.alive for viewer in node.viewers)
    yield from _above("the node", connections=(len(node.fabric.pipes), most))
