"""A plan of actions and faults from a seed, and its execution.

Each seed chooses which kinds of faults it uses ("swarm testing": a rare combination is then common in some
seeds). After the plan all faults end, the node settles, and the invariants are checked.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import chain

from tests.simulation import invariants, memory_invariants, rank_invariants, service_invariants
from tests.simulation.actions import ALWAYS, NIGHT, OPTIONAL, RANKS, RARE, SERVICES, Step, perform
from tests.simulation.kernel import Livelock
from tests.simulation.node import Node, quiet

SETTLE_S = 45.0
SERVED = 0.15
"""Share of the seeds with samplers, targets, a tuner that tries, and knobs that need a new process."""
JOINT = 0.6
"""Share of the seeds of several ranks in which more of what concerns all of them happens."""
SELDOM = 0.15
"""Share of the seeds in which something rare happens."""
LONG = 0.2
"""Share of the seeds that last for hours. They have slow iterations, and nights in which nobody watches."""


@dataclass(frozen=True)
class Plan:
    """What a seed does."""

    seed: int | str
    runs: int
    viewers: int
    iteration_s: float
    preempts: float
    world: int
    steps: tuple[Step, ...]
    serves: bool = False
    """Whether the node has samplers, and the runs have knobs for the tuner."""


@dataclass
class Result:
    """How a plan ended. `violations` is empty if every invariant held."""

    seed: int | str
    violations: list[str]
    virtual_s: float
    events: int
    commands: int
    rows: int
    kinds: set[str] = field(default_factory=set)


def plan_of(seed: int | str) -> Plan:
    """Return what a seed does."""
    plan, rng = _plan_of(seed), random.Random(f"rare {seed}")
    if rng.random() >= SELDOM:
        return plan
    steps = list(plan.steps)
    for kind in rng.choices(tuple(RARE), k=rng.randint(1, 4)):
        steps.insert(rng.randint(0, len(steps)), Step(rng.uniform(0.0, 20.0), kind, rng.random()))
    return replace(plan, steps=tuple(steps))


def _plan_of(seed: int | str) -> Plan:
    rng = random.Random(f"plan {seed}")
    kinds = [*ALWAYS, *rng.sample(OPTIONAL, rng.randint(0, 7))]
    steps = [
        Step(rng.expovariate(1 / rng.choice((0.02, 0.5, 3.0, 8.0))), rng.choice(kinds), rng.random())
        for _ in range(rng.randint(5, 60))
    ]
    chance = rng.random()
    if chance < LONG:
        return _long(seed, rng, steps)
    serves = chance < LONG + SERVED
    if serves:  # the tuner must be at work for something to happen to it
        asked = [Step(rng.expovariate(1.0), rng.choice(tuple(SERVICES)), rng.random()) for _ in steps[:20]]
        steps = [Step(0.0, "tune"), Step(0.0, "work", rng.random()), *chain(*zip(steps, asked, strict=False))]
    plan = Plan(
        seed=seed,
        runs=rng.choice((1, 1, 1, 2)),
        viewers=rng.choice((1, 1, 2, 3)),
        iteration_s=rng.choice((1.0, 2.0) if serves else (0.05, 0.3, 1.0, 5.0)),
        preempts=rng.choice((0.0, 0.0, 0.002, 0.02)),
        world=rng.choice((1, 1, 2, 3)),
        steps=tuple(steps),
        serves=serves,
    )
    return replace(plan, steps=_of_ranks(rng, plan)) if plan.world > 1 and rng.random() < JOINT else plan


def _of_ranks(rng: random.Random, plan: Plan) -> tuple[Step, ...]:
    """Mix the steps of a plan with what concerns all ranks of a run, and with what happens to one of them."""
    kinds = ("pause", "resume", *rng.sample(tuple(RANKS), rng.randint(1, 4)))
    more = [Step(rng.expovariate(1.0), rng.choice(kinds), rng.random()) for _ in plan.steps[:30]]
    mixed = chain(*zip(plan.steps, more, strict=False))
    return (*mixed, *plan.steps[len(more) :])


def _long(seed: int | str, rng: random.Random, steps: list[Step]) -> Plan:
    """Days of slow iterations: nights, and between them a few things that happen."""
    days: list[Step] = []
    for _ in range(rng.randint(1, 4)):
        days += [*steps[:12], Step(rng.uniform(0.0, 60.0), NIGHT, rng.random())]
        steps = steps[12:]
    return Plan(
        seed=seed,
        runs=1,
        viewers=rng.choice((1, 2)),
        iteration_s=rng.choice((20.0, 30.0, 60.0)),
        preempts=rng.choice((0.0, 0.002)),
        world=rng.choice((1, 1, 2)),
        steps=(*days, *steps[:12]),
    )


def execute(plan: Plan) -> Result:
    """Carry out a plan and check the invariants."""
    violations: list[str] = []
    with Node(plan.seed, serves=plan.serves) as node, quiet():
        kernel = node.kernel
        kernel.preempts = plan.preempts
        try:
            for i in range(plan.runs):
                node.train(f"run{i}", plan.iteration_s, world=plan.world if i == 0 else 1)
            for i in range(plan.viewers):
                node.view(f"viewer{i}")
            kernel.run(3.0)
            for step in plan.steps:
                kernel.run(step.wait_s)
                perform(node, step)
            node.settle(SETTLE_S + 3 * plan.iteration_s)
            violations += settled(node)
            node.finish()
            violations += finished(node)
        except Livelock as error:
            violations.append(f"livelock: {error}")
        violations += always(node)
        return Result(
            seed=plan.seed,
            violations=violations,
            virtual_s=kernel.seconds,
            events=kernel.events,
            commands=len(node.truth.given),
            rows=sum(was.steps for was in node.truth.processes),
            kinds={step.what for step in plan.steps},
        )


def settled(node: Node) -> list[str]:
    """Check all that holds once the faults are over."""
    return [
        found
        for module in (invariants, rank_invariants, service_invariants, memory_invariants)
        for found in module.of_settled(node)
    ]


def finished(node: Node) -> list[str]:
    """Check all that holds after runs and daemon have ended."""
    return invariants.of_finished(node) + service_invariants.of_finished(node)


def always(node: Node) -> list[str]:
    """Check all that holds at any time."""
    return invariants.always(node) + rank_invariants.always(node)


def run_seed(seed: int | str) -> Result:
    """Carry out the plan of a seed."""
    return execute(plan_of(seed))
