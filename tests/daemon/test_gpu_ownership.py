"""Whose GPU and whose process: CUDA's rules, Slurm's indices, process trees, and no guesses."""

from __future__ import annotations

from typing import Any

import pytest

from hoptui.daemon.state.gpu_ownership import Claim, Resolved, assign, resolve, together
from hoptui.domain.devices import GpuInfo, GpuProcess

GPUS = tuple(GpuInfo(uuid=f"GPU-{i}{i}aa-1", index=i, name="H100") for i in range(4))
MIG = (
    GpuInfo(uuid="GPU-00aa-1", index=0, name="H100"),
    GpuInfo(uuid="MIG-c0ffee", index=0, name="H100 MIG 1g.10gb", parent="GPU-00aa-1"),
    GpuInfo(uuid="MIG-cafe01", index=0, name="H100 MIG 1g.10gb", parent="GPU-00aa-1"),
)
MIXED = (*GPUS[:2], GpuInfo(uuid="GPU-old", index=2, name="A100"))


def indices(found: Resolved, gpus: tuple[GpuInfo, ...] = GPUS) -> list[int]:
    return [gpu.index for gpu in gpus if gpu.uuid in found.gpus]


@pytest.mark.parametrize(
    ("claim", "expected", "said"),
    [
        (Claim(declared=("GPU-22aa-1",), visible="0"), [2], True),
        (Claim(declared=("22aa",)), [2], True),  # PyTorch's form, shortened
        (Claim(declared=("GPU-no-such",)), [], True),
        (Claim(visible="GPU-33,GPU-11aa-1"), [1, 3], True),
        (Claim(visible="GPU-33,GPU-,GPU-11"), [3], True),  # ambiguous: the list ends there
        (Claim(visible="GPU-33", slurm="0,1"), [3], True),
        (Claim(visible="0,1", slurm="2,3"), [2, 3], True),
        (Claim(visible="0,1", slurm="2,7"), [0, 1], True),  # Slurm counts GPUs that are not shown here
        (Claim(slurm="1"), [1], True),
        (Claim(visible="1,3"), [1, 3], True),
        (Claim(visible=" 1 , 3 "), [1, 3], True),
        (Claim(visible="1,9,3"), [1], True),
        (Claim(visible="2,-1,3"), [2], True),
        (Claim(visible="1,x,3"), [1], True),
        (Claim(visible="01," + "9" * 5000), [1], True),
        (Claim(visible="0,GPU-22,3"), [0, 2, 3], True),
        (Claim(visible="", slurm="1"), [], True),
        (Claim(visible="-1"), [], True),
        (Claim(visible="NoDevFiles"), [], True),
        (Claim(), [], False),
    ],
)
def test_what_a_run_says(claim: Claim, expected: list[int], said: bool) -> None:
    found = resolve(claim, GPUS, seen=())
    assert (indices(found), found.said) == (expected, said)


def test_mig_instances_are_devices_of_their_own() -> None:
    assert resolve(Claim(visible="MIG-c0ff"), MIG, ()).gpus == ("MIG-c0ffee",)
    assert resolve(Claim(visible="MIG-c"), MIG, ()).gpus == ()  # either of two
    assert resolve(Claim(visible="0"), MIG, ()).gpus == ("GPU-00aa-1",)


def test_indices_tell_nothing_where_gpus_differ() -> None:
    assert resolve(Claim(visible="0"), MIXED, seen=("GPU-old",)) == Resolved(("GPU-old",), said=False)
    assert resolve(Claim(visible="GPU-old"), MIXED, seen=()).gpus == ("GPU-old",)


def test_without_a_word_the_drivers_view_decides() -> None:
    assert indices(resolve(Claim(), GPUS, seen=("GPU-33aa-1", "GPU-11aa-1"))) == [1, 3]
    assert resolve(Claim(), GPUS, seen=("GPU-gone",)).gpus == ()


def who(processes: list[tuple[str, int]], **given: Any) -> list[str]:
    made = {"chains": {}, "runs": {100: "one", 200: "two"}, "said": {}}
    listed = tuple(GpuProcess(gpu=gpu, pid=pid) for gpu, pid in processes)
    return [process.run for process in assign(listed, **(made | given))]


def test_a_process_belongs_to_the_run_whose_tree_it_is_in() -> None:
    chains = {100: (100, 1), 150: (150, 120, 100, 1), 250: (250, 200, 100, 1), 300: (300, 1)}
    assert who([("a", 100), ("a", 150), ("b", 250), ("b", 300)], chains=chains) == ["one", "one", "two", ""]


def test_a_hidden_process_is_the_only_claimants() -> None:
    assert who([("a", 7)], said={"a": ["one"]}) == ["one"]
    assert who([("a", 7)], said={"a": ["one", "two"]}) == [""]
    assert who([("a", 7), ("a", 8)], said={"a": ["one"]}) == ["", ""]
    assert who([("a", 7)]) == [""]


def test_a_hidden_process_beside_the_runs_own_is_somebody_elses() -> None:
    chains = {100: (100, 1)}
    assert who([("a", 100), ("a", 7)], chains=chains, said={"a": ["one"]}) == ["one", ""]
    assert who([("b", 100), ("a", 7)], chains=chains, said={"a": ["one"]}) == ["one", "one"]


def test_the_gpus_of_all_ranks_are_the_runs() -> None:
    mine = [resolve(Claim(declared=(GPUS[i].uuid,)), GPUS, ()) for i in (2, 0)]
    assert indices(together(mine, GPUS)) == [0, 2]
    assert together(mine, GPUS).said
    assert together([resolve(Claim(), GPUS, ())], GPUS) == Resolved()
