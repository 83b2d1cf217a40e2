"""What can happen to a run on several nodes: the actions of people on any node, and faults."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from tests.simulation.actions import Step
from tests.simulation.actions import perform as perform_on
from tests.simulation.job_nodes import JobNodes, Layout
from tests.simulation.job_store import StoreFault
from tests.simulation.node import Node
from tests.simulation.trainer import Trainer

MOST_RANKS = 3
"""Of one node."""
FOR_EVER = 0.93
"""A fault of the store with a greater number does not end."""


def perform(nodes: JobNodes, step: Step) -> None:
    """Carry out one step. Every step is possible at any time; some then do nothing."""
    ACTIONS[step.what](nodes, step.number)


def layout_of(number: float, count: int) -> Layout:
    """Return a rendezvous of at least two of the nodes, or rarely of one."""
    rng = random.Random(f"layout {number}")
    taking = rng.sample(range(count), 1 if rng.random() < 0.1 else rng.randint(2, count))
    if rng.random() < 0.7:  # the head stays
        taking.sort()
    found = [(index, rng.choice((1, 1, 2, MOST_RANKS))) for index in taking]
    if len(found) == 1 and found[0][1] == 1:
        found[0] = found[0][0], 2
    return tuple(found)


def _node(nodes: JobNodes, number: float) -> Node:
    return nodes.nodes[int(number * 1e5) % len(nodes.nodes)]


def _on_node(what: str) -> Callable[[JobNodes, float], None]:
    """Do what a single node knows on one of the nodes."""
    return lambda nodes, number: perform_on(_node(nodes, number), Step(0.0, what, number))


def _rank(nodes: JobNodes, number: float) -> Trainer | None:
    living = nodes.attempt.living
    return living[int(number * 7e5) % len(living)] if living else None


def _suspend(nodes: JobNodes, number: float) -> None:
    """A rank is suspended. The others wait for it as they train."""
    trainer, seconds = _rank(nodes, number), 0.2 + 20 * number**3
    if trainer is None or trainer.process.stopped:
        return
    nodes.first.disturb(seconds + 20.0)
    for each in nodes.attempt.trainers:
        each.was.suspended_s += seconds + 1
    nodes.suspended.append((nodes.kernel.seconds, nodes.kernel.seconds + seconds))
    trainer.process.stop()
    nodes.kernel.after(seconds, trainer.process.resume)


def _stop_daemon(nodes: JobNodes, number: float) -> None:
    """A daemon is suspended."""
    daemon, seconds = _node(nodes, number).daemon, 0.2 + 30 * number**3
    if daemon is None or daemon.stopped:
        return
    nodes.first.disturb(seconds + 20.0)
    nodes.suspended.append((nodes.kernel.seconds, nodes.kernel.seconds + seconds))
    daemon.stop()
    nodes.kernel.after(seconds, daemon.resume)


def _leave(choose: Callable[[JobNodes, float], Trainer | None]) -> Callable[[JobNodes, float], None]:
    """Let a rank close its run, and train on. There are no joint boundaries any more."""

    def leave(nodes: JobNodes, number: float) -> None:
        trainer = choose(nodes, number)
        if trainer is not None and not nodes.settling:
            nodes.first.disturb(10.0 + 2 * nodes.iteration_s)
            nodes.attempt.left = trainer.leaves = True

    return leave


def _lead(nodes: JobNodes, number: float) -> Trainer | None:
    leads = [lead for lead in nodes.attempt.leads.values() if lead.process.alive]
    return leads[int(number * 7e5) % len(leads)] if leads else None


def _store(kind: str) -> Callable[[JobNodes, float], None]:
    """Let the store have a fault for a while or for ever, for all nodes or for one."""

    def fault(nodes: JobNodes, number: float) -> None:
        rng = random.Random(f"fault {number}")
        seconds = 0.2 + 45 * number**2
        for_ever = number > FOR_EVER and kind != "slow"
        one = frozenset({rng.choice(nodes.nodes).host}) if rng.random() < 0.4 else None
        records = rng.random() < 0.7 or (for_ever and kind == "hangs")  # else a call of training waits for it
        until = math.inf if for_ever else nodes.kernel.now_ns + seconds * 1e9
        nodes.fault(StoreFault(kind, until, one, records, 0.02 + 3.0 * rng.random()))  # type: ignore[arg-type]
        nodes.first.disturb((1e6 if for_ever else seconds) + 90.0)
        for each in nodes.attempt.trainers:
            each.was.suspended_s += seconds

    return fault


def _restart(nodes: JobNodes, number: float) -> None:
    """An elastic restart: other nodes, other ranks."""
    rng = random.Random(f"restart {number}")
    layout = layout_of(number, len(nodes.nodes))
    nodes.restart(layout, 0.5 + 5 * number, lingers=rng.random() < 0.2)


def _kill_rank(nodes: JobNodes, number: float) -> None:
    """A rank dies, and the others with it. The next rendezvous has the same nodes."""
    trainer = _rank(nodes, number)
    if trainer is not None:
        nodes.first.disturb(20.0)
        trainer.process.kill()
        nodes.begin(nodes.attempt.layout, 1.0 + 5 * number)


def _kill_node(nodes: JobNodes, number: float) -> None:
    """All processes of a node die. The next rendezvous has other nodes, or the same ones."""
    node = _node(nodes, number)
    nodes.first.disturb(30.0)
    nodes.killed_s[node.host].append(nodes.kernel.seconds)
    ranks = [trainer for trainer in nodes.attempt.living if trainer.node is node]
    for process in [*(t.process for t in ranks), *(v.process for v in node.viewers), *node.daemons]:
        if process.alive:
            process.kill()
    node.view(f"viewer{len(node.viewers)}")
    if ranks:
        layout = nodes.attempt.layout if number < 0.5 else layout_of(number, len(nodes.nodes))
        nodes.begin(layout, 1.0 + 5 * number)


def _stop(nodes: JobNodes, number: float) -> None:
    """Somebody stops the run. It is continued later."""
    perform_on(_node(nodes, number), Step(0.0, "ask stop", number))
    nodes.begin(nodes.attempt.layout, 5.0 + 5 * number)


ACTIONS: dict[str, Callable[[JobNodes, float], None]] = {
    **{
        what: _on_node(what)
        for what in ("set", "burst", "hurried", "pause", "resume", "watch", "viewer", "refuse", "nothing")
    },
    **{what: _on_node(what) for what in ("checkpoint", "profile", "kill daemon", "kill daemon at")},
    **{what: _on_node(what) for what in ("cut", "stall", "narrow", "hurry")},
    "stop daemon": _stop_daemon,
    "suspend rank": _suspend,
    "leave rank": _leave(_rank),
    "leave lead": _leave(_lead),
    "slow store": _store("slow"),
    "full store": _store("full"),
    "lost store": _store("lost"),
    "hanging store": _store("hangs"),
    "restart": _restart,
    "kill rank": _kill_rank,
    "kill node": _kill_node,
}
ALWAYS = ("set", "set", "set", "watch", "nothing")
OPTIONAL = tuple(name for name in ACTIONS if name not in ALWAYS)
