"""Ranks that torch.distributed has brought together agree by themselves."""

from __future__ import annotations

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
@pytest.mark.parametrize("torchrun", [False, True], ids=["connect after", "connect before"])
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
