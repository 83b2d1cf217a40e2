"""R2b: the cost of a live change of `num_envs`: the pause of the run, and the time to full speed.

The change is sent like a user's. The pause is the longest time between two later boundaries, less a steady
iteration. The run is at full speed after the last quarter of a second whose median iteration takes a fifth
longer than a steady one.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.measure import Bench, bench, tell, until
from benchmarks.training import Iteration, ended, finish, options, start
from hoptui.client.session import Session

PPO = ("ppo", "--env", "CartPole-v1", "--evaluate-every", "0", "--iterations", "1000000")
CASE = (*PPO, "--preset", "cartpole")
QUICK = (*PPO, "--preset", "tiny")
CHANGES = ((16_384, 65_536), (65_536, 16_384), (16_384, 20_000))
QUICK_CHANGES = ((8, 16),)
SETTLE_S, AFTER_S = 5.0, 40.0
QUICK_SETTLE_S, QUICK_AFTER_S = 0.5, 1.0
STILL_S, FULL_S = (0.5, 0.2), (25.0, 5.0)
"""What passes, and what would be better still."""
SLOW, SLICE_S = 1.2, 0.25
"""A slice of time is slow if its median iteration takes so many times a steady one."""


def change(
    node: Bench, case: Sequence[str], before: int, after: int, settle_s: float, after_s: float
) -> dict[str, Any]:
    """One run, changed once."""
    running = start(node, (*case, "--num-envs", str(before)))
    with node.session() as session:
        state = node.run(running.name)

        def trains() -> bool:
            return len(session.fetch(cursors={f"run/{state.run}": 0}, state=0, wait_s=0.2).columns) > 0

        until(trains, 300, "the first iteration")
        time.sleep(settle_s)
        asked = time.monotonic()
        outcome = _told(session, node, running.name, after)
        time.sleep(after_s)
        stop = session.submit(node.run(running.name), "stop")
        session.outcome(stop, timeout_s=60)
    found = ended(node, running, "env_steps")
    later = [i for i in found.iterations if i.end_s > asked]
    return {
        "from": before,
        "to": after,
        "applied": outcome,
        **_cost(later, asked),
        "env_steps_per_s": round(sum(i.work for i in _last(later)) / sum(i.seconds for i in _last(later))),
    }


def _told(session: Session, node: Bench, name: str, value: int) -> dict[str, Any]:
    command = session.submit(node.run(name), "set", knob="num_envs", value=value)
    found = session.outcome(command, timeout_s=120)
    if found.stage != "applied":
        raise RuntimeError(f"num_envs = {value}: {found.stage}, {found.reason}")
    return {"effective": found.effective, "took_s": found.took_s}


def _cost(later: Sequence[Iteration], asked: float) -> dict[str, float]:
    """Return the seconds of the longest pause, and until full speed."""
    steady = statistics.median(i.seconds for i in _last(later))
    slices: dict[int, list[Iteration]] = {}
    for iteration in later:
        slices.setdefault(int((iteration.end_s - asked) / SLICE_S), []).append(iteration)
    slow = [
        found[-1].end_s
        for found in slices.values()
        if statistics.median(i.seconds for i in found) > SLOW * steady
    ]
    return {
        "steady_iteration_s": round(steady, 5),
        "stands_still_s": round(max(i.seconds for i in later) - steady, 4),
        "at_full_speed_after_s": round(max(slow, default=asked) - asked, 3),
    }


def _last(iterations: Sequence[Iteration]) -> Sequence[Iteration]:
    """The last fifth, which is steady."""
    return iterations[-max(1, len(iterations) // 5) :]


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    given = options(arguments)
    case, changes = (QUICK, QUICK_CHANGES) if given.quick else (CASE, CHANGES)
    times = (QUICK_SETTLE_S, QUICK_AFTER_S) if given.quick else (SETTLE_S, AFTER_S)
    with bench() as node:
        found = [
            tell(f"{before} → {after}", change(node, (*case, *given.device), before, after, *times))
            for before, after in changes
        ]
    met: dict[str, bool] = {}
    stretch: dict[str, bool] = {}
    if not given.quick:
        for words, still, full in zip((met, stretch), STILL_S, FULL_S, strict=True):
            words[f"stands still for at most {still} s"] = all(c["stands_still_s"] <= still for c in found)
            words[f"at full speed after at most {full} s"] = all(
                c["at_full_speed_after_s"] <= full for c in found
            )
    figures = {"command": " ".join(case), "changes": found, "met": met, "stretch": stretch}
    return finish("ppo_resize", given, figures)


if __name__ == "__main__":
    main(sys.argv[1:])
