"""Ranks that torch.distributed has brought together agree by themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 100.0
SCRIPT = """
import os, sys, time, json
import torch, torch.distributed as dist
import hoptui
from tests.sdk.two_ranks import command, outcomes

def meet():
    store = dist.FileStore(sys.argv[2], 2)
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
print(json.dumps({"refused": refused, "applied": applied, "step": run.step, "stages": stages,
                  "world": run._core.state.world, "by": run._core.state.stop_by}), flush=True)
run.close()
"""


def trained(folder: Path, *, torchrun: bool) -> list[dict[str, Any]]:
    """What two ranks found. `torchrun`: with its variables, and `connect` before they have met."""
    own = {"HOPTUI": "off", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    inherited = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(folder / "store")],
            env={**inherited, **own, **({"RANK": str(rank), "WORLD_SIZE": "2"} if torchrun else {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [child.communicate(timeout=LIMIT_S) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    for child, (_, err) in zip(children, said, strict=True):
        assert child.returncode == 0, err
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


@pytest.mark.timeout(LIMIT_S + 20)
@pytest.mark.parametrize("torchrun", [False, True], ids=["connect after", "connect before"])
def test_a_knob_changes_at_the_same_iteration_and_one_signal_stops_both(
    tmp_path: Path, torchrun: bool
) -> None:
    first, second = trained(tmp_path, torchrun=torchrun)
    assert (first["refused"], second["refused"]) == (({"world": 2},) * 2 if torchrun else (None, None))
    assert first["applied"] == second["applied"] > 5
    assert first["step"] == second["step"]
    assert first["stages"] == ["applied"]
    assert second["stages"] == []
    assert first["world"] == second["world"] == 2
    assert first["by"] == second["by"] == "SIGTERM on rank 1"
