"""Whose GPU and whose process: CUDA's rules, Slurm's indices, process trees, and no guesses."""

from __future__ import annotations

from typing import Any

import pytest

from hoptui.daemon.state.gpu_ownership import Claim, Contradiction, Resolved, assign, resolve, together
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


ELSEWHERE: list[tuple[Claim, list[int], str]] = [
    (Claim(visible="1"), [1], "visible"),
    (Claim(visible="1,2"), [1, 2], "visible"),
    (Claim(visible="GPU-11"), [1], "visible"),
    (Claim(visible=""), [], "visible"),
    (Claim(slurm="2"), [2], "slurm"),
    (Claim(slurm="2", visible="1"), [2], "slurm"),
]


@pytest.mark.parametrize(("claim", "named", "source"), ELSEWHERE)
def test_the_driver_wins_where_an_environment_names_none_of_its_gpus(
    claim: Claim, named: list[int], source: str
) -> None:
    found = resolve(claim, GPUS, seen=("GPU-00aa-1", "GPU-33aa-1"), listed=("GPU-00aa-1",))
    expected = Contradiction(source, tuple(GPUS[i].uuid for i in named), ("GPU-00aa-1",))
    assert found == Resolved(("GPU-00aa-1",), said=False, contradiction=expected)


@pytest.mark.parametrize("claim", [claim for claim, _, _ in ELSEWHERE])
def test_an_environment_stays_where_the_process_is_on_no_gpu(claim: Claim) -> None:
    assert resolve(claim, GPUS, seen=("GPU-00aa-1",)) == resolve(claim, GPUS, seen=())
    assert resolve(claim, GPUS, seen=()).said


def test_a_stray_context_beside_its_own_gpu_contradicts_nothing() -> None:
    found = resolve(Claim(visible="3"), GPUS, seen=(), listed=("GPU-00aa-1", "GPU-33aa-1"))
    assert (indices(found), found.said, found.contradiction) == ([3], True, None)


def test_a_gpu_that_nobody_knows_is_no_contradiction() -> None:
    found = resolve(Claim(visible="GPU-no-such"), GPUS, seen=(), listed=("GPU-00aa-1",))
    assert found == Resolved(("GPU-00aa-1",))


def test_slurm_may_be_wrong_where_cuda_is_right() -> None:
    found = resolve(Claim(slurm="2", visible="0"), GPUS, seen=(), listed=("GPU-00aa-1",))
    assert (indices(found), found.said, found.contradiction) == ([0], True, None)


def test_a_declaration_stays_and_the_contradiction_is_known() -> None:
    found = resolve(Claim(declared=("GPU-22",)), GPUS, seen=(), listed=("GPU-00aa-1",))
    assert (indices(found), found.said) == ([2], True)
    assert found.contradiction == Contradiction("declared", ("GPU-22aa-1",), ("GPU-00aa-1",))


def test_a_mig_instance_and_its_gpu_do_not_contradict_each_other() -> None:
    for visible, listed in (("MIG-c0ff", "GPU-00aa-1"), ("0", "MIG-c0ffee"), ("MIG-c0ff", "MIG-c0ffee")):
        assert resolve(Claim(visible=visible), MIG, (), (listed,)).contradiction is None
    other = resolve(Claim(visible="MIG-c0ff"), MIG, (), ("MIG-cafe01",))
    assert other.gpus == ("MIG-cafe01",)


def test_uuids_contradict_also_where_gpus_differ() -> None:
    assert resolve(Claim(visible="GPU-old"), MIXED, (), ("GPU-11aa-1",)).gpus == ("GPU-11aa-1",)
    found = resolve(Claim(visible="0"), MIXED, ("GPU-old",), ("GPU-old",))
    assert found == Resolved(("GPU-old",), said=False)


def test_without_a_claim_the_gpus_of_all_processes_are_the_runs() -> None:
    found = resolve(Claim(), GPUS, seen=("GPU-00aa-1", "GPU-11aa-1"), listed=("GPU-00aa-1",))
    assert indices(found) == [0, 1]


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
