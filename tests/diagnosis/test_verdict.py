"""Verdicts on real loads of known nature, at the thresholds between them, and steadily over many looks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoptui.diagnosis.verdict import CHALLENGES, FIRST, Diagnostician, findings
from hoptui.diagnosis.window import ObservationWindow
from hoptui.domain.diagnosis import Diagnosis, Verdict
from hoptui.domain.facts import Fact, fact
from tests.diagnosis.loads import H100, H200, SECOND, UNKNOWN, knob, readings, synthetic, window

NO_DRIVER = fact("driver.not_found", nvml=12, error="NVML Shared Library Not Found")
AMPERE = fact("gpm.needs_hopper", architecture="Ampere")

LABELS: dict[str, Verdict] = {
    "launch_bound_mlp_b1": "launch-bound",
    "copy_4GiB": "memory-bandwidth-bound",
    "bf16_matmul_8192": "compute-bound",
    "fp32_matmul": "compute-bound",
    "tf32_matmul": "compute-bound",
    "fp8_matmul": "compute-bound",
    "ppo_eager_4096_env": "launch-bound",
    "ppo_eager_4096_full": "launch-bound",
    "ppo_eager_16384_full": "launch-bound",
    "ppo_eager_65536_full": "launch-bound",
    "ppo_graph_4096_env": "launch-bound",
    "ppo_graph_4096_full": "launch-bound",
    "ppo_graph_16384_full": "launch-bound",
    "ppo_graph_65536_env+inf": "launch-bound",
    "ppo_graph_65536_full": "launch-bound",
    "ppo_compile+graph_4096_full": "launch-bound",
    "ppo_compile+graph_16384_full": "launch-bound",
    "ppo_compile+graph_65536_full": "launch-bound",
    "ppo_compile+graph_65536_env+inf": "healthy",
    "lm_b8": "power-limited",
    "lm_b16": "power-limited",
    "lm_b32": "power-limited",
    "lm_b64": "power-limited",
    "lm_b32_eager": "power-limited",
}


def diagnose(window: ObservationWindow) -> Diagnosis:
    """What is told of a run that looks like this for as long as it takes."""
    doctor = Diagnostician()
    for _ in range(CHALLENGES):
        doctor.look(window)
    assert doctor.told is not None
    return doctor.told


def codes(found: Diagnosis) -> list[str]:
    return [each.code for each in found.facts]


@pytest.mark.parametrize("load", sorted(H100))
def test_a_load_of_known_nature(load: str) -> None:
    found = diagnose(window(H100[load]))
    assert found.verdict == LABELS[load], found
    assert 0.5 <= found.confidence <= 0.95
    assert found.facts


def test_plain_cases_are_told_with_confidence() -> None:
    for load in ("launch_bound_mlp_b1", "copy_4GiB", "bf16_matmul_8192", "ppo_graph_4096_full", "lm_b64"):
        assert diagnose(window(H100[load])).confidence >= 0.9, load


def test_evidence_is_figures() -> None:
    eager = diagnose(window(H100["ppo_eager_4096_full"]))
    assert eager.facts == (
        fact("gpu.sm_active", share=0.056),
        fact("gpu.any_kernel", share=0.32),
        fact("gpu.kernel_fill", share=0.18),
        fact("gpu.power", watts=144, limit_w=700),
    )
    product = diagnose(window(H100["bf16_matmul_8192"]))
    assert product.facts[:2] == (fact("gpu.tensor_active", share=0.94), fact("gpu.at_power_limit"))


def test_a_batch_that_is_cut_small_in_an_empty_memory() -> None:
    found = diagnose(window(H100["lm_b8"], knobs=(knob("micro_batch", 8), knob("grad_accum", 64))))
    assert (found.verdict, found.facts[0]) == ("memory-unused", fact("batch.pieces", pieces=64))
    assert found.facts[1].code == "gpu.memory"
    assert found.advice[0].knob == "micro_batch"
    whole = diagnose(window(H100["lm_b8"], knobs=(knob("micro_batch", 512), knob("grad_accum", 1))))
    assert whole.verdict == "power-limited"


@pytest.mark.parametrize(
    ("load", "phases", "verdict", "least"),
    [
        ("lm_ddp2_b4", {"gradient": 0.55, "exchange": 0.38, "step": 0.07}, "communication-bound", 0.85),
        ("lm_ddp2_b4", {}, "communication-bound", 0.6),
        ("lm_ddp2_b32", {"gradient": 0.9, "exchange": 0.04}, "power-limited", 0.9),
        ("lm_ddp2_b32", {}, "power-limited", 0.9),
    ],
)
def test_two_gpus(load: str, phases: dict[str, float], verdict: Verdict, least: float) -> None:
    found = diagnose(window(H200[load], phases=phases, world=2))
    assert found.verdict == verdict
    assert found.confidence >= least


def test_exchange_of_a_single_process_means_nothing() -> None:
    assert (
        diagnose(window(H100["ppo_graph_4096_full"], phases={"exchange": 0.5})).verdict
        != "communication-bound"
    )


def test_gpus_that_differ_are_named() -> None:
    uneven = (synthetic(sm=0.9, busy=1.0), replace(synthetic(sm=0.5, busy=1.0, clock_mhz=1400.0), index=1))
    found = diagnose(window(phases={"exchange": 0.5}, gpus=uneven, world=2))
    assert found.verdict == "communication-bound"
    assert found.facts[-2:] == (
        fact("gpu.less_work", gpu=1, share=0.5, other=0, other_share=0.9),
        fact("gpu.slower", gpu=1, mhz=1400, other=0, other_mhz=1980),
    )
    even = (synthetic(sm=0.9, busy=1.0), replace(synthetic(sm=0.85, busy=1.0), index=1))
    assert not {"gpu.less_work", "gpu.slower"} & set(codes(diagnose(window(gpus=even, world=2))))


@pytest.mark.parametrize(
    ("world", "link", "phases", "confidence"),
    [
        (1, UNKNOWN, {}, 0.95),
        (2, 1e9, {}, 0.6),  # the other rank's GPU is on another node
        (2, UNKNOWN, {"exchange": 0.02}, 0.95),
    ],
)
def test_ranks_that_may_wait_for_each_other_leave_doubt(
    world: int, link: float, phases: dict[str, float], confidence: float
) -> None:
    found = diagnose(
        window(phases=phases, gpus=(synthetic(sm=0.1, busy=0.3, upload=150e6, link=link),), world=world)
    )
    assert (found.verdict, found.confidence) == ("launch-bound", confidence)


@pytest.mark.parametrize(
    ("phases", "readings", "verdict"),
    [
        ({"data": 0.6, "step": 0.4}, {"busy": 0.4, "sm": 0.3}, "data-bound"),
        ({"dataloader": 0.6}, {"busy": 0.4, "sm": 0.02, "upload": 300e6}, "data-bound"),
        ({"train/load_batch": 0.7}, {"busy": 0.3, "sm": 0.2}, "data-bound"),
        # it waits on the host's clock, while the GPU works on
        ({"data": 0.9}, {"busy": 0.97, "sm": 0.93}, "healthy"),
        ({"data": 0.2, "step": 0.8}, {"busy": 0.8, "sm": 0.7}, "healthy"),
        ({"rollout": 0.8, "rollout/env": 0.7}, {"busy": 0.15, "sm": 0.05}, "env-bound"),
        # all of it is on the CPU
        ({"rollout": 0.8, "rollout/env": 0.3}, {"busy": 0.15, "sm": 0.05}, "env-bound"),
        # they are on the GPU, in graphs
        ({"rollout": 0.8, "rollout/env": 0.7}, {"busy": 1.0, "sm": 0.3}, "launch-bound"),
        # and one by one
        ({"rollout": 0.6, "rollout/env": 0.4}, {"busy": 0.32, "sm": 0.06, "upload": 150e6}, "launch-bound"),
        ({"data": 1.0}, {"busy": 0.0, "sm": 0.0}, "data-bound"),
        ({"wait": 0.9}, {"busy": 0.0, "sm": 0.0}, "unknown"),
        ({"wait": 0.7, "step": 0.3}, {"busy": 0.3, "sm": 0.28}, "unknown"),
        ({}, {"busy": 1.0, "sm": 0.01, "upload": 57e9}, "transfer-bound"),
    ],
)  # fmt: skip
def test_what_phases_and_counters_say_together(
    phases: dict[str, float], readings: dict[str, float], verdict: Verdict
) -> None:
    assert diagnose(window(phases=phases, gpus=(synthetic(**readings),))).verdict == verdict


@pytest.mark.parametrize(
    ("reading", "below", "above", "verdict"),
    [
        ("tensor", 0.69, 0.71, "compute-bound"),
        ("fp32", 0.34, 0.36, "compute-bound"),
        ("dram", 0.54, 0.56, "memory-bandwidth-bound"),
        ("hot", 0.19, 0.21, "heat-limited"),
        ("braked", 0.19, 0.21, "power-limited"),
        ("sm", 0.66, 0.64, "launch-bound"),
    ],
)
def test_thresholds(reading: str, below: float, above: float, verdict: Verdict) -> None:
    healthy = {"sm": 0.8, "busy": 1.0}

    def of(value: float) -> Diagnosis:
        return diagnose(window(gpus=(synthetic(**(healthy | {reading: value})),)))

    assert of(below).verdict == "healthy"
    assert of(above).verdict == verdict
    assert of(above).confidence < 0.6, "hardly past the threshold"


def test_what_a_gpu_waits_for_now_and_then_is_told_beside_what_limits_it() -> None:
    def data(share: float) -> Fact:
        return fact("phase.share", phase="data", share=share)

    capped = synthetic(busy=0.88, sm=0.85, capped=0.9, clock_mhz=1600.0)
    assert diagnose(window(phases={"data": 0.12}, gpus=(capped,))).facts[-1] == data(0.12)
    assert diagnose(window(phases={"data": 0.04}, gpus=(capped,))).facts[-1] == fact(
        "gpu.sm_active", share=0.85
    )
    waits = diagnose(window(phases={"data": 0.6}, gpus=(synthetic(busy=0.3, sm=0.3),)))
    assert [found for found in waits.facts if found.code == "phase.share"] == [data(0.6)]


def test_one_hot_gpu_limits_all_and_is_named() -> None:
    gpus = tuple(
        replace(
            synthetic(sm=0.9, busy=1.0, hot=0.6 * (i == 3), temperature_c=91.0, clock_mhz=1400.0), index=i
        )
        for i in range(4)
    )
    found = diagnose(window(gpus=gpus, world=4))
    assert found.verdict == "heat-limited"
    assert found.facts == (
        fact("gpu.hot", share=0.6, gpu=3),
        fact("gpu.temperature", celsius=91),
        fact("gpu.clock", mhz=1400, max_mhz=1980),
    )


def test_the_only_gpu_of_a_run_needs_no_number() -> None:
    braked = diagnose(window(gpus=(synthetic(sm=0.9, busy=1.0, braked=0.6, clock_mhz=1400.0),)))
    assert braked.facts[0] == fact("gpu.power_brake", share=0.6)


def test_a_hot_gpu_that_waits_for_data_waits_for_data() -> None:
    gpu = synthetic(sm=0.1, busy=0.12, hot=0.9)
    assert diagnose(window(phases={"data": 0.85}, gpus=(gpu,))).verdict == "data-bound"


def test_a_link_full_of_uploads_is_not_taken_for_launches() -> None:
    found = diagnose(window(gpus=(synthetic(busy=1.0, sm=0.0, upload=58e9),)))
    assert (found.verdict, found.confidence) == ("transfer-bound", 0.95)
    assert found.facts == (fact("gpu.pcie", bytes_per_s=58e9), fact("gpu.sm_active", share=0))


def test_two_causes_that_cost_the_same_leave_doubt() -> None:
    both = diagnose(window(phases={"data": 0.48}, gpus=(synthetic(sm=0.02, busy=0.3, upload=150e6),)))
    assert both.confidence <= 0.7


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"gpus": (), "no_gpu": NO_DRIVER}, fact("gpu.no_readings", problem=NO_DRIVER)),
        ({"gpus": ()}, fact("gpu.none_of_run")),
        (
            {"gpus": (replace(synthetic(busy=1.0), missing=AMPERE),)},
            fact("gpu.no_counters", problem=AMPERE),
        ),
        ({"gpus": (synthetic(busy=1.0),)}, fact("gpu.counters_not_read")),
        ({"gpus": (replace(synthetic(busy=1.0), rows=0),)}, fact("gpu.no_rows")),
        ({"iterations": 0, "aside": 1.0}, fact("time.all_aside", share=1)),
    ],
)
def test_too_little_is_known_and_the_evidence_says_what(given: dict[str, Any], missing: Fact) -> None:
    found = diagnose(window(phases={"update": 0.9}, **given))
    assert found.verdict == "unknown"
    assert found.confidence == 0
    assert found.facts[0] == missing
    assert found.advice == ()


def test_without_counters_less_is_believed() -> None:
    blind = diagnose(window(phases={"data": 0.9}, gpus=(synthetic(busy=0.1),)))
    assert (blind.verdict, blind.confidence) == ("data-bound", 0.6)
    no_gpu = diagnose(window(phases={"env": 0.9}, no_gpu=NO_DRIVER))
    assert (no_gpu.verdict, no_gpu.confidence) == ("env-bound", 0.6)
    assert no_gpu.facts[0] == fact("phase.share", phase="env", share=0.9)


@pytest.mark.parametrize("phase", ["data", "rollout/env"])
def test_without_a_gpu_a_phase_limits_a_run_only_where_it_takes_most_of_the_time(phase: str) -> None:
    some = diagnose(window(phases={phase: 0.45, "update": 0.5}, no_gpu=NO_DRIVER))
    assert some.verdict == "unknown"
    most = diagnose(window(phases={phase: 0.55, "update": 0.4}, no_gpu=NO_DRIVER))
    assert most.verdict == ("data-bound" if phase == "data" else "env-bound")


@pytest.mark.parametrize("thin", [{"iterations": 2}, {"seconds": 3.0}])
def test_little_was_looked_at(thin: dict[str, Any]) -> None:
    assert diagnose(window(H100["lm_b64"], **thin)).confidence == 0.6


def test_few_rows_of_a_gpu_and_neighbours_on_it() -> None:
    load = {name: column[:3] for name, column in H100["lm_b64"][0].items()}
    assert diagnose(window([load])).confidence == 0.6
    shared = replace(readings(H100["lm_b64"][0]), shared=True)
    found = diagnose(window(gpus=(shared,)))
    assert found.confidence == 0.6
    assert found.facts[-1] == fact("gpu.shared", gpus=[0])


# over many looks --------------------------------------------------------------------------------------------

EAGER = window(H100["ppo_eager_4096_full"])
MATMUL = window(H100["bf16_matmul_8192"])


def look(doctor: Diagnostician, seen: ObservationWindow, at_s: float) -> bool:
    return doctor.look(replace(seen, t=int(at_s * SECOND)))


def test_a_first_verdict_is_seen_twice_before_it_is_told() -> None:
    doctor = Diagnostician()
    news = [look(doctor, EAGER, 2 * i) for i in range(FIRST + 2)]
    assert news == [False] * (FIRST - 1) + [True, False, False]
    assert doctor.told is not None
    assert doctor.told.verdict == "launch-bound"


def test_a_verdict_gives_way_to_one_that_lasts() -> None:
    doctor = Diagnostician()
    for i in range(FIRST):
        look(doctor, EAGER, 2 * i)
    for i in range(CHALLENGES - 1):
        assert not look(doctor, MATMUL, 10 + 2 * i)
    assert not look(doctor, EAGER, 20), "once the old one again: the count begins anew"
    news = [look(doctor, MATMUL, 22 + 2 * i) for i in range(CHALLENGES)]
    assert news == [False] * (CHALLENGES - 1) + [True]
    assert doctor.told is not None
    assert doctor.told.verdict == "compute-bound"


def test_a_verdict_after_an_unknown_one_is_a_first_verdict() -> None:
    doctor = Diagnostician()
    nothing = window(iterations=0, aside=1.0)
    assert findings(nothing)[0].verdict == "unknown"
    told = [look(doctor, nothing, 2 * i) for i in range(CHALLENGES)]
    assert told == [False] * (CHALLENGES - 1) + [True], "in the first seconds little is known"
    assert doctor.told is not None
    assert doctor.told.verdict == "unknown"
    news = [look(doctor, MATMUL, 10 + 2 * i) for i in range(FIRST)]
    assert news == [False] * (FIRST - 1) + [True]
    assert doctor.told.verdict == "compute-bound"


def test_a_load_at_a_threshold_does_not_flicker() -> None:
    doctor = Diagnostician()
    news = sum(
        look(doctor, window(gpus=(synthetic(sm=0.65 + 0.02 * (-1) ** i, busy=1.0),)), 2 * i)
        for i in range(200)
    )
    assert news <= 1


def test_figures_are_told_anew_now_and_then_and_only_if_they_changed() -> None:
    doctor = Diagnostician()
    for i in range(FIRST):
        look(doctor, EAGER, i)
    first = doctor.told
    for at in range(2, 60, 2):
        look(doctor, EAGER, at)
    assert doctor.told is first
    other = window(H100["ppo_eager_16384_full"])
    look(doctor, other, 60)
    assert doctor.told is not None
    assert doctor.told.facts == diagnose(other).facts
    second = doctor.told
    look(doctor, EAGER, 64)
    assert doctor.told is second, "too soon"


def test_figures_that_look_the_same_are_no_news() -> None:
    doctor = Diagnostician()
    for i in range(FIRST):
        look(doctor, EAGER, i)
    first = doctor.told
    (gpu,) = EAGER.gpus
    look(doctor, replace(EAGER, gpus=(replace(gpu, sm=gpu.sm + 1e-5, power_w=gpu.power_w + 0.01),)), 60)
    assert doctor.told is first


def test_what_was_advised_for_other_values_is_advised_no_more() -> None:
    doctor = Diagnostician()
    for i in range(FIRST):
        look(doctor, EAGER, i)
    assert doctor.told is not None
    assert doctor.told.advice
    doctor.changed()
    assert doctor.told.advice == ()
    assert (doctor.told.verdict, doctor.told.stale) == ("launch-bound", True)
    look(doctor, EAGER, FIRST)
    assert doctor.told.advice, "the same verdict, now of the values in effect"
    assert not doctor.told.stale
    doctor.changed()
    news = [look(doctor, MATMUL, FIRST + 1 + i) for i in range(FIRST)]
    assert news == [False] * (FIRST - 1) + [True], "a change of a knob makes another verdict likely"
    assert (doctor.told.verdict, doctor.told.stale) == ("compute-bound", False)


# whatever is read -------------------------------------------------------------------------------------------

SHARE = st.one_of(st.just(UNKNOWN), st.floats(0, 1), st.sampled_from((-1.0, 7.0, math.inf)))
NAMES = st.sampled_from(("data", "rollout", "rollout/env", "env", "update", "exchange", "a/b/c", "", "/"))
GPUS = st.builds(
    synthetic,
    **dict.fromkeys(
        ("busy", "sm", "tensor", "fp32", "dram", "capped", "hot", "braked", "memory", "clock_mhz",
         "clock_max_mhz", "power_w",
         "upload", "upload_limit", "link", "temperature_c"),
        SHARE,
    ),
)  # fmt: skip


@given(
    gpus=st.lists(GPUS, max_size=3).map(tuple),
    phases=st.dictionaries(NAMES, SHARE, max_size=5),
    world=st.integers(0, 3),
    iterations=st.integers(0, 3),
    aside=SHARE,
    host_cpu=SHARE,
)
def test_nothing_that_is_read_makes_it_fail(gpus: object, phases: object, **more: object) -> None:
    seen = window(phases=phases, gpus=gpus, **more)  # type: ignore[arg-type]
    found = findings(seen)
    assert found
    for each in found:
        assert 0 <= each.confidence <= 0.95
    diagnose(seen)
