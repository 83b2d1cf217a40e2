"""The parts of a chaos run. Each has a node of its own, and returns violations and figures."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.measure import bench, until
from hoptui.node.addresses import addresses
from hoptui.protocol.messages import FINAL, CommandRecord
from hoptui.recording.library import at_rest
from tests.chaos import checks, faults
from tests.chaos.node import Actor, ChaosNode, send

SETTLE_S = LIMIT_S = 60.0
LOG_CHARACTERS = 3000
ALWAYS = (
    checks.stages_forward,
    checks.ranks_agree,
    checks.nothing_false_is_shown,
    checks.runs_go_on,
    checks.runs_keep_pace,
    checks.daemon_comes_back,
    checks.nothing_broke,
    checks.usage_bounded,
)


@dataclass
class Result:
    """What an act has found. `log` is the end of the daemon's log if something did not hold."""

    violations: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    log: str = ""


@contextlib.contextmanager
def chaos_node(**environment: str) -> Iterator[ChaosNode]:
    """Yield a node of its own."""
    with bench() as made:
        node = ChaosNode(made, addresses(), environment)
        try:
            yield node
        finally:
            node.close()


def judge(node: ChaosNode, result: Result, *, rows: bool = True) -> None:
    """Let everything come to rest, end the runs and the daemon, and check."""
    audited, shown = settle(node)
    result.violations += shown
    finish(node)
    result.violations += checks.violations(node, *ALWAYS)
    result.violations += [f"commands: {one}" for one in checks.commands_truthful(node, audited)]
    if rows:
        result.violations += checks.violations(node, checks.rows_accounted)
        result.violations += [f"recorded: {one}" for one in checks.commands_recorded(node, audited)]
    result.figures |= figures(node, audited)
    if result.violations and node.where.log.exists():
        result.log = node.where.log.read_text(errors="replace")[-LOG_CHARACTERS:]


def settle(node: ChaosNode) -> tuple[dict[int, CommandRecord], list[str]]:
    """Wait until every command has its final stage and every run is live.

    Returns the records by the value asked for, and what is wrong with what is shown.
    """
    for viewer in node.of("viewer"):
        send(viewer.child.pid, signal.SIGKILL)  # no further commands
    found: dict[int, CommandRecord] = {}
    problems: list[str] = []

    def at_rest_now() -> bool:
        nonlocal found, problems
        delta = node.fetch()
        found = {r.wanted: r for r in delta.commands if isinstance(r.wanted, int) and r.verb == "set"}
        problems = [f"settled: {r.wanted} is {r.stage}" for r in found.values() if r.stage not in FINAL]
        runs = {run.run: run for run in delta.node.runs} if delta.node else {}
        for actor in (a for a in checks.speakers(node) if a.alive):
            run, vital = runs.get(actor.run), delta.vitals.get(actor.run)
            if run is None or vital is None or vital.state not in ("live", "busy"):
                problems.append(f"settled: {actor.name} is shown as {vital.state if vital else 'unknown'}")
                continue
            value = next((k.value for k in run.knobs if k.spec.name == "k0"), None)
            if value != actor.ledger.value:
                problems.append(f"settled: k0 of {actor.name} is {actor.ledger.value}, shown as {value}")
        steps = {run.pid: delta.vitals[name].step for name, run in runs.items() if name in delta.vitals}
        unseen = (a for a in node.of("trainer") if not steps.get(a.child.pid))
        problems += [f"settled: {actor.name} is not shown to train" for actor in unseen]
        return not problems

    with contextlib.suppress(TimeoutError):
        until(at_rest_now, SETTLE_S)
    return found, problems


def finish(node: ChaosNode) -> None:
    """End the runs in order, then the daemon. Afterwards the recordings are closed."""
    others = [actor for actor in node.actors if actor.kind != "daemon"]  # it hears their last rows
    for actor in others:
        if actor.alive:
            actor.child.terminate()
    for actor in others:
        actor.child.wait(60)
    runs = {actor.run for actor in checks.speakers(node)}
    until(lambda: _ended(node, runs), 30, "the end of the runs")
    with node.session() as session:
        session.shutdown()
    with contextlib.suppress(TimeoutError):
        until(lambda: all(at_rest(node.where.recording(run)) for run in runs), 15)


