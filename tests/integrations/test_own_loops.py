"""Own loops under DDP and FSDP2: two ranks, changed with the command line while they train."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import TestNode, until
from tests.integrations import own_loop
from tests.integrations.proof import Proof

LIMIT_S = 150.0
MARGIN = 40
"""So many iterations after the last change the loop ends."""


def _start(
    node: TestNode, mode: str, folder: Path, *arguments: str, **environment: str
) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    script = [str(Path(own_loop.__file__)), mode, str(folder)]
    return node.spawn([sys.executable, *launch, *script], OMP_NUM_THREADS="1")


def _hoptui(node: TestNode, *arguments: str) -> Any:
    done = node.hoptui(*arguments, seconds=LIMIT_S)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return json.loads(done.stdout) if "--json" in arguments else None


def _training(node: TestNode, child: subprocess.Popen[str], run: str) -> None:
    viewer = node.viewer()

    def there() -> bool:
        assert child.poll() is None, child.communicate()[1][-4000:]
        found = [r for r in viewer.state().runs if r.name == run]
        return bool(found) and viewer.vital(found[-1].run).step > 0

    until(there, seconds=LIMIT_S, what=run)


def _end(node: TestNode, child: subprocess.Popen[str], run: str) -> None:
    last = _hoptui(node, "status", run, "--json")["iteration"] + MARGIN
    _hoptui(node, "set", run, f"last_step={last}", "--yes")
    _ended(child)


def _ended(child: subprocess.Popen[str]) -> None:
    _, errors = child.communicate(timeout=LIMIT_S)
    assert child.returncode == 0, errors[-4000:]


def _ranks(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


def _equal(proof: Proof, ranks: list[dict[str, Any]]) -> None:
    """All ranks have the same weights, and have made each change before the same iteration."""
    proof.ranks_equal([rank["weights"] for rank in ranks])
    for part in ("trace", "steps", "rates", "workers"):
        assert ranks[0][part] == ranks[1][part], part


def _all_seen(proof: Proof, ranks: list[dict[str, Any]]) -> None:
    """Each rank has trained on the samples that its sampler gives for so many steps, in this order."""
    due = 0
    for rank, found in enumerate(ranks):
        loader, sampler = own_loop.batches(rank, 2)
        wanted: list[int] = []
        epoch = 0
        while len(wanted) < found["steps"] * own_loop.BATCH:
            sampler.set_epoch(epoch)
            wanted += [int(index) for batch in loader for index in batch]
            epoch += 1
        wanted = wanted[: found["steps"] * own_loop.BATCH]
        assert found["seen"] == wanted
        due += found["steps"] * own_loop.BATCH
    proof.samples(seen=sum(len(rank["seen"]) for rank in ranks), due=due)


@pytest.mark.timeout(400)
@pytest.mark.live_safe(
    framework="DDP, own loop", knob="lr", effect="learning", when="next iteration", note="scales the schedule"
)
@pytest.mark.live_safe(
    framework="DDP, own loop", knob="weight_decay", effect="learning", when="next iteration"
)
@pytest.mark.live_safe(framework="DDP, own loop", knob="beta1", effect="learning", when="next iteration")
@pytest.mark.live_safe(framework="DDP, own loop", knob="beta2", effect="learning", when="next iteration")
@pytest.mark.live_safe(framework="DDP, own loop", knob="dropout", effect="learning", when="next iteration")
@pytest.mark.live_safe(framework="DDP, own loop", knob="clip", effect="learning", when="next iteration")
@pytest.mark.live_safe(framework="DDP, own loop", knob="stop", effect="learning", when="next iteration")
def test_what_is_learned_changes_on_all_ranks_of_ddp(node: TestNode, tmp_path: Path, proof: Proof) -> None:
    _learning("ddp", node, tmp_path, proof)


@pytest.mark.timeout(400)
@pytest.mark.live_safe(
    framework="FSDP2, own loop",
    knob="lr",
    effect="learning",
    when="next iteration",
    note="scales the schedule",
)
@pytest.mark.live_safe(
    framework="FSDP2, own loop", knob="weight_decay", effect="learning", when="next iteration"
)
@pytest.mark.live_safe(framework="FSDP2, own loop", knob="beta1", effect="learning", when="next iteration")
@pytest.mark.live_safe(framework="FSDP2, own loop", knob="beta2", effect="learning", when="next iteration")
@pytest.mark.live_safe(framework="FSDP2, own loop", knob="dropout", effect="learning", when="next iteration")
@pytest.mark.live_safe(framework="FSDP2, own loop", knob="clip", effect="learning", when="next iteration")
@pytest.mark.live_safe(framework="FSDP2, own loop", knob="stop", effect="learning", when="next iteration")
def test_what_is_learned_changes_on_all_ranks_of_fsdp2(node: TestNode, tmp_path: Path, proof: Proof) -> None:
    _learning("fsdp2", node, tmp_path, proof)


CHANGES = {"lr": 5e-4, "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.95, "dropout": 0.2, "clip": 0.5}


def _learning(mode: str, node: TestNode, folder: Path, proof: Proof) -> None:
    run = f"own-{mode}"
    node.daemon()
    child = _start(node, mode, folder)
    _training(node, child, run)
    words = [f"{knob}={value}" for knob, value in CHANGES.items()]
    made = _hoptui(node, "set", run, *words, "--yes", "--json")["commands"]
    assert [command["effective"] for command in made] == list(CHANGES.values())
    _hoptui(node, "stop", run, "--yes")
    _ended(child)
    ranks = _ranks(folder)
    _equal(proof, ranks)
    assert {name: value for _, name, value in ranks[0]["trace"]} == CHANGES
    _all_seen(proof, ranks)


@pytest.mark.timeout(400)
@pytest.mark.live_safe(
    framework="DDP, own loop",
    knob="micro_batch",
    effect="speed",
    when="next iteration",
    note="the batch stays as it is",
)
@pytest.mark.live_safe(
    framework="DDP, own loop",
    knob="num_workers",
    effect="speed",
    when="next epoch",
    note="of a DataLoader without `persistent_workers`",
)
@pytest.mark.live_safe(framework="DDP, own loop", knob="pause", effect="speed", when="next iteration")
@pytest.mark.live_safe(framework="DDP, own loop", knob="checkpoint", effect="speed", when="next iteration")
def test_what_is_fast_changes_nothing_else_under_ddp(node: TestNode, tmp_path: Path, proof: Proof) -> None:
    _speed("ddp", node, tmp_path, proof)


@pytest.mark.timeout(400)
@pytest.mark.live_safe(
    framework="FSDP2, own loop",
    knob="micro_batch",
    effect="speed",
    when="next iteration",
    note="the batch stays as it is",
)
@pytest.mark.live_safe(
    framework="FSDP2, own loop",
    knob="num_workers",
    effect="speed",
    when="next epoch",
    note="of a DataLoader without `persistent_workers`",
)
@pytest.mark.live_safe(framework="FSDP2, own loop", knob="pause", effect="speed", when="next iteration")
@pytest.mark.live_safe(
    framework="FSDP2, own loop",
    knob="checkpoint",
    effect="speed",
    when="next iteration",
    note="its handler gathers the weights of all ranks",
)
def test_what_is_fast_changes_nothing_else_under_fsdp2(node: TestNode, tmp_path: Path, proof: Proof) -> None:
    _speed("fsdp2", node, tmp_path, proof)


def _speed(mode: str, node: TestNode, folder: Path, proof: Proof) -> None:
    run = f"own-{mode}"
    node.daemon()
    child = _start(node, mode, folder)
    _training(node, child, run)
    _hoptui(node, "set", run, "micro_batch=4", "--yes")
    _hoptui(node, "set", run, "num_workers=1", "--yes")
    _hoptui(node, "pause", run)
    _hoptui(node, "resume", run)
    _hoptui(node, "checkpoint", run)
    _hoptui(node, "set", run, "micro_batch=8", "num_workers=0", "--yes")
    _end(node, child, run)
    ranks = _ranks(folder)
    _equal(proof, ranks)
    assert {value for _, name, value in ranks[0]["trace"] if name == "micro_batch"} == {4, 8}
    assert {0, 1} == set(ranks[0]["workers"])
    _all_seen(proof, ranks)
    saved = [torch.load(folder / f"checkpoint-{rank}.pt") for rank in range(2)]
    assert all(torch.equal(saved[0][name], saved[1][name]) for name in saved[0])

    reference = own_loop.unchanged([rank["seen"] for rank in ranks], ranks[0]["steps"])
    proof.unchanged(ranks[0]["weights"], reference, tolerance=1e-9)
