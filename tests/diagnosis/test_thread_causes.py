"""Verdicts from what the training thread does while the GPU waits, or without a GPU."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from hoptui.diagnosis.causes import UNSURE
from hoptui.diagnosis.sampled_time import FEW, SampledTime
from hoptui.diagnosis.thread_causes import GUESSED
from hoptui.diagnosis.verdict import AHEAD, CHALLENGES, FIRST, Diagnostician, findings
from hoptui.diagnosis.window import ObservationWindow
from hoptui.domain.activities import Activity, activities
from hoptui.domain.code_lines import CodeLine
from hoptui.domain.diagnosis import Verdict
from hoptui.domain.facts import Fact, fact
from hoptui.domain.kind_rules import Kind
from hoptui.domain.stacks import Stack, StackFrame
from hoptui.domain.stragglers import LEAST_SAMPLES, RankDevice, Straggler, find_straggler
from hoptui.domain.training_code import TrainingCode, TrainingFunction
from hoptui.presentation.stacks import does
from tests.diagnosis.loads import SECOND, knob, synthetic, window

SITE = "/opt/env/lib/python3.12/site-packages/"
STACKS: dict[Kind, Stack] = {
    "wait": (StackFrame("/job/train.py", "main", 30, call="loss.item"),),
    "copy": (StackFrame("/job/train.py", "main", 20, call="x.to"),),
    "compute": (StackFrame("/job/train.py", "main", 21, call="torch.mm"),),
    "input": (StackFrame("/job/data.py", "augment", 37, call="np.rot90"),),
    "environment": (StackFrame("/job/env.py", "CartEnv.step", 9),),
    "save": (StackFrame("/job/train.py", "main", 40), StackFrame(f"{SITE}torch/serialization.py", "save", 9)),
    "compile": (
        StackFrame("/job/train.py", "main", 21),
        StackFrame(f"{SITE}torch/_inductor/graph.py", "run", 9),
    ),
    "script": (StackFrame("/job/train.py", "main", 50, call="sorted"),),
    "collective": (StackFrame("/job/train.py", "main", 60, call="dist.all_reduce"),),
    "evaluate": (
        StackFrame("/job/train.py", "main", 70),
        StackFrame(f"{SITE}transformers/trainer.py", "Trainer.evaluate", 9),
    ),
}
CODE = TrainingCode([TrainingFunction("/job/train.py", "main", (20, 30), (31,))])
"""`main` trains. It runs its model in lines 20 and 30, and computes gradients in line 31."""


GOOD = {"busy": 1.0, "sm": 0.9, "tensor": 0.4, "fp32": 0.1, "dram": 0.4}


def sampled(**counts: int) -> SampledTime:
    """Samples with so many stacks of each kind."""
    return SampledTime.of(activities({STACKS[kind]: n for kind, n in counts.items()}, CODE))  # type: ignore[index]


def seen(gpu: dict[str, float] | None = None, world: int = 1, **more: Any) -> ObservationWindow:
    """A run with these readings of its GPU and these samples."""
    gpus = (synthetic(**gpu),) if gpu is not None else ()
    samples = more.pop("samples")
    return window(gpus=gpus, world=world, sampled=sampled(**samples), **more)


def fact_of(facts: tuple[Fact, ...], code: str) -> dict[str, Any]:
    return next(each.fields for each in facts if each.code == code)


IDLE = {"busy": 0.1, "sm": 0.05, "tensor": 0.0, "fp32": 0.0, "dram": 0.0}


@pytest.mark.parametrize(
    ("samples", "gpu", "verdict", "line"),
    [
        ({"input": 170, "compute": 30}, IDLE, "data-bound", 37),
        ({"environment": 170, "compute": 30}, IDLE, "env-bound", 9),
        ({"script": 170, "compute": 30}, IDLE, "host-bound", 50),
        ({"save": 170, "compute": 30}, IDLE, "save-bound", 40),
        ({"compile": 170, "compute": 30}, IDLE, "compiling", 21),
        ({"copy": 170, "compute": 30}, IDLE | {"upload": 8e9}, "transfer-bound", 20),
        ({"wait": 170, "compute": 30}, IDLE | {"download": 8e9}, "transfer-bound", 30),
        ({"compute": 170, "wait": 30}, IDLE, "launch-bound", 21),
        ({"wait": 170, "compute": 30}, IDLE, "launch-bound", 30),
        # pinned memory is copied while the thread goes on, and a copy counts as busy
        ({"wait": 150, "compute": 50}, {"busy": 0.99, "sm": 0.01, "upload": 55e9}, "transfer-bound", 30),
        ({"wait": 150, "compute": 50}, {"busy": 0.99, "sm": 0.01, "upload": 5e9}, "launch-bound", None),
        # a copy to the host counts as busy too; small kernels fill more of the SMs, or send less
        ({"copy": 190, "compute": 10}, {"busy": 0.77, "sm": 0.011, "download": 8e9}, "transfer-bound", 20),
        ({"wait": 190, "compute": 10}, {"busy": 0.77, "sm": 0.011, "download": 1e9}, "launch-bound", None),
        ({"wait": 190, "compute": 10}, {"busy": 0.77, "sm": 0.2, "download": 8e9}, "launch-bound", None),
        # copies of a few bytes wait for their turn
        ({"copy": 120, "compute": 80}, IDLE | {"upload": 1e8}, "launch-bound", 20),
        ({"compute": 190, "script": 10}, IDLE | {"busy": 0.0, "sm": 0.0}, "wrong-device", 21),
        ({"input": 170, "compute": 30}, None, "data-bound", 37),
        ({"script": 170, "compute": 30}, None, "host-bound", 50),
        ({"compute": 190, "script": 10}, None, "healthy", 21),
        ({"evaluate": 170, "compute": 30}, None, "healthy", 70),
    ],
)
def test_what_keeps_a_gpu_idle(
    samples: dict[str, int], gpu: dict[str, float] | None, verdict: str, line: int | None
) -> None:
    best = findings(seen(gpu, samples=samples))[0]
    assert best.verdict == verdict
    assert best.confidence >= 0.7
    assert next((each.fields["line"] for each in best.facts if each.code == "line.hot"), None) == line


@pytest.mark.parametrize(
    ("pieces", "seconds", "filled", "verdict"),
    [
        (32, 20.0, 0.02, "memory-unused"),
        (32, 400.0, 0.02, "healthy"),  # pieces are large already
        (1, 20.0, 0.02, "healthy"),
        (2, 8.0, 0.02, "memory-unused"),
        (2, 15.0, 0.02, "healthy"),  # only the calls of one piece can be saved
        (32, 20.0, 0.5, "healthy"),  # there is no room for larger ones
        (32, 20.0, float("nan"), "healthy"),
    ],
)
def test_a_cpu_that_computes_in_small_pieces(
    pieces: int, seconds: float, filled: float, verdict: str
) -> None:
    samples = {"compute": 190, "script": 10}
    knobs = (knob("grad_accum", pieces),)
    best = findings(seen(samples=samples, knobs=knobs, seconds=seconds, host_filled=filled))[0]
    assert best.verdict == verdict
    told = [each.fields["pieces"] for each in best.facts if each.code == "batch.pieces"]
    assert told == ([pieces] if verdict == "memory-unused" else [])
    assert 0.7 <= best.confidence <= (0.8 if told else 0.95)


def test_batches_that_a_script_accumulates_on_a_cpu_are_no_pieces_of_one() -> None:
    """Fewer of them change what is learned, and leave each as small as before."""
    knobs = (knob("gradient_accumulation_steps", 32, effect="learning"),)
    best = findings(
        seen(samples={"compute": 190, "script": 10}, knobs=knobs, seconds=20.0, host_filled=0.02)
    )[0]
    assert best.verdict == "healthy"
    assert [each.code for each in best.facts if each.code == "batch.pieces"] == []


@pytest.mark.parametrize("kind", ["script", "input", "save"])
def test_python_that_the_gpu_does_not_wait_for_limits_nothing(kind: str) -> None:
    gpu = {"busy": 0.98, "sm": 0.95, "tensor": 0.92, "fp32": 0.0, "dram": 0.2}
    assert findings(seen(gpu, samples={kind: 190, "wait": 10}))[0].verdict == "compute-bound"


def test_idle_time_is_shared_by_the_samples() -> None:
    found = {f.verdict: f for f in findings(seen(IDLE | {"busy": 0.4}, samples={"input": 110, "script": 90}))}
    assert found["data-bound"].lost == pytest.approx(0.33, abs=0.01)
    assert found["host-bound"].lost == pytest.approx(0.27, abs=0.01)
    assert found["data-bound"].confidence <= 0.7  # the other one costs nearly as much


def test_few_samples_say_nothing_and_some_say_it_with_doubt() -> None:
    assert sampled(input=FEW - 1).count == 0
    assert findings(seen(IDLE, samples={"input": FEW}))[0].confidence <= 0.6


def test_python_before_the_model_is_input_with_doubt() -> None:
    rows = (StackFrame("/job/train.py", "main", 12), StackFrame("/job/rows.py", "fields", 4))
    counts = {rows: 160, STACKS["compute"]: 40}
    samples = SampledTime.of(activities(counts, CODE))
    best = findings(window(gpus=(synthetic(**IDLE),), sampled=samples))[0]
    assert (best.verdict, best.confidence) == ("data-bound", GUESSED)
    assert fact_of(best.facts, "line.hot") == {
        "kind": "script", "share": 0.8, "file": "/job/rows.py", "line": 4, "function": "fields", "inside": "",
    }  # fmt: skip


def test_what_is_named_is_told_with_its_own_confidence() -> None:
    rows = (StackFrame("/job/train.py", "main", 12), StackFrame("/job/rows.py", "fields", 4))
    counts = {rows: 100, STACKS["input"]: 60, STACKS["compute"]: 40}
    best = findings(window(gpus=(synthetic(**IDLE),), sampled=SampledTime.of(activities(counts, CODE))))[0]
    assert best.verdict == "data-bound"
    assert best.confidence == pytest.approx(0.61, abs=0.06)  # 0.3 of the time is known to load
    assert fact_of(best.facts, "line.hot")["function"] == "fields"  # the other half takes longer
    counts = {rows: 60, STACKS["input"]: 100, STACKS["compute"]: 40}
    best = findings(window(gpus=(synthetic(**IDLE),), sampled=SampledTime.of(activities(counts, CODE))))[0]
    assert best.confidence > 0.9
    assert fact_of(best.facts, "line.hot")["function"] == "augment"


def test_python_before_the_model_is_what_environments_have_observed_if_these_are_stepped() -> None:
    rows = (StackFrame("/job/train.py", "main", 12, call="torch.tensor"),)
    counts = {rows: 90, STACKS["environment"]: 70, STACKS["compute"]: 40}
    best = findings(window(gpus=(synthetic(**IDLE),), sampled=SampledTime.of(activities(counts, CODE))))[0]
    assert best.verdict == "env-bound"
    assert best.confidence >= GUESSED


def test_python_between_two_runs_of_the_model_is_an_environment_with_doubt() -> None:
    moves = (StackFrame("/job/train.py", "main", 24), StackFrame("/job/rows.py", "fields", 4))
    prepares = (StackFrame("/job/train.py", "main", 12),)
    counts = {moves: 100, prepares: 60, STACKS["compute"]: 40}
    best = findings(window(gpus=(synthetic(**IDLE),), sampled=SampledTime.of(activities(counts, CODE))))[0]
    assert (best.verdict, best.confidence) == ("env-bound", GUESSED)
    assert best.lost == pytest.approx(0.8, abs=0.05), "what it has observed belongs to it"
    assert fact_of(best.facts, "line.hot")["function"] == "fields"


@pytest.mark.parametrize(("acts", "verdict"), [(False, "host-bound"), (True, "env-bound")])
def test_what_is_called_after_the_model_is_an_environment_if_its_steps_are_counted(
    acts: bool, verdict: str
) -> None:
    """The loop runs the model again, at a line before it."""
    moves = (StackFrame("/job/train.py", "main", 27), StackFrame("/job/rows.py", "fields", 4))
    counts = {moves: 150, STACKS["compute"]: 50}
    code = TrainingCode([TrainingFunction("/job/train.py", "main", (21, 24), (30,))])
    best = findings(window(sampled=SampledTime.of(activities(counts, code), acts=acts), acts=acts))[0]
    assert (best.verdict, best.confidence) == (verdict, GUESSED)
    assert fact_of(best.facts, "line.hot")["function"] == "fields"
    code = TrainingCode(
        [TrainingFunction("/job/train.py", "main", (29,), (30,))]
    )  # its other runs were not seen
    samples = SampledTime.of(activities(counts, code), acts=acts)
    assert findings(window(sampled=samples, acts=acts))[0].verdict == ("env-bound" if acts else "data-bound")
    code = TrainingCode([TrainingFunction("/job/train.py", "main", (21, 24), (30,))])
    inline = {moves[:1]: 150, STACKS["compute"]: 50}
    found = findings(window(sampled=SampledTime.of(activities(inline, code), acts=acts), acts=acts))[0]
    assert found.verdict == "host-bound", "the function that trains has books to keep, too"


RECEIVES = (
    StackFrame("/job/train.py", "main", 12),
    StackFrame("/usr/lib/python3.12/multiprocessing/connection.py", "Connection.recv", 249, call="read"),
)
"""`main` waits for another process before it runs its model."""


@pytest.mark.parametrize(
    ("acts", "verdict", "confidence"), [(False, "data-bound", GUESSED), (True, "env-bound", GUESSED)]
)
def test_a_process_that_is_waited_for_steps_environments_if_their_steps_are_counted(
    acts: bool, verdict: str, confidence: float
) -> None:
    prepares = (StackFrame("/job/train.py", "main", 13),)
    counts = {RECEIVES: 140, prepares: 20, STACKS["compute"]: 40}
    samples = SampledTime.of(activities(counts, CODE))
    found = {f.verdict: f for f in findings(window(sampled=samples, acts=acts))}
    best = next(iter(found.values()))
    assert best.verdict == verdict
    assert best.confidence == pytest.approx(confidence)
    assert best.lost == pytest.approx(0.8), "what is prepared belongs to it"
    assert [f for f in found.values() if f.lost] == [best]
    line = fact_of(best.facts, "line.hot")
    assert (line["line"], line["share"], line["inside"]) == (12, 0.7, "Connection.recv")
    assert does(line["kind"], line["inside"]) == "waits"


def test_a_known_loader_beside_environments_stays_one() -> None:
    counts = {STACKS["input"]: 150, RECEIVES: 20, STACKS["compute"]: 30}
    samples = SampledTime.of(activities(counts, CODE))
    best = findings(window(sampled=samples, acts=True))[0]
    assert (best.verdict, best.confidence >= 0.9) == ("data-bound", True)


def test_python_that_nothing_names_is_of_the_host_with_doubt() -> None:
    rows = (StackFrame("/job/train.py", "main", 44), StackFrame("/job/rows.py", "fields", 4))
    samples = SampledTime.of(activities({rows: 160, STACKS["compute"]: 40}, CODE))
    best = findings(window(gpus=(synthetic(**IDLE),), sampled=samples))[0]
    assert (best.verdict, best.confidence) == ("host-bound", GUESSED)


def test_without_counters_samples_give_a_verdict_with_doubt() -> None:
    found = findings(seen({"busy": 0.2}, samples={"compute": 190, "wait": 10}))[0]
    assert (found.verdict, found.confidence) == ("launch-bound", 0.6)


def test_a_cpu_that_computes_beside_free_gpus() -> None:
    found = findings(seen(None, samples={"compute": 200}, free_gpus=2))[0]
    assert (found.verdict, found.confidence) == ("wrong-device", 0.6)
    assert fact_of(found.facts, "gpu.none_used") == {"count": 2}


def test_a_run_that_the_driver_lists_on_other_gpus_is_not_surely_on_the_wrong_device() -> None:
    idle = IDLE | {"busy": 0.0, "sm": 0.0}
    sure = findings(seen(idle, samples={"compute": 200}))[0]
    found = findings(seen(idle, samples={"compute": 200}, elsewhere=True))[0]
    assert (sure.verdict, found.verdict) == ("wrong-device", "wrong-device")
    assert sure.confidence > found.confidence == 0.6


def test_a_rank_that_the_others_wait_for() -> None:
    where = Activity("input", CodeLine("/job/data.py", 37, "read"), "")
    straggler = Straggler(5, 0.02, 0.4, where, 0.5, 0.1)
    best = findings(seen(None, 8, samples={"collective": 80, "compute": 120}, straggler=straggler))[0]
    assert best.verdict == "straggler"
    assert fact_of(best.facts, "rank.slow")["rank"] == 5
    device = RankDevice("gpu07", 3, 1410.0, 1980.0, {"thermal_software": 0.4})
    best = findings(
        seen(
            None, 8, samples={"collective": 80, "compute": 120}, straggler=straggler, straggler_device=device
        )
    )[0]
    assert device._asdict().items() <= fact_of(best.facts, "rank.slow").items()
    assert fact_of(best.facts, "line.hot")["line"] == 37


SPINNING = {"busy": 0.5, "sm": 0.01, "tensor": 0.0, "fp32": 0.0, "dram": 0.0}
"""Two ranks under NCCL, as measured on two H200: the kernel of a collective spins on the GPU of the rank that
waits, and the other GPU idles."""


def two_ranks(first: dict[str, int], second: dict[str, int], gpu: dict[str, float]) -> ObservationWindow:
    """Two ranks with these samples, and the straggler that they show."""
    found = {
        rank: activities({STACKS[kind]: n for kind, n in counts.items()}, CODE)  # type: ignore[index]
        for rank, counts in enumerate((first, second))
    }
    late = find_straggler(found)
    times = SampledTime.of_ranks(found, late.rank if late is not None else None)
    return window(gpus=(synthetic(**gpu),) * 2, world=2, sampled=times, straggler=late)


@pytest.mark.parametrize("kind", ["script", "input", "save"])
def test_a_rank_under_nccl_that_the_others_wait_for_with_their_gpu(kind: str) -> None:
    """The others wait in `item` for their GPU, whose kernel waits for the rank. They launch fast enough, and
    what the rank does limits no other one."""
    found = findings(two_ranks({kind: 145, "compute": 5}, {"wait": 145, "compute": 5}, SPINNING))
    assert (found[0].verdict, found[0].confidence) == ("straggler", 0.95)
    assert fact_of(found[0].facts, "rank.slow")["rank"] == 0
    assert [each.verdict for each in found] == ["straggler"]


def test_a_first_verdict_before_a_straggler_can_be_known_is_unsure() -> None:
    """Another verdict would have to be more certain by much, later."""
    gpu = {"busy": 0.5, "sm": 0.01}
    early = findings(two_ranks({"script": LEAST_SAMPLES - 1}, {"wait": LEAST_SAMPLES - 1}, gpu))
    assert {each.verdict for each in early} == {"launch-bound", "host-bound"}
    assert all(each.confidence <= 0.6 for each in early)


def test_even_ranks_that_launch_slowly() -> None:
    ranks = {"compute": 100, "wait": 50}
    found = findings(two_ranks(ranks, ranks, {"busy": 0.3, "sm": 0.02, "upload": 200e6, "link": 1e9}))[0]
    assert (found.verdict, found.confidence) == ("launch-bound", 0.95)


def test_collectives_of_which_a_thread_shows_nothing_keep_the_link_busy() -> None:
    """A thread only begins collectives on a GPU. As measured on two H200 that broadcast 8 GB each a step."""
    ranks = {"compute": 20, "wait": 130}
    found = findings(two_ranks(ranks, ranks, {"busy": 0.8, "sm": 0.14, "link": 200e9, "upload": 200e6}))
    assert [(each.verdict, each.confidence) for each in found] == [("communication-bound", 0.7)]


def test_even_ranks_that_exchange_much() -> None:
    best = findings(seen(None, 8, samples={"collective": 120, "compute": 80}))[0]
    assert best.verdict == "communication-bound"


def test_ranks_that_may_wait_unseen_are_not_surely_healthy() -> None:
    """DDP waits inside of the backward pass, which counts as computing."""
    for world, gpu, confidence in ((1, None, 0.95), (2, None, 0.6), (1, GOOD, 0.9), (2, GOOD, 0.6)):
        best = findings(seen(gpu, world, samples={"compute": 200}))[0]
        assert (best.verdict, min(best.confidence, 0.95)) == ("healthy", confidence)
    exchanged = findings(seen(GOOD, 2, samples={"compute": 190, "collective": 10}))[0]
    assert (exchanged.verdict, exchanged.confidence) == ("healthy", 0.9)


def test_a_board_far_from_its_power_limit_is_not_limited_by_it() -> None:
    gpu = {
        "busy": 0.99,
        "sm": 0.9,
        "tensor": 0.4,
        "fp32": 0.1,
        "dram": 0.4,
        "capped": 1.0,
        "clock_mhz": 1500.0,
    }
    assert (
        findings(
            window(
                gpus=(
                    synthetic(
                        **gpu,
                    ),
                )
            )
        )[0].verdict
        != "power-limited"
    )
    assert findings(window(gpus=(synthetic(**(gpu | {"power_w": 690.0})),)))[0].verdict == "power-limited"


def test_sms_that_wait_for_memory() -> None:
    gpu = {"busy": 1.0, "sm": 0.97, "tensor": 0.0, "fp32": 0.05, "dram": 0.15}
    assert findings(window(gpus=(synthetic(**gpu),)))[0].verdict == "memory-latency-bound"
    assert findings(window(gpus=(synthetic(**(gpu | {"sm": 0.8})),)))[0].verdict == "memory-latency-bound"
    assert findings(window(gpus=(synthetic(**(gpu | {"dram": 0.4})),)))[0].verdict == "healthy"
    assert findings(window(gpus=(synthetic(**(gpu | {"sm": 0.7})),)))[0].verdict == "healthy"


def test_sms_that_do_no_arithmetic_wait_for_memory() -> None:
    """Numbers at random places use half of the bus: each moves eight times its size."""
    silent = {"busy": 1.0, "sm": 0.96, "tensor": 0.002, "fp32": 0.02, "dram": 0.49}
    assert findings(window(gpus=(synthetic(**silent),)))[0].verdict == "memory-latency-bound"
    (quiet,) = findings(window(gpus=(synthetic(**(silent | {"fp32": 0.1})),)))
    assert (quiet.verdict, quiet.confidence) == ("healthy", UNSURE)
    for other in ("fp64", "fp16"):
        (found,) = findings(window(gpus=(synthetic(**(silent | {other: 0.25})),)))
        assert found.verdict == "healthy", f"{other} is arithmetic too"
    (double,) = findings(window(gpus=(synthetic(**(silent | {"fp64": 0.5})),)))
    assert (double.verdict, double.confidence) == ("compute-bound", UNSURE)
    moving = silent | {"fp32": 0.1, "dram": 0.54}
    assert findings(window(gpus=(synthetic(**moving),)))[0].verdict == "memory-bandwidth-bound"
    cut_small = window(gpus=(synthetic(**moving, memory=0.1),), knobs=(knob("grad_accum", 8),))
    assert findings(cut_small)[0].verdict == "memory-unused", "a language model before its sizes are chosen"
    (busy,) = findings(window(gpus=(synthetic(**(silent | {"tensor": 0.4})),)))
    assert busy.verdict == "healthy"
    assert busy.confidence > 0.8


def _results_of_small_kernels(t_s: float, **more: Any) -> ObservationWindow:
    """Small kernels whose results are read, and some Python whose purpose nothing says."""
    helper = (StackFrame("/job/train.py", "main", 50), StackFrame("/job/small.py", "halve", 3, call="sorted"))
    counts = {STACKS["wait"]: 42, STACKS["compute"]: 28, helper: 30}
    gpu = synthetic(busy=0.6, sm=0.25, tensor=0.0, fp32=0.0, dram=0.0)
    return window(gpus=(gpu,), sampled=SampledTime.of(activities(counts, CODE)), t=int(t_s * SECOND), **more)


def _host_bound(t_s: float) -> Diagnostician:
    """What was reported until then: Python of the script."""
    doctor = Diagnostician()
    for look in range(FIRST):
        doctor.look(seen(IDLE, samples={"script": 170, "compute": 30}, t=int((t_s + 2 * look) * SECOND)))
    assert doctor.told is not None
    assert doctor.told.verdict == "host-bound"
    return doctor


def test_a_straggler_needs_no_more_looks_than_a_first_verdict() -> None:
    """It is far beyond chance in each look. Until a rank has enough samples, the ranks look healthy."""
    where = Activity("input", CodeLine("/job/data.py", 37, "read"), "")
    late = Straggler(5, 0.02, 0.8, where, 0.5, 0.1)
    doctor = Diagnostician()
    for t in range(FIRST):
        doctor.look(seen(None, 8, samples={"compute": 200}, t=2 * t * SECOND))
    assert doctor.told is not None
    assert doctor.told.verdict == "healthy"
    samples = {"collective": 160, "compute": 40}
    looks = [seen(None, 8, samples=samples, straggler=late, t=(20 + 2 * t) * SECOND) for t in range(FIRST)]
    assert [doctor.look(each) for each in looks] == [False] * (FIRST - 1) + [True]
    assert doctor.told.verdict == "straggler"


def test_a_line_is_told_as_soon_as_it_is_known() -> None:
    """The names of deep stacks come later than phases."""
    doctor = Diagnostician()
    for t in range(FIRST):
        doctor.look(seen(IDLE, samples={}, phases={"data": 0.94}, t=2 * t * SECOND))
    assert doctor.told is not None
    assert doctor.told.verdict == "data-bound"
    assert "line.hot" not in {each.code for each in doctor.told.facts}
    doctor.look(
        seen(IDLE, samples={"input": 190, "compute": 10}, phases={"data": 0.94}, t=2 * FIRST * SECOND)
    )
    assert fact_of(doctor.told.facts, "line.hot")["line"] == 37


def test_a_verdict_from_before_a_step_gives_way_to_a_slightly_better_one() -> None:
    best, second = findings(_results_of_small_kernels(130.0))[:2]
    assert (best.verdict, second.verdict) == ("launch-bound", "host-bound")
    assert best.confidence - second.confidence < AHEAD
    doctor = _host_bound(100.0)
    looks = [_results_of_small_kernels(130.0 + 2 * i, step_t=120 * SECOND) for i in range(FIRST)]
    assert [doctor.look(each) for each in looks] == [False] * (FIRST - 1) + [True]
    assert doctor.told is not None
    assert doctor.told.verdict == "launch-bound"


@pytest.mark.parametrize("step_t", [0, 101 * SECOND])
def test_a_verdict_stays_beside_a_slightly_better_one_without_a_step_since(step_t: int) -> None:
    doctor = _host_bound(100.0)
    assert not any(
        doctor.look(_results_of_small_kernels(130.0 + 2 * i, step_t=step_t)) for i in range(2 * CHALLENGES)
    )


SMALL, BETWEEN, LARGE = 0.08, 0.15, 0.22  # seconds of a piece


def computing_in(piece_s: float, compute: int = 180) -> ObservationWindow:
    """Iterations of 32 pieces each on a CPU, and how many of 200 samples compute."""
    samples, knobs = {"compute": compute, "script": 200 - compute}, (knob("grad_accum", 32),)
    found = seen(samples=samples, knobs=knobs, host_filled=0.02)
    return replace(found, seconds=piece_s * 32 * found.iterations)


def shown_by(doctor: Diagnostician, *windows: ObservationWindow) -> list[str | None]:
    """The verdict that is shown after each of these looks."""
    found: list[str | None] = []
    for each in windows:
        doctor.look(each)
        found.append(doctor.told.verdict if doctor.told is not None else None)
    return found


@pytest.mark.parametrize(
    ("first", "verdict"), [(SMALL, "memory-unused"), (LARGE, "healthy"), (BETWEEN, "healthy")]
)
def test_a_verdict_on_a_cpu_stays_between_two_limits(first: float, verdict: Verdict) -> None:
    doctor = Diagnostician()
    begin = [computing_in(first)] * CHALLENGES
    assert shown_by(doctor, *begin)[-1] == verdict
    assert set(shown_by(doctor, *[computing_in(BETWEEN, compute=110)] * 9)) == {verdict}


def test_how_much_a_cpu_computes_is_told_once() -> None:
    stacks = {STACKS["compute"]: 100, STACKS["evaluate"]: 50, STACKS["script"]: 10}
    other = (StackFrame("/job/train.py", "main", 22, call="torch.mm"),)
    counts = activities({**stacks, other: 40}, CODE)
    (best,) = findings(window(sampled=SampledTime.of(counts)))
    assert fact_of(best.facts, "cpu.computes") == {"share": 0.95}
    line = fact_of(best.facts, "line.hot")
    assert (line["line"], line["share"], "whole" in line) == (21, 0.5, False)


@pytest.mark.parametrize(
    ("on_cpu", "verdict"), [(math.nan, "healthy"), (0.95, "healthy"), (0.5, "healthy"), (0.05, "unknown")]
)
def test_a_thread_that_computes_without_a_processor_is_not_healthy(on_cpu: float, verdict: Verdict) -> None:
    (best,) = findings(window(sampled=sampled(compute=95, input=5), on_cpu=on_cpu))
    assert best.verdict == verdict
    waits = [found.fields for found in best.facts if found.code == "cpu.thread_waits"]
    assert waits == ([{"share": 0.05}] if verdict == "unknown" else [])


@pytest.mark.parametrize(
    ("problem", "codes"),
    [
        (fact("driver.not_found"), ["cause.none_clear", "line.hot"]),
        (fact("nvml.error"), ["gpu.no_readings"]),
        (None, ["cause.none_clear", "line.hot", "gpu.none_of_run"]),
    ],
)
def test_where_no_kind_of_work_stands_out_on_a_cpu_no_gpu_is_missing(
    problem: Fact | None, codes: list[str]
) -> None:
    """Where a GPU cannot be read, that is the reason."""
    counts = {"evaluate": 70, "compute": 30, "script": 50, "input": 50}
    best = findings(window(sampled=sampled(**counts), no_gpu=problem))[0]
    assert best.verdict == "unknown"
    assert [each.code for each in best.facts] == codes
    assert {each.fields["kind"] for each in best.facts if each.code == "line.hot"} <= {"evaluate"}


@pytest.mark.parametrize(("queued", "told"), [(math.nan, []), (0.7, [{"share": 0.7}])])
def test_how_long_a_thread_waited_for_a_processor_is_told(
    queued: float, told: list[dict[str, float]]
) -> None:
    (best,) = findings(window(sampled=sampled(compute=95, input=5), on_cpu=0.1, queued=queued))
    assert best.verdict == "unknown"
    assert [found.fields for found in best.facts if found.code == "cpu.queued"] == told


@pytest.mark.parametrize("gpu", [None, IDLE])
@pytest.mark.parametrize(("other", "verdict"), [("script", "host-bound"), ("input", "data-bound")])
def test_a_thread_that_keeps_the_interpreter_holds_a_run_up(
    other: Kind, verdict: Verdict, gpu: dict[str, float] | None
) -> None:
    """The line is that of this thread."""
    started = StackFrame("/usr/lib/python3.12/threading.py", "Thread._bootstrap", 1002)
    kept = (*STACKS["compute"], started, *STACKS[other][-1:])
    counts = activities({kept: 160, STACKS["compute"]: 40}, CODE)
    gpus = (synthetic(**gpu),) if gpu is not None else ()
    best = findings(window(gpus=gpus, sampled=SampledTime.of(counts), on_cpu=0.2))[0]
    assert best.verdict == verdict
    assert best.confidence >= 0.9
    assert fact_of(best.facts, "line.hot")["line"] == STACKS[other][-1].line
    assert fact_of(best.facts, "cpu.interpreter_kept") == {"share": 0.8}


def test_clear_evidence_replaces_a_verdict_on_a_cpu() -> None:
    doctor = Diagnostician()
    shown_by(doctor, *[computing_in(SMALL)] * CHALLENGES)
    assert shown_by(doctor, *[computing_in(LARGE)] * CHALLENGES)[-1] == "healthy"
    assert shown_by(doctor, *[computing_in(SMALL)] * CHALLENGES)[-1] == "memory-unused"
    assert shown_by(doctor, *[computing_in(SMALL, compute=95)] * CHALLENGES)[-1] == "host-bound"


def test_after_a_change_of_a_knob_the_limits_are_those_of_a_first_verdict() -> None:
    doctor = Diagnostician()
    shown_by(doctor, *[computing_in(SMALL)] * CHALLENGES)
    doctor.changed()
    assert shown_by(doctor, *[computing_in(BETWEEN)] * CHALLENGES)[-1] == "healthy"
