"""The comparison of NCCL's account of a hang with that of hoptui, without GPUs.

A stand-in replays an answer of NCCL, and two ranks under gloo hang as those under NCCL do.
"""

from __future__ import annotations

import json

import pytest

from benchmarks import nccl_ras
from benchmarks.measure import bench
from tests.cli.ras_service import answer, replaying, service

PIDS = (411, 412)


def under_gloo(script: str) -> str:
    """The script of a rank, on the CPU."""
    script = (
        script.replace('"nccl"', '"gloo"').replace(", device_id=device", "").replace(", device=device", "")
    )
    script = script.replace("print(torch.cuda.nccl.version(), flush=True)", "print('none', flush=True)")
    return "\n".join(
        line for line in script.splitlines() if "torch.cuda" not in line and "torch.device" not in line
    )


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_hoptui_and_nccl_agree_on_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_ras, "RANK", under_gloo(nccl_ras.RANK))
    with bench() as node, node.session():
        pids, version = nccl_ras.hang(node, nccl_ras.free_port())
        assert version == "none"
        with service(replaying(answer(pids))) as port:
            found = nccl_ras.compare(node, port, pids)
    assert found["met"] == dict.fromkeys(found["met"], True)
    assert found["answer"] == json.loads(answer(pids))


def test_each_disagreement_is_found() -> None:
    said = json.loads(answer(PIDS))
    groups = [{"ranks": [1]}, {"ranks": [0]}]
    text = "NCCL: rank 1 has begun 5 × AllReduce, rank 0 has begun 6 ×\n"
    agreed = nccl_ras.checked(said, {"nccl": said, "groups": groups}, text, PIDS)
    assert list(agreed.values()) == [True] * 4
    other = json.loads(answer(PIDS).replace('"AllReduce": 5', '"AllReduce": 6'))
    cases = [
        (other, said, text, [False, False, False, True]),
        (said, None, text, [True, False, True, True]),
        (said, {**said, "timestamp": "later"}, text, [True, True, True, True]),
        (said, said, "NCCL answers", [True, True, False, True]),
    ]
    for raw, shown, printed, expected in cases:
        found = nccl_ras.checked(raw, {"nccl": shown, "groups": groups}, printed, PIDS)
        assert list(found.values()) == expected
    alone = nccl_ras.checked(said, {"nccl": said, "groups": groups[:1]}, text, PIDS)
    assert list(alone.values()) == [True, True, True, False]


def test_a_service_is_asked_by_its_own_protocol() -> None:
    asked: list[str] = []
    with service(replaying(answer(PIDS), asked=asked)) as port:
        assert nccl_ras.raw(port) == json.loads(answer(PIDS))
    assert asked == ["set format json", "verbose status"]
    with service(replaying("", formats=("text",))) as port, pytest.raises(ValueError, match="has no JSON"):
        nccl_ras.raw(port)
