"""Ray Train: two workers, changed with the command line while they train."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, DistributedSampler

from tests.conftest import TestNode, new_node, until
from tests.injection.scripts import finished, run_command, script
from tests.integrations import own_loop
from tests.integrations.proof import Proof

LIMIT_S = 300.0
MARGIN = 40


class Steered:
    """A script with a trainer, and the node that it runs on."""

    def __init__(self, node: TestNode, name: str, folder: Path, nodes: Sequence[TestNode] = ()) -> None:
        self.node, self.folder = node, folder
        for each in nodes or (node,):
            each.daemon()
        script = Path(own_loop.__file__).with_name("ray_loop.py")
        command = [sys.executable, str(script), name, str(folder)]
        for each in nodes:
            command += [str(each.where.directory), str(each.where.state)]
        self.child: subprocess.Popen[str] = node.spawn(
            command, OMP_NUM_THREADS="1", RAY_raylet_start_wait_time_s="200"
        )

    def hoptui(self, *arguments: str) -> Any:
        done = self.node.hoptui(*arguments, seconds=LIMIT_S)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return json.loads(done.stdout) if "--json" in arguments else None

    def until_trains(self, name: str, node: TestNode | None = None) -> None:
        def trains() -> bool:
            assert self.child.poll() is None, self.child.communicate()[1][-4000:]
            done = (node or self.node).hoptui("status", name, "--json", seconds=LIMIT_S)
            return done.returncode == 0 and bool(json.loads(done.stdout)["iteration"])

        until(trains, seconds=LIMIT_S, what=name)

    def ended(self, name: str) -> list[dict[str, Any]]:
        """What the ranks of a trainer wrote at its end."""
        paths = [self.folder / f"{name}-{rank}.json" for rank in range(2)]
        until(lambda: self.status(name)["exit"], seconds=LIMIT_S, what=f"the end of {name}")
        return [json.loads(path.read_text()) for path in paths]

    def status(self, name: str, node: TestNode | None = None) -> dict[str, Any]:
        done = (node or self.node).hoptui("status", name, "--json", seconds=LIMIT_S)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


PLAIN = """
import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

def train_func():
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.ones(8, 4)).square().mean().backward()
        optimizer.step()
    ray.train.report({"loss": 1.0})

