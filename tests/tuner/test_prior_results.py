"""Which runs are of one kind, and what is kept of them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from hoptui.domain.knobs import KnobSpec, KnobState, KnobValue
from hoptui.domain.tuning import Change
from hoptui.protocol.messages import CommandRecord, Flops, RunState
from hoptui.tuner.prior_results import MOST, TunerResult, best, key, with_newer

LAYERS = KnobSpec(name="layers", kind="int", default=12, cost="restart")
BATCH = KnobSpec(name="batch_tokens", kind="int", default=4096)
LR = KnobSpec(name="lr", kind="float", default=3e-4)
MICRO = KnobSpec(name="micro_batch", kind="int", default=32, effect="speed")
COMPILE = KnobSpec(name="compile", kind="str", default="auto", effect="speed", cost="rebuild")
RUN = RunState(
    run="abcd2345",
    name="lm",
    epoch=1,
    pid=1,
    started_wall=0.0,
    knobs=tuple(KnobState(spec=spec, value=spec.default) for spec in (LAYERS, BATCH, LR, MICRO, COMPILE)),
    headline="tokens_per_s",
    flops=Flops(per_unit=6e9, metric="tokens_per_s"),
    argv="train.py lm --preset 124m --seed 7 --micro-batch=32 --out /data/runs/7 --compile",
    versions={"torch": "2.12.0"},
)
H100 = ("NVIDIA H100 80GB HBM3",)


def declared(**defaults: bool | int | float | str) -> RunState:
    """The run with other defaults of its knobs."""
    knobs = tuple(
        structs.replace(k, spec=structs.replace(k.spec, default=defaults.get(k.spec.name, k.spec.default)))
        for k in RUN.knobs
    )
    return structs.replace(RUN, knobs=knobs)


@pytest.mark.parametrize(
    "other",
    [
        structs.replace(RUN, run="efgh2345", name="again", epoch=3, pid=9),
        structs.replace(RUN, argv="train.py --preset=124m lm --seed 8 --out /elsewhere --json --no-compile"),
        structs.replace(
            RUN, argv="/usr/bin/train.py train.py lm --preset 124m --resume last.ckpt --micro-batch 8"
        ),
        structs.replace(RUN, knobs=tuple(structs.replace(k, value=1, version=4) for k in RUN.knobs)),
        declared(lr=1e-3, micro_batch=64),
    ],
    ids=["another run", "another seed and place", "resumed", "turned since", "another rate and start"],
)  # fmt: skip
def test_the_same_kind(other: RunState) -> None:
    assert key(other, H100) == key(RUN, H100)


@pytest.mark.parametrize(
    "other",
    [
        declared(layers=24),
        declared(batch_tokens=8192),
        declared(compile="off"),
        structs.replace(RUN, argv=RUN.argv.replace("124m", "350m")),
        structs.replace(RUN, argv=RUN.argv.replace("lm", "vision")),
        structs.replace(RUN, flops=None),
        structs.replace(RUN, versions={"torch": "2.13.0"}),
        structs.replace(RUN, versions={}),
        structs.replace(RUN, world=2),
        structs.replace(RUN, knobs=RUN.knobs[:-1]),
    ],
    ids=["layers", "batch", "compile", "preset", "workload", "flops", "torch", "no torch", "ranks", "knobs"],
)
def test_another_kind(other: RunState) -> None:
    assert key(other, H100) != key(RUN, H100)


def turned(epoch: int, knob: str, before: int, value: int, **more: Any) -> CommandRecord:
    return CommandRecord(
        id="c", run=RUN.run, epoch=epoch, verb="set", knob=knob, before=before, effective=value,
        stage="applied", **more
    )  # fmt: skip


RESTARTED = structs.replace(declared(batch_tokens=16384, layers=24), epoch=3)


@pytest.mark.parametrize(
    ("records", "batch"),
    [
        ([turned(1, "batch_tokens", 4096, 8192), turned(2, "batch_tokens", 8192, 16384)], 4096),
        ([turned(1, "batch_tokens", 4096, 8192), turned(2, "batch_tokens", 32768, 16384)], 32768),
        ([turned(1, "batch_tokens", 4096, 8192)], 16384),
        ([turned(1, "x", 1, 2, followed=(Change(knob="batch_tokens", before=4096, value=16384),))], 4096),
        ([turned(3, "batch_tokens", 16384, 4096)], 16384),
        ([], 16384),
    ],
    ids=[
        "as it was left",
        "declared anew between",
        "declared anew",
        "followed",
        "turned since",
        "not turned",
    ],
)
def test_what_was_turned_before_a_restart_makes_no_other_kind(
    records: list[CommandRecord], batch: int
) -> None:
    moved = [turned(2, "layers", 12, 24, code="restarted"), *records]
    assert key(RESTARTED, H100, moved) == key(declared(batch_tokens=batch, layers=24), H100)


def test_the_gpus_are_of_the_kind_whatever_their_order() -> None:
    assert key(RUN, ("A", "B")) == key(RUN, ("B", "A"))
    assert len({key(RUN, gpus) for gpus in ((), ("A",), ("A", "A"), ("B",))}) == 4


def test_the_newest_result_of_a_kind_and_objective_is_the_one() -> None:
    results: tuple[TunerResult, ...] = ()
    for wall, micro, objective in ((1.0, 32, "throughput"), (3.0, 64, "throughput"), (2.0, 16, "energy")):
        newer = TunerResult(key="k", values={"micro_batch": micro}, objective=objective, wall=wall)  # type: ignore[arg-type]
        results = with_newer(results, newer)
    assert len(results) == 2
    found = best(results, "k", "throughput")
    assert found is not None
    assert found.values == {"micro_batch": 64}
    assert best(results, "k2", "throughput") is None


def settled(wall: float, **values: KnobValue) -> TunerResult:
    return TunerResult(key="k", values=values, wall=wall)


def test_a_result_of_fewer_knobs_leaves_the_one_of_more_alone() -> None:
    results = with_newer((), settled(1.0, num_envs=32, grad_accum=3))
    results = with_newer(results, settled(2.0, grad_accum=1))
    assert len(results) == 2
    allowed, plain = best(results, "k", "throughput"), best(results, "k", "throughput", {"num_envs": 8})
    assert allowed is not None
    assert allowed.values == {"num_envs": 32, "grad_accum": 3}
    assert plain is not None
    assert plain.values == {"grad_accum": 1}


def test_a_result_serves_a_run_that_has_already_what_its_tuner_may_not_turn() -> None:
    results = with_newer((), settled(1.0, num_envs=32, grad_accum=3))
    assert best(results, "k", "throughput", {"num_envs": 8}) is None
    assert best(results, "k", "throughput", {"num_envs": 32}) == results[0]
    results = with_newer(results, settled(2.0, grad_accum=1))
    assert best(results, "k", "throughput", {"num_envs": 32}) == results[1], "the newer says as much"


def test_a_result_of_which_a_value_is_taken_back_takes_its_own_place() -> None:
    results = with_newer((), settled(1.0, micro_batch=64, chunk=4))
    results = with_newer(results, structs.replace(results[0], values={"micro_batch": 64}, wall=2.0))
    assert [result.values for result in results] == [{"micro_batch": 64}]


def test_the_oldest_kinds_are_forgotten() -> None:
    results: tuple[TunerResult, ...] = ()
    for i in range(MOST + 5):
        results = with_newer(results, TunerResult(key=str(i), values={}))
    assert [r.key for r in results] == [str(i) for i in range(5, MOST + 5)]