def _ended(node: ChaosNode, runs: set[str]) -> bool:
    state = node.fetch().node
    return state is not None and all(run.exit_reason for run in state.runs if run.run in runs)


def figures(node: ChaosNode, audited: dict[int, CommandRecord]) -> dict[str, Any]:
    """What happened, in numbers."""
    daemons = [used for used in node.usage.values() if used.kind == "daemon"]
    slow = [s for a in node.of_all("run") for s in a.ledger.slow() if not a.was_stopped(s.t - s.wall, s.t)]
    return {
        "faults": dict(Counter(name for name, _, _ in node.disturbed)),
        "processes": dict(Counter(actor.kind for actor in node.actors)),
        "rows": sum(actor.ledger.rows for actor in checks.speakers(node)),
        "commands": dict(Counter(record.stage for record in audited.values())),
        "daemons": len(daemons),
        "daemon_mib": round(max((used.most_mib for used in daemons), default=0.0), 1),
        "daemon_files": max((used.most_files for used in daemons), default=0),
        "longest_without_daemon_s": round(node.longest_without_daemon_s, 1),
        "worst_boundary_ms": {
            clock: round(max((getattr(s, clock) for s in slow), default=0) / 1e6, 1)
            for clock in ("wall", "cpu", "blocked", "queued")
        },
    }


# the acts ---------------------------------------------------------------------------------------------------


def processes(seconds: float, seed: int, denied: dict[str, str]) -> Result:
    """Kill, suspend and cut everything, and clean /tmp, while viewers give commands."""
    result = Result()
    without = frozenset(name for name, right in faults.RIGHTS.items() if right in denied)
    with chaos_node() as node:
        node.start_control()
        for _ in range(2):
            node.start_run()
        node.start_ranks()
        node.start_trainer(10**6)
        for starts in (True, False):
            node.start_viewer(starts_daemon=starts)
        steps, until_s = faults.plan(seed, without), time.monotonic() + seconds
        while time.monotonic() < until_s:
            step = next(steps)
            time.sleep(step.after_s)
            faults.carry_out(node, step)
        judge(node, result)
    return result


def unchanged(seconds: float, seed: int, denied: dict[str, str]) -> Result:
    """Kill and suspend the daemon while the trainer trains. Its result must be that without hoptui."""
    result, chosen = Result(), random.Random(seed)
    with chaos_node() as node:
        trainers = [node.start_trainer(TRAINED, **more) for more in ({"HOPTUI": "off"}, {})]
        until_s = time.monotonic() + seconds
        while any(a.alive for a in trainers) and time.monotonic() < until_s + SETTLE_S:
            name = chosen.choice(("kill_daemon", "stop_daemon", "kill_sampler", "remove_sockets"))
            faults.carry_out(node, faults.Step(0.0, name, chosen.random() / 4))
            time.sleep(chosen.uniform(0.5, 2.0))
        told = [_result(trainer) for trainer in trainers]
        result.violations += checks.violations(node, checks.runs_go_on, checks.nothing_broke)
        if told[0] != told[1]:
            result.violations.append(f"the trainer's result is {told[1]}, and without hoptui {told[0]}")
        result.figures = {"results": told, "faults": dict(Counter(name for name, _, _ in node.disturbed))}
    return result


TRAINED = 400
"""Iterations of the trainer, some seconds."""


def _result(trainer: Actor) -> dict[str, Any]:
    """What depends on the seed of a trainer and on nothing else."""
    lines = trainer.path.with_suffix(".stdout").read_text().splitlines()
    found = json.loads(lines[-1]) if lines and trainer.child.poll() == 0 else {"ended": trainer.child.poll()}
    names = (
        "ended",
        "evaluation_return",
        "best_evaluation_return",
        "best_iteration",
        "env_steps",
        "iterations",
    )
    return {name: found[name] for name in names if name in found}


Act = Callable[[float, int, dict[str, str]], Result]
