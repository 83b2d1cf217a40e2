"""PPO on two processes: what one process with all the environments would have done, also with knobs turned in
the middle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hoptui_trainer.common.checkpoint import read_checkpoint
from hoptui_trainer.ppo.job import PPOOptions
from hoptui_trainer.ppo.train import train as train_here
from tests.trainer.tensors import tensors
from tests.trainer.warm import ranks

pytestmark = pytest.mark.slow

LIMIT_S = 110.0
SCRIPT = """
import json, os, sys, time
import torch
import hoptui
from hoptui.protocol.messages import Command
from hoptui_trainer.ppo import train as training
from hoptui_trainer.ppo.job import PPOOptions
from hoptui_trainer.common import ranks as common
from hoptui_trainer.common.flat_gradient import FlatGradient
from hoptui_trainer.common.ranks import RankGroup
from hoptui_trainer.ppo import evaluate, collector, update
from hoptui_trainer.ppo.collector import Collector
from pathlib import Path
from tests.sdk.two_ranks import meet_always

torch.set_num_threads(1)
meet_always()
connect, learned, add, estimate = hoptui.connect, training.learned, FlatGradient.add, Collector.estimate
rank = None

def seen_connect(*args, **kwargs):
    global run
    run = connect(*args, **kwargs)
    return run

def steered(state, clock):
    global rank, policy
    rank, policy = state.ranks.rank, state.policy
    values.append({name: handle.value for name, handle in run._core.state.declarations.knobs.items()})
    for knob, value in asked["after"].get(str(run.step), {}).items() if rank == 0 else ():
        command = Command(id=f"{run.step} {knob}", run=run.id, epoch=run._core.state.epoch, verb="set",
                          knob=knob, value=value)
        run._core.state.inbox.receive(command, time.monotonic(), run.step + 1)
    kind = type(state.ranks)
    everybody = kind.all
    def counted(self, ok):
        asked_now.append(ok)
        return everybody(self, ok)
    asked_now, kind.all = [], counted
    try:
        return learned(state, clock)
    finally:
        kind.all = everybody
        votes.append(len(asked_now))

def seen_turn(self, *, compiles):
    if compiles:
        turns.append(run.step)
    return turn(self, compiles=compiles)

def short_of_memory(self, total):
    if asked.get("fails_on") == rank and run.step == 1:
        asked["left"] -= 1
        if asked["left"] == 0:
            raise torch.OutOfMemoryError("made up")
    add(self, total)

def short_of_memory_before(self):
    if asked.get("has_no_rollout") == [rank, run.step]:
        asked["has_no_rollout"] = None
        raise torch.OutOfMemoryError("made up")
    estimate(self)

hoptui.connect, training.learned = seen_connect, steered
FlatGradient.add, Collector.estimate = short_of_memory, short_of_memory_before
turn, RankGroup.turn = RankGroup.turn, seen_turn
# Ranks take turns as on GPUs; what they compile in them are the plain functions.
common.kernel_cache = lambda device: ("here",)
collector.compiled = update.compiled = evaluate.compiled = lambda function, *_, **__: function
for asked in json.loads(sys.argv[1]):
    values, lines, votes, turns = [], [], [], []
    folder = Path(asked["folder"])
    job = PPOOptions(**asked["job"], checkpoint_dir=folder, device="cpu", threads=1)
    training.train(job, lines.append)
    stages = sorted({outcome.stage for outcome in run._core.state.inbox.collect_outcomes()})
    weights = [float(parameter.detach().double().sum()) for parameter in policy.parameters()]
    end = {"rank": rank, "values": values, "lines": len(lines), "stages": stages, "weights": weights,
           "votes": votes, "turns": turns}
    print(json.dumps(end), flush=True)
