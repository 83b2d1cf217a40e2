"""The faults of processes, sockets and files. A seed decides when which of them happens."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.chaos import kernel
from tests.chaos.node import Actor, ChaosNode, send

LONGEST_STOP_S = 6.0
EVERY_S = (0.5, 4.0)
"""Pauses between two faults."""
Fault = Callable[[ChaosNode, float], None]


@dataclass(frozen=True)
class Step:
    """A fault, `after_s` the end of the one before. `amount` (0 to 1) chooses its victim and length."""

    after_s: float
    fault: str
    amount: float


def plan(seed: int, without: frozenset[str]) -> Iterator[Step]:
    """Yield the faults of a seed, without end, but for those that the machine does not allow.

    A step does not depend on those that are left out.
    """
    chosen = random.Random(seed)
    while True:
        step = Step(chosen.uniform(*EVERY_S), chosen.choice(list(FAULTS)), chosen.random())
        if step.fault not in without:
            yield step


def carry_out(node: ChaosNode, step: Step) -> None:
    """Let a fault happen, and end it."""
    with node.disturbance(step.fault):
        FAULTS[step.fault](node, step.amount)


def _victim(node: ChaosNode, kind: str, amount: float) -> Actor | None:
    found = node.of(kind)
    return found[int(amount * len(found))] if found else None


def kill_daemon(node: ChaosNode, amount: float) -> None:
    if daemon := node.daemon:
        send(daemon, signal.SIGKILL)


def stop_daemon(node: ChaosNode, amount: float) -> None:
    if daemon := node.daemon:
        send(daemon, signal.SIGSTOP)
        time.sleep(LONGEST_STOP_S * amount)
        send(daemon, signal.SIGCONT)


def kill_sampler(node: ChaosNode, amount: float) -> None:
    for sampler in node.samplers()[int(2 * amount) :][:1]:
        send(sampler, signal.SIGKILL)


def stop_sampler(node: ChaosNode, amount: float) -> None:
    for sampler in node.samplers()[int(2 * amount) :][:1]:
        send(sampler, signal.SIGSTOP)
        time.sleep(LONGEST_STOP_S * amount)
        send(sampler, signal.SIGCONT)


def kill_viewer(node: ChaosNode, amount: float) -> None:
    if (viewer := _victim(node, "viewer", amount)) is not None:
        node.kill(viewer)
        node.start_viewer(starts_daemon=amount > 0.5)


def stop_viewer(node: ChaosNode, amount: float) -> None:
    _stop(node, "viewer", amount)


def kill_run(node: ChaosNode, amount: float) -> None:
    if (run := _victim(node, "run", amount)) is not None:
        node.kill(run)
        node.start_run(after=run if amount > 0.5 else None)


def end_run(node: ChaosNode, amount: float) -> None:
    if (run := _victim(node, "run", amount)) is not None:
        run.child.terminate()
        run.child.wait(30)
        node.start_run(after=run if amount > 0.5 else None)


def stop_run(node: ChaosNode, amount: float) -> None:
    _stop(node, "run", amount)


def kill_trainer(node: ChaosNode, amount: float) -> None:
    if (trainer := _victim(node, "trainer", amount)) is not None:
        node.kill(trainer)
        node.start_trainer(10**6)


def stop_trainer(node: ChaosNode, amount: float) -> None:
    _stop(node, "trainer", amount)


def kill_rank(node: ChaosNode, amount: float) -> None:
    """Kill one of two ranks. The other one goes on alone. Then the next processes of both replace them."""
    ranks = node.of("rank")
    if len(ranks) == 2:
        first = ranks[int(2 * amount)]
        node.kill(first)
        time.sleep(amount)
        node.kill(ranks[1 - int(2 * amount)])
        node.start_ranks(after=ranks[0])


def stop_rank(node: ChaosNode, amount: float) -> None:
    _stop(node, "rank", amount)


def _stop(node: ChaosNode, kind: str, amount: float) -> None:
    if (actor := _victim(node, kind, amount)) is not None:
        with node.stop(actor):
            time.sleep(LONGEST_STOP_S * amount)


def cut_link(node: ChaosNode, amount: float) -> None:
    if (run := _victim(node, "run", amount)) is not None:
        kernel.cut(run.child.pid, node.where.runs)


def cut_viewer(node: ChaosNode, amount: float) -> None:
    if (viewer := _victim(node, "viewer", amount)) is not None:
        kernel.cut(viewer.child.pid, node.where.viewers)


def freeze_link(node: ChaosNode, amount: float) -> None:
    """Suspend the link thread of a run alone."""
    run = _victim(node, "run", amount)
    identity = run.ledger.identity if run is not None else None
    if run is not None and identity and run.alive:
        with kernel.suspended(identity["link"]) as held:
            time.sleep(LONGEST_STOP_S * amount if held else 0.0)


def remove_sockets(node: ChaosNode, amount: float) -> None:
    for path in (node.where.runs, node.where.viewers):
        path.unlink(missing_ok=True)


def remove_lock(node: ChaosNode, amount: float) -> None:
    node.where.lock.unlink(missing_ok=True)


def remove_directory(node: ChaosNode, amount: float) -> None:
    shutil.rmtree(node.where.directory, ignore_errors=True)


def remove_info(node: ChaosNode, amount: float) -> None:
    for path in (node.where.info, node.where.log):
        path.unlink(missing_ok=True)


FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        kill_daemon,
        stop_daemon,
        kill_sampler,
        stop_sampler,
        kill_viewer,
        stop_viewer,
        kill_run,
        end_run,
        stop_run,
        kill_trainer,
        stop_trainer,
        kill_rank,
        stop_rank,
        cut_link,
        cut_viewer,
        freeze_link,
        remove_sockets,
        remove_lock,
        remove_directory,
        remove_info,
    )
}
"""By name."""
RIGHTS = {"cut_link": "cut", "cut_viewer": "cut", "freeze_link": "frozen link"}
"""The faults that need a right of `kernel.denied`."""