ray.init(num_cpus=2, include_dashboard=False)
TorchTrainer(
    train_func,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="plain", storage_path=STORAGE),
).fit()
"""


@pytest.mark.timeout(900)
def test_hoptui_run_shows_a_trainer_that_nobody_edited(node: TestNode, tmp_path: Path) -> None:
    path = script(tmp_path, PLAIN.replace("STORAGE", repr(str(tmp_path / "storage"))))
    node.viewer()  # beside Ray's processes, a daemon that starts then may be later than the end of the run
    child = node.spawn(
        run_command("--", sys.executable, path), OMP_NUM_THREADS="1", RAY_raylet_start_wait_time_s="200"
    )
    code, output, errors = finished(child, LIMIT_S)
    assert code == 0, errors[-4000:]
    assert "hoptui" not in output + errors
    (run,) = node.viewer().state().runs
    assert (run.name, run.world, run.exit_reason) == ("plain", 2, "finished")
    assert {knob.spec.name for knob in run.knobs} >= {"lr", "weight_decay"}


def _due(rank: int, steps: int) -> list[int]:
    """The samples of a rank, in the order of the sampler that `prepare_data_loader` makes."""
    data = own_loop.Samples()
    sampler: DistributedSampler[Any] = DistributedSampler(data, 2, rank, shuffle=True)
    loader = DataLoader(data, batch_size=own_loop.BATCH, sampler=sampler)
    found: list[int] = []
    epoch = 0
    while len(found) < steps * own_loop.BATCH:
        sampler.set_epoch(epoch)
        found += [int(index) for batch in loader for index in batch]
        epoch += 1
    return found[: steps * own_loop.BATCH]


def _all_seen(proof: Proof, ranks: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(ranks):
        assert found["seen"] == _due(rank, found["steps"])
    steps = ranks[0]["steps"]
    proof.samples(seen=sum(len(rank["seen"]) for rank in ranks), due=2 * steps * own_loop.BATCH)


@pytest.mark.timeout(900)
@pytest.mark.live_safe(framework="Ray Train", knob="pause", effect="speed", when="next iteration")
@pytest.mark.live_safe(
    framework="Ray Train", knob="checkpoint", effect="speed", when="when the function reports one"
)
def test_a_pause_and_a_checkpoint_change_nothing_else(node: TestNode, tmp_path: Path, proof: Proof) -> None:
    steered = Steered(node, "ray-same", tmp_path)
    steered.until_trains("ray-same")
    steered.hoptui("pause", "ray-same")
    steered.hoptui("resume", "ray-same")
    steered.hoptui("checkpoint", "ray-same")
    status = steered.status("ray-same")
    assert status["world"] == 2
    until(
        lambda: steered.status("ray-same")["metrics"].get("samples") == 2 * own_loop.BATCH,
        seconds=60,
        what="the samples of an iteration, which a report of the function does not have",
    )
    (saved,) = [one for one in status["commands"] if one["verb"] == "checkpoint"]
    assert saved["stage"] == "applied"
    assert str(tmp_path / "storage" / "ray-same") in json.dumps(saved)
    steered.hoptui("set", "ray-same", f"last_step={status['iteration'] + MARGIN}", "--yes")
    ranks = steered.ended("ray-same")
    ended = steered.status("ray-same")
    assert ended["exit"]["reason"] == "finished"
    assert ended["iteration"] == ranks[0]["steps"], "what follows the last step is not an iteration"
    assert ended["metrics"]["epoch"] > 1, "reported after the last step of an epoch"
    proof.ranks_equal([rank["weights"] for rank in ranks])
    _all_seen(proof, ranks)
    reference = own_loop.unchanged([rank["seen"] for rank in ranks], ranks[0]["steps"])
    proof.unchanged(ranks[0]["weights"], reference, tolerance=1e-9)


@pytest.mark.timeout(900)
@pytest.mark.live_safe(
    framework="Ray Train", knob="lr", effect="learning", when="next iteration", note="scales the schedule"
)
@pytest.mark.live_safe(framework="Ray Train", knob="weight_decay", effect="learning", when="next iteration")
@pytest.mark.live_safe(framework="Ray Train", knob="beta1", effect="learning", when="next iteration")
@pytest.mark.live_safe(framework="Ray Train", knob="beta2", effect="learning", when="next iteration")
@pytest.mark.live_safe(
    framework="Ray Train",
    knob="clip",
    effect="learning",
    when="next iteration",
    note="a setting that the function binds",
)
@pytest.mark.live_safe(
    framework="Ray Train", knob="stop", effect="learning", when="behind the next optimizer step"
)
def test_what_is_learned_changes_on_all_workers(node: TestNode, tmp_path: Path, proof: Proof) -> None:
    steered = Steered(node, "ray-other", tmp_path)
    steered.until_trains("ray-other")
    changes = {"lr": 5e-4, "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.95, "clip": 0.5}
    words = [f"{knob}={value}" for knob, value in changes.items()]
    made = steered.hoptui("set", "ray-other", *words, "--yes", "--json")["commands"]
    assert [command["effective"] for command in made] == list(changes.values())
    steered.hoptui("stop", "ray-other", "--yes")
    ranks = steered.ended("ray-other")
    output, errors = steered.child.communicate(timeout=LIMIT_S)
    assert steered.child.returncode == 0, errors[-4000:]
    assert "fit has returned" in output
    assert steered.status("ray-other")["exit"]["reason"] == "stopped"
    proof.ranks_equal([rank["weights"] for rank in ranks])
    assert ranks[0]["groups"] == ranks[1]["groups"]
    (group,) = ranks[0]["groups"]
    assert (group["weight_decay"], group["betas"], ranks[0]["clip"]) == (0.1, [0.8, 0.95], 0.5)
    _all_seen(proof, ranks)


@pytest.mark.timeout(900)
def test_workers_on_two_raylets_are_two_nodes_and_change_at_one_iteration(
    node: TestNode, tmp_path: Path, proof: Proof
) -> None:
    with new_node() as other:
        nodes = (node, other)
        steered = Steered(node, "ray-nodes", tmp_path, nodes)
        for each in nodes:
            steered.until_trains("ray-nodes", each)
        statuses = [steered.status("ray-nodes", each) for each in nodes]
        assert {status["run"] for status in statuses} == {statuses[0]["run"]}
        ranks = [status["ranks"][0]["rank"] for status in statuses]
        assert sorted(ranks) == [0, 1]
        away = nodes[ranks.index(1)]
        until(
            lambda: (
                (job := steered.status("ray-nodes", away)["job"])
                and [len(one["ranks"]) for one in job["nodes"]] == [1, 1]
            ),
            seconds=LIMIT_S,
            what="both nodes",
        )
        assert away.hoptui("set", "ray-nodes", "lr=0.0005", "--yes", seconds=LIMIT_S).returncode == 0
        assert away.hoptui("stop", "ray-nodes", "--yes", seconds=LIMIT_S).returncode == 0
        found = steered.ended("ray-nodes")
        _, errors = steered.child.communicate(timeout=LIMIT_S)
        assert steered.child.returncode == 0, errors[-4000:]
        assert found[0]["steps"] == found[1]["steps"]
        assert found[0]["groups"] == found[1]["groups"]
        proof.ranks_equal([rank["weights"] for rank in found])
