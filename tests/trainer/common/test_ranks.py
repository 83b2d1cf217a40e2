"""Two processes that train together: what they agree on, and what the one is told when the other is gone."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import hoptui
from hoptui.protocol.messages import Command
from hoptui_trainer.common.errors import UsageError
from hoptui_trainer.common.ranks import ALONE, join, sharers
from tests.golden import Golden
from tests.run_state import run_state
from tests.trainer.warm import Warm, ranks

pytestmark = pytest.mark.slow

LIMIT_S = 60.0  # by far less than the limits of collectives: what ends sooner was ended by the heartbeat
BEGIN = """
import os, sys, time, torch
torch.set_num_threads(1)
from hoptui_trainer.common.ranks import join
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python")
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

ROOT = str(Path(__file__).resolve().parents[3])


@contextmanager
def torchrun(script: str) -> Iterator[Warm]:
    """A script as two ranks under torchrun; all of them are gone afterwards."""
    environment = {**os.environ, "HOPTUI": "off", "OMP_NUM_THREADS": "1", "PYTHONPATH": ROOT}
    with Warm(*TORCHRUN, sys.executable, "-c", BEGIN + script, environment=environment) as both:
        try:
            yield both
        finally:
            if both.returncode is None:
                for child in psutil.Process(both.pid).children(recursive=True):
                    child.kill()


AGREEING = """
import collections, json, random
import hoptui
from tests.sdk.two_ranks import command, meet_always, outcomes

meet_always()

def operations():
    tensor = torch.arange(3.0) * (ranks.rank + 1)
    ranks.add(tensor)
    return {
        "rank": [ranks.rank, ranks.world, ranks.local_rank, ranks.local_world],
        "add": tensor.tolist(),
        "all": [ranks.all(True), ranks.all(ranks.rank == 0), ranks.all(False)],
        "share": ranks.share(b"of rank %d" % ranks.rank).decode(),
        "nothing": ranks.share(b"" if ranks.rank == 0 else b"x").decode(),
        "gather": ranks.gather({"from": ranks.rank}),
    }

rng = random.Random(7)
held = {"whole": 4, "real": 0.5, "flag": False, "word": "fp32"}
limits = {"whole": {"min": 1, "max": 64}, "real": {"min": 0.0, "max": 1.0},
          "word": {"choices": ("fp32", "bf16")}}
unlucky = {0: (13, 0.9), 1: (17, 0.1)}

def put(name, value):
    if value in unlucky[ranks.rank]:
        raise ValueError(f"{name} is unlucky")
    held[name] = value

def asked():
    name = rng.choice([*held, "none"])
    values = {"whole": rng.choice((0, 5, 13, 17, 32)), "real": rng.choice((0.1, 0.2, 0.9, 2.0)),
              "flag": rng.random() < 0.5, "word": rng.choice(("bf16", "fp32", "fp8")), "none": 1}
    return {"knob": name, "value": values[name]}

def commands():
    stages, given = collections.Counter(), 0
    run = hoptui.connect("agreed", ranks=ranks.store)
    knobs = [
        run.knob(name, value, apply=lambda v, n=name: put(n, v), read=lambda n=name: held[n],
                 **limits.get(name, {}))
        for name, value in held.items()
    ]
    for i in run.iterations():
        everyone = ranks.gather([(k.value, k.version, k.in_effect, held[k.name]) for k in knobs])
        assert everyone[0] == everyone[1], (i, everyone)
        if ranks.rank == 1:
            if i >= 80:
                run.stop("SIGTERM")
            continue
        for _ in range(rng.choice((0, 1, 2))):
            given += 1
            command(run, **asked(), id=f"c{given}")
        if i % 10 == 9:
            command(run, "pause", id=f"p{i}", hold_s=0.01)
        stages.update(o.stage for o in outcomes(run))
    return {"given": given, "stages": stages, "step": run.step, "by": run._core.state.stop_by}

with join("cpu") as ranks:
    found = operations() | commands()
ranks.close()
with join("cpu") as ranks:  # another job of the same processes, in a store that remembers the first
    found["again"] = ranks.gather(ranks.rank)
    os.write(1, (json.dumps(found) + "\\n").encode())  # in one piece: the ranks share this pipe
"""


@pytest.fixture(scope="module")
def agreed() -> list[dict[str, Any]]:
    """What two ranks under torchrun found, by rank."""
    with torchrun(AGREEING) as both:
        out, err = both.communicate(timeout=LIMIT_S)
    assert both.returncode == 0, err
    assert "vanished" not in err
    return sorted((json.loads(line) for line in out.splitlines()), key=lambda found: int(found["rank"][0]))


