"""CUDA tensors in `run.log`: copied asynchronously, read late, never during a graph capture."""

from __future__ import annotations

import pytest

import hoptui
from tests.run_state import queued_rows, run_state

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> hoptui.Run:
    monkeypatch.setenv("HOPTUI", "off")
    return hoptui.connect("cuda")


def rows(run: hoptui.Run) -> list[tuple[int, dict[str, float]]]:
    return [(step, row) for _, step, row in queued_rows(run_state(run))]


def test_tensors_arrive_late_with_their_own_step_and_value(run: hoptui.Run) -> None:
    loss = torch.zeros((), device="cuda")
    for i in run.iterations(4):
        loss.fill_(float(i))
        run.log(loss=loss, accuracy=torch.tensor(i / 10, device="cuda", dtype=torch.bfloat16), host=i)
        torch.cuda.synchronize()
    seen = {step: row["loss"] for step, row in rows(run) if "loss" in row}
    assert {
        0: 0.0,
        1: 1.0,
        2: 2.0,
    }.items() <= seen.items()  # the value at the time of the call, not the last one
    assert [step for step, row in rows(run) if "host" in row] == [0, 1, 2, 3]


def test_nothing_waits_for_the_device(run: hoptui.Run) -> None:
    busy = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    for _ in range(50):  # tens of milliseconds of work
        busy @ busy
    done.record()
    run.log(loss=busy[0, 0])
    assert not done.query()  # the call came back while the GPU was still at it
    torch.cuda.synchronize()
    run.log(i=1)
    assert any("loss" in row for _, row in rows(run))


def test_a_graph_being_captured_is_left_alone(run: hoptui.Run) -> None:
    value = torch.ones((), device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = value * 2
        run.log(doubled=doubled)
    graph.replay()
    torch.cuda.synchronize()
    assert doubled.item() == 2.0
    assert run_state(run).converter.bad == 1
