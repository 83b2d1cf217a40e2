"""Two processes with a GPU each: sums over NCCL, the training of one process, and an end with a reason for
both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from hoptui_trainer.common.checkpoint import read_checkpoint
from tests.trainer.gpu.test_checkpoints import assert_near

pytestmark = pytest.mark.gpus(count=2)

ROOT = Path(__file__).resolve().parents[3]
PATH = os.pathsep.join((str(ROOT), *filter(None, (os.environ.get("PYTHONPATH"),))))
LIMIT_S = 80.0
END_S = 30.0
"""So soon the other rank ends after one is gone."""
SAME = 1e-4
"""How far weights of one rank and of two may be apart: sums are made in another order."""

BEGIN = """
import json, os, sys, time, torch
torch.set_num_threads(1)
import hoptui
from hoptui_trainer.common.ranks import join
from hoptui_trainer.common.signals import StopOnSignal

kind = sys.argv[1]

def say(**found):
    os.write(1, (json.dumps(found) + "\\n").encode())  # in one piece: the ranks share this pipe
"""

OPERATIONS = """
from hoptui_trainer.common.device import gpu_uuid
from hoptui_trainer.common.cuda_graphs import WARM_UPS, graphs
with join(kind) as ranks:
    device = torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
    x = torch.full((1 << 20,), float(ranks.rank + 1), device=device)
    ranks.add(x)
    value, recorded, seen = torch.zeros(1024, device=device), graphs(device), []

    def one():
        value.add_(1)

    for turn in range(WARM_UPS + 4):
        recorded.run("add one", one)
        ranks.add(value)
        seen.append(float(value[0]))
    say(
        rank=ranks.rank,
        sum=[float(x.min()), float(x.max())],
        seen=seen,
        captured=recorded.captured,
        device=str(device),
        visible=os.environ["CUDA_VISIBLE_DEVICES"],
        shown=torch.cuda.device_count(),
        uuid=gpu_uuid(device),
        turns=ranks.takes_turns,
        all=[ranks.all(True), ranks.all(ranks.rank == 0)],
        share=ranks.share(b"of rank %d" % ranks.rank).decode(),
        gather=ranks.gather(ranks.rank),
    )
"""

COMPILES = """
from pathlib import Path
from torch._dynamo.utils import counters
from hoptui_trainer.common.compilation import compiled

with join(kind) as ranks:
    x = torch.randn(1 << 22, device=kind)
    fast = compiled(lambda x: x.cos() * x + 1, "default")
    with ranks.turn(compiles=True):
        fast(x)
        torch.cuda.synchronize()
        kept = sorted(path.name for path in Path(sys.argv[2]).rglob("*.best_config"))
    seen = counters["inductor"]
    say(rank=ranks.rank, kept=kept, hits=seen["fxgraph_cache_hit"], misses=seen["fxgraph_cache_miss"])
"""

TRAINS = """
import dataclasses
from pathlib import Path
from hoptui_trainer.lm.job import LMOptions
from hoptui_trainer.lm.train import train as train_lm
from hoptui_trainer.ppo import collector, update
from hoptui_trainer.ppo.job import PPOOptions
from hoptui_trainer.ppo.train import train as train_ppo
from hoptui_trainer.vision.job import VisionOptions
from hoptui_trainer.vision.train import train as train_vision

