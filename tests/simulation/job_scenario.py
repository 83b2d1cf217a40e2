"""A plan for a run on several nodes from a seed, and its execution."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.simulation import job_invariants
from tests.simulation.actions import Step
from tests.simulation.job_actions import ALWAYS, OPTIONAL, layout_of, perform
from tests.simulation.job_nodes import JobNodes, Layout
from tests.simulation.kernel import Livelock
from tests.simulation.node import quiet
from tests.simulation.scenario import Result

SETTLE_S = 75.0
"""A command that gets no answer is unknown after 60 s."""
STEPS = 25


@dataclass(frozen=True)
class JobPlan:
    """What a seed does to a run on several nodes."""

    seed: int | str
    nodes: int
    layout: Layout
    viewers: tuple[int, ...]
    """On each node."""
    iteration_s: float
    preempts: float
    torch: bool
    """Whether the store is that of torch."""
    agents: bool
    """Whether the store outlives the process of rank 0."""
    steps: tuple[Step, ...]


def plan_of(seed: int | str) -> JobPlan:
    """Return what a seed does."""
    rng = random.Random(f"job {seed}")
    nodes = rng.choice((2, 2, 3, 4))
    kinds = [*ALWAYS, *rng.sample(OPTIONAL, rng.randint(1, 6))]
    return JobPlan(
        seed=seed,
        nodes=nodes,
        layout=layout_of(rng.random(), nodes),
        viewers=tuple(rng.choice((0, 1, 1, 2)) for _ in range(nodes)),
        iteration_s=rng.choice((0.1, 0.5, 1.0, 3.0)),
        preempts=rng.choice((0.0, 0.0, 0.002, 0.02)),
        torch=rng.random() < 0.7,
        agents=rng.random() < 0.5,
        steps=tuple(
            Step(rng.expovariate(1 / rng.choice((0.1, 1.0, 4.0, 10.0))), rng.choice(kinds), rng.random())
            for _ in range(rng.randint(4, STEPS))
        ),
    )


def execute(plan: JobPlan) -> Result:
    """Carry out a plan and check the invariants."""
    violations: list[str] = []
    nodes = JobNodes(plan.seed, plan.nodes, plan.iteration_s, torch=plan.torch, agents=plan.agents)
    with nodes, quiet():
        kernel = nodes.kernel
        kernel.preempts = plan.preempts
        try:
            nodes.first.disturb(15.0)
            nodes.rendezvous(plan.layout)
            for node, count in zip(nodes.nodes, plan.viewers, strict=True):
                for i in range(count):
                    node.view(f"viewer{i}")
            kernel.run(8.0)
            for step in plan.steps:
                kernel.run(step.wait_s)
                perform(nodes, step)
            nodes.settle(SETTLE_S + 3 * plan.iteration_s)
            violations += job_invariants.of_settled(nodes)
            nodes.finish()
            violations += job_invariants.of_finished(nodes)
        except Livelock as error:
            violations.append(f"livelock: {error}")
        violations += job_invariants.always(nodes)
        return Result(
            seed=plan.seed,
            violations=violations,
            virtual_s=kernel.seconds,
            events=kernel.events,
            commands=sum(1 for _ in nodes.given()),
            rows=sum(was.steps for was in nodes.first.truth.processes),
            kinds={step.what for step in plan.steps},
        )


def run_seed(seed: int | str) -> Result:
    """Carry out the plan of a seed."""
    return execute(plan_of(seed))
