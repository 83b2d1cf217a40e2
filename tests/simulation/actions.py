"""What can happen on a simulated node: the actions of people, and faults. A plan is a list of steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hoptui.client.conversation import TuneOp
from hoptui.daemon.state.command_log import REPEATED_S
from tests.simulation import rank_actions as ranks
from tests.simulation import rare_actions as rare
from tests.simulation import service_actions as services
from tests.simulation.node import Node, Viewer
from tests.simulation.trainer import Trainer

WALL_JUMPS_S = (-86400.0, -30.0, -1.0, 1.0, 30.0, 86400.0 * 2)
NIGHT = "night"
OF_A_NIGHT = (
    "kill daemon",
    "kill run",
    "stop run",
    "disk full",
    "disk slow",
    "wall clock",
    "sweep",
    "finish",
    "cut",
)


@dataclass(frozen=True)
class Step:
    """One action of a plan: wait, then do `what` with `number` (its meaning depends on `what`)."""

    wait_s: float
    what: str
    number: float = 0.0

    def __str__(self) -> str:
        return f"+{self.wait_s:.3f} s {self.what} {self.number:.4g}"


def perform(node: Node, step: Step) -> None:
    """Carry out one step. Every step is possible at any time; some then do nothing."""
    ACTIONS[step.what](node, step.number)


def _of(things: Sequence[object], number: float) -> int:
    return int(number * 1e6) % max(1, len(things))


def _living(node: Node, number: float) -> Trainer | None:
    trainers = [t for t in node.trainers if t.process.alive and t.id]
    return trainers[_of(trainers, number)] if trainers else None


def _set(node: Node, number: float, count: int = 1) -> None:
    trainer = _living(node, number)
    viewers = [v for v in node.viewers if v.process.alive]
    if trainer is None or not viewers:
        return
    for i in range(count):
        viewer = viewers[_of(viewers, number * 7 + i)]
        viewer.act("set", trainer.id, float(node.next_value()))


def _tuner(node: Node, number: float) -> None:
    """A tuner sets the knob, as long as no person has."""
    trainer = _living(node, number)
    tuner = node.tuner
    if tuner is None or not tuner.process.alive:
        node.tuner = tuner = node.view(f"tuner{len(node.viewers)}", kind="tuner")
    if trainer is not None:
        tuner.act("set", trainer.id, float(node.next_value()))


def _hurried(node: Node, number: float) -> None:
    """A command that is worth nothing after a moment."""
    trainer = _living(node, number)
    viewers = [v for v in node.viewers if v.process.alive]
    if trainer is not None and viewers:
        viewers[_of(viewers, number)].act("set", trainer.id, float(node.next_value()), ttl_s=0.05 + number)


def _burst(node: Node, number: float) -> None:
    _set(node, number, 5 + int(number * 150))


def _pause(node: Node, number: float) -> None:
    trainer = _living(node, number)
    viewers = [v for v in node.viewers if v.process.alive]
    if trainer is not None and viewers:
        viewers[_of(viewers, number * 3)].act("pause", trainer.id, hold_s=2.0 + 10 * number)


def _resume(node: Node, number: float) -> None:
    trainer = _living(node, number)
    viewers = [v for v in node.viewers if v.process.alive]
    if trainer is not None and viewers:
        viewers[_of(viewers, number * 3)].act("resume", trainer.id)


def _watch(node: Node, number: float) -> None:
    trainer = _living(node, number)
    viewers = [v for v in node.viewers if v.process.alive]
    if trainer is not None and viewers:
        viewers[_of(viewers, number * 3)].watch(trainer.id)


def _viewer(node: Node, number: float) -> None:
    """A viewer is killed, and another one comes."""
    viewers = [v for v in node.viewers if v.process.alive]
    if len(viewers) > 1:
        viewers[_of(viewers, number)].process.kill()
    node.view(f"viewer{len(node.viewers)}")


def _finish(node: Node, number: float) -> None:
    trainer = _living(node, number)
    if trainer is not None:
        trainer.ends = True
        _again_later(node, trainer, 2.0 + 5 * number)


def _kill_run(node: Node, number: float) -> None:
    trainer = _living(node, number)
    if trainer is not None:
        node.disturb(20.0)
        trainer.process.kill()
        _again_later(node, trainer, 0.2 + 5 * number)


def _again_later(node: Node, trainer: Trainer, seconds: float) -> None:
    def again() -> None:
        if trainer.process.alive:
            node.kernel.after(1.0, again)
        elif not node.settling and _is_last(node, trainer):
            node.disturb(10.0)
            node.train(trainer.name, trainer.was.iteration_s, trainer)

    node.kernel.after(seconds, again)


def _is_last(node: Node, trainer: Trainer) -> bool:
    """Return whether no process has continued this run."""
    return [t for t in node.trainers if t.name == trainer.name][-1] is trainer


def _kill_run_at(node: Node, number: float) -> None:
    """The run dies just before one of the next things that others could see."""
    trainer = _living(node, number)
    if trainer is not None:
        node.disturb(60.0)
        process = trainer.process
        process.dies_at = process.operations + 1 + int(number * 40)
        _again_later(node, trainer, 1.0)


def _kill_rank(node: Node, number: float) -> None:
    """One of the ranks dies. The others hear it from their collectives."""
    trainer = _living(node, number)
    if trainer is not None and trainer.others:
        node.disturb(20.0)
        trainer.others[_of(trainer.others, number)].process.kill()
        _again_later(node, trainer, 1.0 + 5 * number)


def _kill_daemon(node: Node, number: float) -> None:
    node.kill_daemon()


def _kill_daemon_at(node: Node, number: float) -> None:
    daemon = node.daemon
    if daemon is not None:
        node.disturb(60.0)
        daemon.dies_at = daemon.operations + 1 + int(number * 60)


def _crash(node: Node, number: float) -> None:
    """The daemon dies within moments of commands, and the clock of the node goes back."""
    _burst(node, number)

    def crash() -> None:
        node.jump(-60 * number)
        _kill_daemon(node, number)

    _soon(node, 2.0 * (7 * number % 1.0), crash)


def _last_change(node: Node, number: float) -> None:
    """The daemon dies within moments of commands, and their run ends before another daemon has met it."""
    trainer = _living(node, number)
    if trainer is not None and int(number * 1000) % 2:
        _LAST_CHANGES[int(number * 1000) % 8 // 2](node, trainer, number)
    else:
        _kill_daemon_at(node, number)
        _finish(node, number)
    _set(node, number, 3)


def _die_after_change(node: Node, trainer: Trainer, number: float) -> None:
    """As the run applies a change that is not on disk yet, the daemon is killed and the run hangs. The run is
    killed later.
    """
    seconds, disk = 1.0 + 8 * number, node.system.disk
    disk.slow_s = 0.1 + 2 * number
    node.fail_disk(5.0)
    node.kernel.after(5.0, lambda: setattr(disk, "slow_s", 0.0))

    def die() -> None:
        daemon, disk.slow_s = node.daemon, 0.0
        if daemon is None or node.settling:
            return
        node.disturb(seconds + 30.0)
        trainer.was.suspended_s += seconds + 1
        daemon.kill()
        trainer.process.stop()
        node.kernel.after(seconds, trainer.process.kill)
        _again_later(node, trainer, seconds + 1.0)

    trainer.at_next_change = die


def _die_with_run(node: Node, trainer: Trainer, number: float) -> None:
    """A run ends in good order with a change. Its daemon is killed as its process ends, like all processes of
    a container. The disk takes a moment for each write.
    """
    disk = node.system.disk

    def end() -> None:
        if node.daemon is None or node.settling:
            return
        node.disturb(30.0)
        disk.slow_s = 0.02 + 0.02 * number
        trainer.ends = True
        trainer.process.at_end.append(die)
        _again_later(node, trainer, 1.0 + 5 * number)

    def die(_: bool) -> None:
        disk.slow_s = 0.0
        if not node.settling:
            _kill_daemon(node, number)

    trainer.at_next_change = end


def _change_late(node: Node, trainer: Trainer, number: float) -> None:
    """A run is suspended as commands come, for longer than a viewer repeats them. The disk is full meanwhile.
    The session ends just after the change.
    """
    seconds, process = REPEATED_S + 2.0 + 6 * number, trainer.process
    _full(node, 1.0)
    node.disturb(seconds + 40.0)
    trainer.was.suspended_s += seconds + 1
    process.stop()
    node.kernel.after(seconds, process.resume)

    def die() -> None:
        node.kernel.after(0.1, kill)

    def kill() -> None:
        node.system.disk.full = False
        if not node.settling:
            _end_session(node)

    trainer.at_next_change = die


_LAST_CHANGES = (_die_after_change, _die_with_run, _die_after_change, _change_late)


def _logout(node: Node, number: float) -> None:
    """A session ends after commands to a suspended run: its dashboards and the daemon die."""
    _stop("run")(node, number)
    _set(node, number, 2)

    _soon(node, 4.0 * number, lambda: _end_session(node))


def _end_session(node: Node) -> None:
    """All dashboards and the daemon are killed, and a new dashboard comes."""
    for viewer in node.viewers:
        if viewer.process.alive:
            viewer.process.kill()
    _kill_daemon(node, 0.0)
    node.view(f"viewer{len(node.viewers)}")


def _soon(node: Node, seconds: float, call: Callable[[], object]) -> None:
    """Call this later, if the faults are not over by then."""
    node.disturb(seconds + 20.0)
    node.kernel.after(seconds, lambda: None if node.settling else call())


def _stop(choose: str) -> Callable[[Node, float], None]:
    """Suspend a process, and continue it later. A daemon that hangs for long is killed instead."""

    def stop(node: Node, number: float) -> None:
        seconds = 0.2 + 50 * number**3
        if choose == "daemon":
            process = node.daemon
        elif choose == "run":
            trainer = _living(node, number)
            process = trainer.process if trainer else None
            if trainer is not None:
                trainer.was.suspended_s += seconds + 1
        else:  # a slow viewer: the others must not notice
            viewers = [v for v in node.viewers if v.process.alive]
            process = viewers[_of(viewers, number)].process if len(viewers) > 1 else None
            if process is not None:
                now = node.kernel.seconds
                viewers[_of(viewers, number)].away.append((now, now + seconds + 5))
        if process is None or process.stopped:
            return
        if choose != "viewer":
            node.disturb(seconds + 20)
        if choose == "daemon" and node.truth.disk_failed(node.kernel.seconds):
            node.fail_disk(seconds)  # what the disk did not take, it can write when it goes on
        process.stop()
        hangs = choose == "daemon" and number > 0.9
        end = process.kill if hangs else process.resume
        node.kernel.after(seconds, lambda: process.resume() if node.settling else end())

    return stop


def _cut(node: Node, number: float) -> None:
    pipes = list(node.fabric.pipes.values())
    if pipes:
        node.disturb(15.0)
        pipes[_of(pipes, number)].cut()


def _stall(node: Node, number: float) -> None:
    node.disturb(4 * number + 15)
    node.fabric.stalled_until_ns = node.kernel.now_ns + int(4e9 * number)


def _narrow(node: Node, number: float) -> None:
    """New pipes hold few messages, as if the readers were slow."""
    seconds = 5 + 20 * number
    node.disturb(seconds + 20)
    node.fabric.most = 1 + int(number * 12)
    for pipe in node.fabric.pipes.values():
        pipe.up.most = pipe.down.most = node.fabric.most
    node.kernel.after(seconds, node.widen)


def _full(node: Node, number: float) -> None:
    seconds = 1 + 40 * number
    node.fail_disk(seconds)
    node.system.disk.full = node.truth.disk_refused = True
    node.kernel.after(seconds, lambda: setattr(node.system.disk, "full", False))


def _broken(node: Node, number: float) -> None:
    seconds = 1 + 10 * number
    node.fail_disk(seconds)
    node.system.disk.broken = node.truth.disk_refused = True
    node.kernel.after(seconds, lambda: setattr(node.system.disk, "broken", False))


def _slow(node: Node, number: float) -> None:
    seconds = 5 + 20 * number
    node.fail_disk(seconds)
    node.system.disk.slow_s = 0.05 + 3 * number
    node.kernel.after(seconds, lambda: setattr(node.system.disk, "slow_s", 0.0))


def _wall(node: Node, number: float) -> None:
    node.jump(WALL_JUMPS_S[_of(WALL_JUMPS_S, number)])


def _sweep(node: Node, number: float) -> None:
    """A cleaner of /tmp removes a socket."""
    node.disturb(15.0)
    (node.where.runs if number < 0.5 else node.where.viewers).unlink(missing_ok=True)


def _refuse(node: Node, number: float) -> None:
    trainer = _living(node, number)
    if trainer is not None:
        for rank in (trainer, *trainer.others):
            rank.refuses = number / trainer.world


def _night(node: Node, number: float) -> None:
    """Everybody leaves for hours. Some faults happen meanwhile, and in the end somebody comes back."""
    rng = random.Random(f"night {number}")
    seconds = night_s(number)
    for viewer in node.viewers:
        viewer.leave()
    for _ in range(rng.choice((0, 0, 1, 3))):
        step = Step(seconds * rng.random(), rng.choice(OF_A_NIGHT), rng.random())
        node.kernel.after(step.wait_s, lambda step=step: perform(node, step))  # type: ignore[misc]
    node.kernel.run(seconds)
    node.view(f"viewer{len(node.viewers)}")


def night_s(number: float) -> float:
    """Return how long a night lasts."""
    return 3600 * (2.0 + 10.0 * number)


def _nothing(node: Node, number: float) -> None:
    """Only wait."""


def _with_person(do: Callable[[Node, Trainer, Viewer, float], None]) -> Callable[[Node, float], None]:
    """Let a person do something. A tuner that is connected as a viewer is no person."""

    def action(node: Node, number: float) -> None:
        trainer = _living(node, number)
        viewers = [v for v in node.viewers if v.process.alive and v.kind == "person"]
        if trainer is not None and viewers and node.serves:
            do(node, trainer, viewers[_of(viewers, number * 3)], number)

    return action


def _target(ask: Callable[[Node, Trainer, float], None]) -> Callable[[Node, float], None]:
    def action(node: Node, number: float) -> None:
        trainer = _living(node, number)
        if trainer is not None and node.serves:
            ask(node, trainer, number)

    return action


def _tune(op: TuneOp) -> Callable[[Node, float], None]:
    return _with_person(lambda node, trainer, viewer, _: services.ask_tuner(op, node, trainer, viewer))


def _work(node: Node, number: float) -> None:
    """Some minutes of training, in which the tuner can measure."""
    node.kernel.run(20.0 + 100.0 * number)


SERVICES: dict[str, Callable[[Node, float], None]] = {
    "tune": _tune("start"),
    "work": _work,
    "set batch": _with_person(services.set_batch),
    "set width": _with_person(services.set_width),
    "target": _target(services.target),
    "untune": _tune("stop"),
    "release": _tune("release"),
    "target and kill": _target(services.target_and_kill),
    "kill in trial": services.kill_in_trial,
    "kill sampler": services.kill_sampler,
    "stop sampler": services.stop_sampler,
    "late samplers": services.late_samplers,
}
"""Of a node with samplers and knobs for the tuner."""


def _with_run(do: Callable[[Node, Trainer, float], None]) -> Callable[[Node, float], None]:
    def action(node: Node, number: float) -> None:
        trainer = _living(node, number)
        if trainer is not None:
            do(node, trainer, number)

    return action


def _ask(verb: str) -> Callable[[Node, float], None]:
    """Let a person give a command that concerns the whole run."""

    def ask(node: Node, number: float) -> None:
        trainer = _living(node, number)
        viewers = [v for v in node.viewers if v.process.alive]
        if trainer is not None and viewers:
            value = 1 + int(number * 999) if verb == "profile" else None
            viewers[_of(viewers, number * 3)].act(verb, trainer.id, value)
            if verb == "stop":
                _again_later(node, trainer, 2.0 + 5 * number)

    return ask


def _signal(node: Node, number: float) -> None:
    """The scheduler of the cluster sends SIGTERM to one rank."""
    trainer = _living(node, number)
    if trainer is not None:
        ranks.signal(node, trainer, number)
        _again_later(node, trainer, 2.0 + 5 * number)


def _hurry(node: Node, trainer: Trainer, number: float) -> None:
    """A burst of short iterations. Somebody sets a knob as it ends."""
    ranks.hurry(node, trainer, number, lambda: None if node.settling else _set(node, number))


RANKS: dict[str, Callable[[Node, float], None]] = {
    "stop": _ask("stop"),
    "checkpoint": _ask("checkpoint"),
    "profile": _ask("profile"),
    "signal": _signal,
    "hurry": _with_run(_hurry),
    "stop rank": _with_run(ranks.suspend),
    "leave rank": _with_run(ranks.leave),
    "slow store": _with_run(ranks.slow_store),
    "broken store": _with_run(ranks.broken_store),
}
"""Of runs of several processes."""
RARE: dict[str, Callable[[Node, float], None]] = {
    "foreign recording": rare.foreign_recording,
    "delete lock": rare.delete_lock,
    "odd knob": rare.odd_knob,
    "clock ahead": _with_run(rare.clock_ahead),
    "slow answers": rare.slow_answers,
}
"""Of few seeds, and drawn apart from the others."""
ACTIONS: dict[str, Callable[[Node, float], None]] = {
    "set": _set,
    "burst": _burst,
    "tuner": _tuner,
    "hurried": _hurried,
    "pause": _pause,
    "resume": _resume,
    "watch": _watch,
    "viewer": _viewer,
    "finish": _finish,
    "refuse": _refuse,
    "nothing": _nothing,
    "kill run": _kill_run,
    "kill run at": _kill_run_at,
    "kill rank": _kill_rank,
    "kill daemon": _kill_daemon,
    "kill daemon at": _kill_daemon_at,
    "crash": _crash,
    "last change": _last_change,
    "logout": _logout,
    "stop daemon": _stop("daemon"),
    "stop run": _stop("run"),
    "stop viewer": _stop("viewer"),
    "cut": _cut,
    "stall": _stall,
    "narrow": _narrow,
    "disk full": _full,
    "disk broken": _broken,
    "disk slow": _slow,
    "wall clock": _wall,
    "sweep": _sweep,
    NIGHT: _night,
    **RANKS,
    **SERVICES,
    **RARE,
}
ALWAYS = ("set", "set", "set", "nothing", "watch")
OPTIONAL = tuple(name for name in ACTIONS if name not in (*ALWAYS, NIGHT, *RANKS, *SERVICES, *RARE))