collector.compiled = update.compiled = lambda function, *_, **__: function  # graphs of eager functions
folder, world = Path(sys.argv[2]), int(os.environ.get("WORLD_SIZE", "1"))
common = {"iterations": 4, "evaluate_every": 0, "device": kind}
exact = {"precision": "fp32", "compile": "off"}
ppo = {"num_envs": 32 // world, "rollout_len": 16, "minibatch_size": 128, "epochs": 2, "precision": "fp32"}
for env, policy in (("CartPole-v1", {"policy": "mlp"}), ("CartPole-NoVel", {"policy": "tiny", "context": 4})):
    knobs = {**ppo, **policy, "compile": "default" if kind == "cuda" else "off"}
    train_ppo(PPOOptions(**common, env=env, checkpoint_dir=folder / env, knobs=knobs), lambda _: None)
lm = LMOptions(**common, preset="tiny", corpus=folder.parent / "corpus", corpus_mb=0.0, eval_tokens=512,
               checkpoint_dir=folder / "lm")
batch = {"batch_tokens": 512, "micro_batch": 3, "seq_len": 32}
train_lm(lm, {**batch, **exact}, lambda _: None)
if world > 1:
    for shard in ("grad", "full"):
        sharded = dataclasses.replace(lm, shard=shard, checkpoint_dir=folder / shard)
        train_lm(sharded, {**batch, **exact}, lambda _: None)
vision = VisionOptions(**common, preset="tiny", checkpoint_dir=folder / "vision")
train_vision(vision, {"batch_size": 31, "micro_batch": 8, **exact}, lambda _: None)
say(world=world)
"""

JOBS = {"CartPole-v1": "ppo", "CartPole-NoVel": "ppo", "lm": "lm", "vision": "vision"}
"""Their folders, and the workload of each."""

RESTARTS = """
from tests.sdk.two_ranks import meet_always
from tests.trainer.steered import trained

meet_always()
trained({"command": sys.argv[2:], "after": {"2": {"d_model": 256}}})
"""

LOSES_ONE = """
run = hoptui.connect("lost")
with join(kind) as ranks, StopOnSignal(run), ranks.guard(run):
    x = torch.ones(1 << 20, device=kind)
    ranks.add(x)
    say(rank=ranks.rank, pid=os.getpid(), sum=float(x[0]))
    if ranks.rank == 1:
        time.sleep(1)
        FAIL
    ranks.add(x)
    if kind == "cuda":
        torch.cuda.synchronize()  # waits inside of NCCL for a rank that never comes
"""
FAILS = {
    "killed": ("os.kill(os.getpid(), 9)", "rank 1 vanished"),
    "raised": ('raise ValueError("no such batch")', "rank 1: ValueError: no such batch"),
}


def prepared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus of small files, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    corpus = folder / "corpus"
    corpus.mkdir()
    for number in range(60):
        (corpus / f"{number}.txt").write_text(" ".join(str(number * n % 97) for n in range(200)))
    return corpus


@contextmanager
def started(world: int, script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A script in so many processes, by torchrun if there are several; none is left afterwards."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world), "--no-python"]
    several = [sys.executable, *torchrun] if world > 1 else []
    child = subprocess.Popen(
        [*several, sys.executable, "-c", BEGIN + script, *arguments],
        env={**os.environ, "HOPTUI": "off", "OMP_NUM_THREADS": "1", "PYTHONPATH": PATH},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        family = psutil.Process(child.pid).children(recursive=True) if child.poll() is None else []
        for process in family:
            process.kill()
        child.kill()
        child.communicate(timeout=10)


def ended(child: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """What a script said that ended well."""
    out, err = child.communicate(timeout=LIMIT_S)
    assert child.returncode == 0, err
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def test_sums_and_graphs_beside_them(device: torch.device) -> None:
    with started(2, OPERATIONS, device.type) as child:
        found = sorted(ended(child), key=lambda each: int(each["rank"]))
    doubled = [2.0]
    while len(doubled) < len(found[0]["seen"]):
        doubled.append(2 * (doubled[-1] + 1))  # one more on each of two ranks, then the sum
    for each in found:
        assert each["sum"] == [3.0, 3.0]
        assert each["seen"] == doubled
        assert (each["all"], each["share"], each["gather"]) == ([True, False], "of rank 0", [0, 1])
        assert each["captured"] == 1
        assert each["device"] == "cuda:0"  # each sees its own alone
        assert (each["shown"], each["turns"]) == (1, True)
    for what in ("visible", "uuid"):
        assert len({each[what] for each in found}) == 2


def test_one_rank_compiles_and_measures_for_the_other(
    tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with started(2, COMPILES, device.type, str(tmp_path)) as child:
        first, second = sorted(ended(child), key=lambda each: int(each["rank"]))
    assert (first["hits"], first["misses"]) == (0, 1)
    assert (second["hits"], second["misses"]) == (1, 0)
    assert first["kept"] == second["kept"]  # which block is fastest was found once
    assert len(first["kept"]) == 1


@pytest.mark.timeout(2 * LIMIT_S)
def test_two_ranks_train_as_one(
    tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(tmp_path, monkeypatch)
    for world, name in ((1, "one"), (2, "two")):
        with started(world, TRAINS, device.type, str(tmp_path / name)) as child:
            assert ended(child) == [{"world": world}] * world
    for folder, workload in JOBS.items():
        assert_near(tmp_path / "one" / folder, tmp_path / "two" / folder, workload, SAME)
    for shard in ("grad", "full"):
        assert_near(tmp_path / "one" / "lm", tmp_path / "two" / shard, "lm", SAME)


def test_two_ranks_restart_for_another_model(
    tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new processes meet over NCCL as the old ones did, on GPUs that those have left."""
    typed = {
        "preset": "tiny",
        "corpus": prepared(tmp_path, monkeypatch),
        "corpus-mb": 0,
        "eval-tokens": 512,
        "iterations": 6,
        "evaluate-every": 0,
        "device": device.type,
        "checkpoint-dir": tmp_path / "lm",
        "compile": "off",
    }
    command = ["lm", "--json", *(f"--{name}={value}" for name, value in typed.items())]
    with started(2, RESTARTS, device.type, *command) as child:
        (result,) = ended(child)
    assert (result["ending"], result["iterations"], result["restarts"]) == ("finished", 6, 1)
    saved = read_checkpoint(tmp_path / "lm", "lm")
    assert (saved["born"], saved["shape"]["d_model"]) == (3, 256)


@pytest.mark.parametrize("how", FAILS)
def test_a_rank_that_is_lost_ends_the_other_with_the_reason(how: str, device: torch.device) -> None:
    fail, reason = FAILS[how]
    with started(2, LOSES_ONE.replace("FAIL", fail), device.type) as child:
        assert child.stdout is not None
        pids = [json.loads(child.stdout.readline()) for _ in range(2)]
        assert [each["sum"] for each in pids] == [2.0, 2.0]
        began = time.monotonic()
        said = child.communicate(timeout=LIMIT_S)[1]
        seconds = time.monotonic() - began
    assert child.returncode == 1
    assert f"hoptui train: {reason}\n" in said
    assert seconds < END_S
    assert not any(psutil.pid_exists(each["pid"]) for each in pids)