def test_operations_on_two_ranks(agreed: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(agreed):
        assert found["rank"] == [rank, 2, rank, 2]
        assert found["add"] == [0.0, 3.0, 6.0]
        assert found["all"] == [True, False, False]
        assert (found["share"], found["nothing"]) == ("of rank 0", "")
        assert found["gather"] == [{"from": 0}, {"from": 1}]
        assert found["again"] == [0, 1]


def test_after_any_commands_both_ranks_have_the_same_knobs_at_every_boundary(
    agreed: list[dict[str, Any]],
) -> None:
    """What is drawn at random: knobs of four kinds, values out of bounds, setters that raise on the one or
    the other rank."""
    first, second = agreed  # each has compared all values at each boundary
    assert first["given"] >= 50
    assert first["stages"]["applied"] > 20
    assert first["stages"]["failed"] > 5
    assert first["step"] == second["step"]
    assert first["by"] == second["by"] == "SIGTERM on rank 1"


TRAINS = """
import hoptui
from hoptui_trainer.common.signals import StopOnSignal
run = hoptui.connect("lost")
run.close = lambda reason, detail: os.write(1, f"{reason}: {detail}".encode())
with join("cpu") as ranks, StopOnSignal(run), ranks.guard(run):
    ranks.all(True)
"""
VANISHES = """
    if ranks.rank == 1:
        os.kill(os.getpid(), 9)
    ranks.add(torch.zeros(1))
"""
RAISES_BESIDE_A_HANG = """
    if ranks.rank == 1:
        raise ValueError("BATCH")
    while True:
        time.sleep(600)
"""


def test_a_killed_rank_is_the_reason_that_the_others_give(golden: Golden) -> None:
    """Also under torchrun, which stops them meanwhile."""
    with torchrun(TRAINS + VANISHES) as both:
        said = both.communicate(timeout=LIMIT_S)[1]
    assert both.returncode == 1
    golden("".join(line for line in said.splitlines(keepends=True) if line.startswith("hoptui train: ")))
    assert "LostRankError: rank 1 vanished" in said


def test_a_rank_that_raises_ends_one_that_waits_for_ever(golden: Golden) -> None:
    with ranks("-c", BEGIN + TRAINS + RAISES_BESIDE_A_HANG) as (waits, raises):
        out, err = waits.communicate(timeout=LIMIT_S)
        assert waits.returncode == 1
        golden(err)
        assert out == "exception: rank 1: ValueError: BATCH"  # how the run was closed
        assert "ValueError: BATCH" in raises.communicate(timeout=10)[1]
        assert raises.returncode == 1


def test_cores_are_shared_only_where_a_launcher_does_not_divide_them() -> None:
    assert sharers([{0, 1, 2, 3}, {0, 1, 2, 3}], 1) == 2
    assert [sharers([{0, 1}, {2, 3}, {3, 4}], rank) for rank in range(3)] == [1, 2, 2]


def test_alone_a_run_is_as_without_ranks() -> None:
    run = hoptui.connect("alone", ranks=ALONE.store)
    knob = run.knob("n", 4, min=1, max=9)
    run_state(run).inbox.receive(
        Command(id="c", run=run.id, epoch=1, verb="set", knob="n", value=5), time.monotonic(), 0
    )
    assert run.boundary(0)
    assert (run_state(run).rank, run_state(run).world, knob.value, run_state(run).inbox.refusal) == (
        0,
        1,
        5,
        None,
    )


def test_alone_nothing_waits() -> None:
    tensor = torch.ones(2)
    with ALONE as alone:
        alone.add(tensor)
        assert tensor.tolist() == [1.0, 1.0]
        assert (alone.all(True), alone.all(False)) == (True, False)
        assert (alone.share(b"x"), alone.share(None)) == (b"x", b"")
        assert alone.gather(3) == [3]


def place(monkeypatch: pytest.MonkeyPatch, **given: str) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)


TWO = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}


def test_without_ranks_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch)
    assert join("cpu") is ALONE
    place(monkeypatch, RANK="0", WORLD_SIZE="1")
    assert join("cpu") is ALONE


def test_after_an_error_the_processes_of_several_ranks_are_of_no_more_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place(monkeypatch, **TWO)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    with pytest.raises(UsageError, match="last job in these processes ended by an error: start them anew"):
        join("cpu")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"MASTER_ADDR": ""}, "not MASTER_ADDR: start ranks with torchrun"),
        ({"RANK": "two"}, "RANK=two: this is no whole number"),
        ({"RANK": "2"}, "RANK=2: with WORLD_SIZE=2 there is no such rank"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK=2: with LOCAL_WORLD_SIZE=2 there is no such rank"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000: this is no port"),
    ],
)
def test_a_bad_environment_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], said: str
) -> None:
    place(monkeypatch, **(TWO | changed))
    with pytest.raises(UsageError, match=said):
        join("cpu")
