"""A straggler of real ranks under DistributedDataParallel over gloo."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TestNode, until

RANK = """
import sys, time
import torch, torch.distributed as dist
import hoptui

rank, late, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
more = torch.zeros(1000, requires_grad=True)
run = hoptui.connect("slow-backward", ranks="auto")
for _ in run.iterations():
    time.sleep(0.03)
    loss = model(torch.ones(8, 64)).square().mean()
    if rank == late:
        loss = loss + more.expand(10_000, 1000)[0].sum()  # views: only their gradient takes time
    optimizer.zero_grad()
    loss.backward()  # here
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_whose_own_backward_pass_is_slow_is_named(node: TestNode, tmp_path: Path, late: int) -> None:
    path = tmp_path / "train.py"
    path.write_text(RANK)
    (line,) = (n for n, text in enumerate(RANK.splitlines(), 1) if text.endswith("# here"))
    viewer = node.viewer()
    ranks = [
        node.spawn(
            [sys.executable, str(path), str(rank), str(late), str(tmp_path / "store")],
            RANK=str(rank),
            WORLD_SIZE="2",
        )
        for rank in range(2)
    ]

    def named() -> dict[str, Any] | None:
        for child in ranks:
            assert child.poll() is None, child.communicate()[1][-3000:]
        events = viewer.fetch(events=0).events
        return next((each.fields for each in events if each.code == "run.straggler"), None)

    fields = until(named, seconds=100, what="a straggler")
    where = fields["where"]
    assert fields["rank"] == late
    assert fields["others_wait"] > fields["waits"] + 0.1
    assert (where["file"], where["line"]) == (str(path), line)
    assert fields["share"] > fields["others_share"] + 0.1
