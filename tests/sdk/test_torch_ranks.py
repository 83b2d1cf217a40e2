"""Ranks that torch.distributed has brought together agree by themselves."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.sdk.two_ranks import both

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
import hoptui
from tests.sdk.two_ranks import command, outcomes, report

def meet():
    store = dist.FileStore(sys.argv[2] + "/store", 2)
    dist.init_process_group("gloo", store=store, rank=int(sys.argv[1]), world_size=2)

if "RANK" not in os.environ:
    meet()
run = hoptui.connect("torch")
knob = run.knob("n", 4, min=1, max=64)
refused = run._core.state.inbox.refusal
if "RANK" in os.environ:
    meet()
rank, ones = dist.get_rank(), torch.ones(3)
applied = None
for i in run.iterations(100_000):
    if i == 5 and rank == 0:
        command(run, knob="n", value=8)
    dist.all_reduce(ones)
    time.sleep(0.005)
    if knob.value == 8 and applied is None:
        applied = i
        if rank == 1:
            run.stop("SIGTERM")
stages = [o.stage for o in outcomes(run)]
report(refused=refused, applied=applied, step=run.step, stages=stages, world=run._core.state.world,
       by=run._core.state.stop_by)
run.close()
"""


TORCHRUN = tuple({"RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2))
"""What torchrun sets. Then `connect` may come before the ranks have met."""


@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    "torchrun", [pytest.param(False, marks=pytest.mark.slow), True], ids=["connect after", "connect before"]
)
def test_a_knob_changes_at_the_same_iteration_and_one_signal_stops_both(
    torchrun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    first, second = both(SCRIPT, of_ranks=TORCHRUN if torchrun else ({}, {}), begin="")
    assert (first["refused"], second["refused"]) == (({"world": 2},) * 2 if torchrun else (None, None))
    assert first["applied"] == second["applied"] > 5
    assert first["step"] == second["step"]
    assert first["stages"] == ["applied"]
    assert second["stages"] == []
    assert first["world"] == second["world"] == 2
    assert first["by"] == second["by"] == "SIGTERM on rank 1"


EXIT = """
import datetime, sys, time
import torch.distributed as dist
import hoptui
from hoptui.sdk.rank_store import TorchStore

class Slow(TorchStore):
    # Its last call takes longer than the end of the run waits for.
    def set(self, key, value):
        if "left/" in key:
            self._store.wait(["never"], datetime.timedelta(seconds=1.5))

class Late:
    # The interpreter has ended for threads when this is destroyed.
    def __del__(self, sleep=time.sleep):
        sleep(3)

store = dist.TCPStore("127.0.0.1", 0, 1, True, timeout=datetime.timedelta(seconds=30))
late = Late()
run = hoptui.connect("exit", ranks=Slow(store, 0, 2))
for i in run.iterations(3):
    time.sleep(0.01)
print("trained", flush=True)
"""


@pytest.mark.guarantee("exit-in-store")
@pytest.mark.timeout(100)
def test_a_process_does_not_abort_if_it_exits_while_a_thread_is_inside_a_call_of_the_store() -> None:
    environ = os.environ | {"HOPTUI": "off"}
    done = subprocess.run(
        [sys.executable, "-c", EXIT], env=environ, capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.stdout, done.returncode) == ("trained\n", 0), done.stderr