"""

Ends = list[list[dict[str, Any]]]
"""What each rank says at the end of each job: first by rank, then by job."""


def train(world: int, jobs: list[dict[str, Any]]) -> Ends:
    """Train these jobs one after the other on so many processes, which are gone afterwards."""
    with ranks("-c", SCRIPT, json.dumps(jobs), world=world) as children:
        said = [child.communicate(timeout=LIMIT_S) for child in children]
    for child, (_, err) in zip(children, said, strict=True):
        assert child.returncode == 0, err
    return [[json.loads(line) for line in out.splitlines()] for out, _ in said]


def assert_near(first: Path, second: Path) -> None:
    """Two checkpoints hold the same numbers to 1e-5, environments and their episodes included."""
    one, other = (tensors(read_checkpoint(folder, "ppo")) for folder in (first, second))
    assert one.keys() == other.keys()
    assert len(one) > 50
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-5, msg=name)


SIZES = {"rollout_len": 16, "minibatch_size": 64, "epochs": 2}
NETWORKS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {},
    "CartPole-NoVel": {"policy": "tiny", "context": 4, "sequence_len": 8},
}


def steered_job(folder: Path, world: int, env: str) -> dict[str, Any]:
    """Six iterations with knobs turned between them, in the second one of which memory is short on the last
    rank.

    That is in the sixth of eight minibatches, in the second epoch.
    """
    knobs = {**SIZES, **NETWORKS[env], "num_envs": 16 // world, "compile": "default"}
    after = {
        "1": {"lr": 3e-3},
        "2": {"num_envs": 24 // world},
        "3": {"minibatch_size": 128, "gamma": 0.9, "grad_accum": 3},
        "4": {"num_envs": 8 // world, "rollout_len": 24},
    }
    job = {"env": env, "iterations": 6, "evaluate_every": 6, "knobs": knobs}
    short = {"fails_on": world - 1, "left": 6}
    return {"job": job, "after": after, **short, "folder": str(folder / f"{env} on {world}")}


def restless_job(folder: Path) -> dict[str, Any]:
    """Twenty-five iterations with two random changes after each; in one of them the second rank has no memory
    for its rollout."""
    draw = torch.Generator().manual_seed(7)

    def pick(*values: Any) -> Any:
        return values[int(torch.randint(len(values), (), generator=draw))]

    after = {
        str(step): {
            pick("num_envs", "rollout_len"): pick(1, 2, 3, 8),
            pick("minibatch_size", "grad_accum", "epochs", "entropy_coef"): pick(0, 1, 2, 3, 5),
        }
        for step in range(25)
    }
    job = {"iterations": 27, "evaluate_every": 0, "knobs": {**SIZES, "num_envs": 4}}
    return {"job": job, "after": after, "has_no_rollout": [1, 9], "folder": str(folder / "restless")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def alone(folder: Path) -> Ends:
    return train(1, [steered_job(folder, 1, env) for env in NETWORKS])


@pytest.fixture(scope="module")
def together(folder: Path) -> Ends:
    return train(2, [*(steered_job(folder, 2, env) for env in NETWORKS), restless_job(folder)])


@pytest.mark.timeout(240)  # the first one waits for all processes
@pytest.mark.parametrize("number", range(len(NETWORKS)), ids=NETWORKS)
def test_two_ranks_train_as_one_with_knobs_turned_and_memory_short_on_one(
    alone: Ends, together: Ends, folder: Path, number: int
) -> None:
    for ends in (alone, together):
        world = len(ends)
        found = [jobs[number] for jobs in ends]
        assert [end["rank"] for end in found] == list(range(world))
        assert [end["lines"] > 0 for end in found] == [True, False][:world]
        for end in found:
            assert (end["values"], end["weights"]) == (found[0]["values"], found[0]["weights"])
        assert [values["grad_accum"] for values in found[0]["values"]] == [1, 1, 2, 2, 3, 3]
        last = found[0]["values"][-1]
        assert last | {"lr": 3e-3, "gamma": 0.9, "num_envs": 8 // world, "rollout_len": 24} == last
        assert found[0]["stages"] == ["applied"]
        for end in found:
            # Nobody asks after the others but once an iteration, and again where one was in trouble.
            assert end["votes"] == [1, 2, 1, 1, 1, 1]
    # The steps in which they compiled one after the other.
    first, second = (end[number]["turns"] for end in together)
    assert first == second
    assert (first[0], first[-1]) == (0, 5)  # before the first iteration, and in the evaluation after the last
    assert 2 < len(first) < 6  # in between where knobs asked for it, and not where the same sizes came back
    env = list(NETWORKS)[number]
    assert_near(folder / f"{env} on 1", folder / f"{env} on 2")


@pytest.mark.timeout(240)
def test_one_process_goes_on_with_the_checkpoint_of_two(alone: Ends, together: Ends, folder: Path) -> None:
    for world in (1, 2):
        job = PPOOptions(
            iterations=8,
            evaluate_every=0,
            threads=1,
            resume=folder / f"CartPole-v1 on {world}",
            checkpoint_dir=folder / f"after {world}",
            knobs={"num_envs": 8, "compile": "off"},
        )
        train_here(job, lambda _: None)
    assert_near(folder / "after 1", folder / "after 2")


@pytest.mark.timeout(240)
def test_fifty_random_changes_leave_both_ranks_the_same(together: Ends, folder: Path) -> None:
    first, second = (jobs[-1] for jobs in together)
    assert first["values"] == second["values"]
    assert len({str(values) for values in first["values"]}) > 12
    # One iteration began anew, in a smaller size.
    assert len(first["votes"]) == len(second["votes"]) == 27 + 1
    assert first["weights"] == second["weights"]
    assert read_checkpoint(folder / "restless", "ppo")["iteration"] == 27
