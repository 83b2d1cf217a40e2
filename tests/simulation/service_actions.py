"""What people ask of the tuner, of targets and of knobs that need a new process, and what samplers suffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoptui.client.client import Client
from hoptui.client.conversation import TuneOp
from hoptui.client.session import RefusedError, Session, Unreachable
from hoptui.domain.targets import Target
from hoptui.domain.tuning import Limits
from tests.simulation.samplers import LEAST_USED, MOST_USED
from tests.simulation.tuned import BATCH, WIDTH, Chosen, Request, Wish

if TYPE_CHECKING:
    from tests.simulation.node import Node, Viewer
    from tests.simulation.trainer import Trainer

PRIMES = (5, 11, 23, 47, 97, 193, 389)
"""Values that people choose, and a tuner never does: it doubles and halves."""
SLOW_S = 60.0


def choose(node: Node, trainer: Trainer, viewer: Viewer, knob: str, value: int) -> None:
    """Let a person set one of these knobs."""
    run = trainer.id

    def give(client: Client) -> None:
        if client.store.run(run) is not None:
            given = client.send("set", run, knob=knob, value=value)
            node.services.chosen.append(Chosen(given, run, knob, value, node.kernel.seconds))

    viewer.use(give)


def set_batch(node: Node, trainer: Trainer, viewer: Viewer, number: float) -> None:
    choose(node, trainer, viewer, BATCH, PRIMES[int(number * len(PRIMES))])


def set_width(node: Node, trainer: Trainer, viewer: Viewer, number: float) -> None:
    node.disturb(20.0 + 3 * trainer.was.iteration_s)
    choose(node, trainer, viewer, WIDTH, 1000 + node.next_value())
    if int(number * 1000) % 4 == 3:
        _restart_again(node, trainer, viewer, number)


def _restart_again(node: Node, trainer: Trainer, viewer: Viewer, number: float) -> None:
    """The new process is asked for another width, and gives way too. Its daemon is killed then, which has
    written nothing since the new process began.
    """
    disk = node.system.disk

    def begun() -> None:
        if not node.settling:
            node.fail_disk(SLOW_S)
            node.disturb(SLOW_S + 20.0)
            disk.slow_s = SLOW_S
            node.kernel.after(SLOW_S, over)
            node.kernel.after(2.0 + number, again)

    def again() -> None:
        if not node.settling:
            node.services.at_next_process = kill
            choose(node, trainer, viewer, WIDTH, 1000 + node.next_value())

    def kill() -> None:
        over()
        if node.daemon is not None and not node.settling:
            node.daemon.kill()

    def over() -> None:
        disk.slow_s = 0.0

    node.services.at_next_process = begun


def ask_tuner(op: TuneOp, node: Node, trainer: Trainer, viewer: Viewer) -> None:
    """Let a person start or stop the tuner, or give the knob back to it."""
    run = trainer.id

    def ask(client: Client) -> None:
        node.services.requests.append(Request(run, op, node.kernel.seconds))
        client.tune(run, op, knob=BATCH if op == "release" else "", limits=Limits(budget=1.0))

    viewer.use(ask)


def target(node: Node, trainer: Trainer, number: float) -> None:
    """`hoptui target`: a command that ends with the answer."""
    wanted = Target(
        reading="memory_used_bytes",
        value=float(int(LEAST_USED + (MOST_USED - LEAST_USED) * number) // 1000 * 1000 + node.next_value()),
        side="least" if number < 0.5 else "most",
    )
    run = trainer.id

    def command() -> None:
        try:
            with Session() as session:
                wish = Wish(run, wanted, node.kernel.seconds)
                node.services.wishes.append(wish)
                if session.set_targets(run, (wanted,)).granted:
                    wish.granted_s = node.kernel.seconds
        except (Unreachable, RefusedError):
            pass

    node.kernel.spawn("hoptui target", command, node.environ())


def target_and_kill(node: Node, trainer: Trainer, number: float) -> None:
    """The daemon dies a moment after it has granted a target."""
    target(node, trainer, number)

    def kill() -> None:
        daemon = node.daemon
        if daemon is not None and not node.settling:
            daemon.kill()

    node.disturb(30.0)
    node.kernel.after(1.2 + number, kill)


def kill_in_trial(node: Node, number: float) -> None:
    """The daemon dies a moment after the script has got the next value that the tuner tries.

    In every second case the disk has been slow for up to a minute.
    """
    disk = node.system.disk
    if int(number * 1000) % 2:
        disk.slow_s = 0.1 + 2 * number
        node.fail_disk(SLOW_S)
        node.kernel.after(SLOW_S, lambda: setattr(disk, "slow_s", 0.0))

    def kill() -> None:
        daemon, disk.slow_s = node.daemon, 0.0
        if daemon is not None and not node.settling:
            node.disturb(60.0)
            daemon.dies_at = daemon.operations + 1 + int(8 * number)

    node.services.at_next_trial = kill


def kill_sampler(node: Node, number: float) -> None:
    living = [sampler for sampler in node.samplers if sampler.process.alive]
    if living:
        living[int(number * len(living))].process.kill()


def stop_sampler(node: Node, number: float) -> None:
    """A sampler hangs. The daemon kills it after two seconds, or it goes on before that."""
    living = [sampler for sampler in node.samplers if sampler.process.alive]
    if living:
        process = living[int(number * 7 * len(living)) % len(living)].process
        process.stop()
        node.kernel.after(0.2 + 5 * number, process.resume)


def late_samplers(node: Node, number: float) -> None:
    """What samplers send arrives late."""
    node.samplers_late_until_ns = node.kernel.now_ns + int(1.9e9 * number)
