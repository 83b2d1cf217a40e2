"""A verdict never contradicts the readings that it comes from, whatever these are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hoptui.diagnosis.causes import Finding, share
from hoptui.diagnosis.sampled_time import SampledTime
from hoptui.diagnosis.verdict import CHALLENGES, Diagnostician, findings
from hoptui.diagnosis.window import GpuWindow, ObservationWindow
from hoptui.domain.activities import Activity
from hoptui.domain.code_lines import CodeLine
from hoptui.domain.diagnosis import VERDICTS
from hoptui.domain.facts import Fact, fact
from hoptui.domain.kind_rules import Kind
from hoptui.domain.stack_kinds import Basis
from hoptui.domain.stragglers import Straggler
from tests.diagnosis.loads import UNKNOWN, knob

OF_GPU = frozenset(
    ("launch-bound", "memory-bandwidth-bound", "compute-bound", "power-limited", "heat-limited",
     "memory-latency-bound", "memory-unused", "transfer-bound")
)  # fmt: skip
"""Verdicts on a GPU."""
OF_HOST = frozenset(("data-bound", "env-bound", "host-bound", "save-bound", "compiling"))
"""Verdicts on what a GPU waits for, on the host."""
KINDS_OF: dict[str, tuple[str, ...]] = {
    "data-bound": ("input", "script"),
    "env-bound": ("environment", "script"),
    "save-bound": ("save",),
    "compiling": ("compile",),
    "host-bound": ("script", "log"),
    "launch-bound": ("compute", "evaluate", "wait", "copy"),
    "transfer-bound": ("copy", "wait"),
    "wrong-device": ("compute", "evaluate"),
    "communication-bound": ("collective",),
    "healthy": ("compute", "evaluate"),
    "unknown": get_args(Kind),
}
"""What a thread does at the line in the evidence of a verdict. Without one, it is any line."""
BUSIEST = 0.75
"""A GPU that is busy for more of the time waits for less than a quarter of it: for nothing on the host."""
MOST_SM = 0.65
"""SMs that are active for more of the time do not wait for launches."""
CERTAIN, UNSURE = 0.9, 0.6
COUNTERS = ("sm", "tensor", "fp32", "fp64", "fp16", "dram", "upload", "download", "link")
ACTIVE: dict[str, str] = {
    "gpu.busy": "busy",
    "gpu.any_kernel": "busy",
    "gpu.sm_active": "sm",
    "gpu.tensor_active": "tensor",
    "gpu.fp32_active": "fp32",
    "gpu.fp64_active": "fp64",
    "gpu.dram_active": "dram",
}
"""The readings whose mean is the share in a fact."""
NO_GPU = [fact("driver.not_found", nvml=12, error=""), fact("driver.no_gpu")]
UNREADABLE = [fact("driver.no_access", nvml=4, error=""), fact("driver.hung"), fact("gpu.nothing_readable")]
KINDS: list[tuple[Kind, Basis]] = [
    ("wait", "known"), ("copy", "known"), ("collective", "known"), ("compute", "known"), ("input", "known"),
    ("environment", "known"), ("save", "known"), ("log", "known"), ("compile", "known"),
    ("evaluate", "known"), ("paused", "known"), ("script", "known"), ("script", "before"),
    ("script", "between"), ("script", "unknown"),
]  # fmt: skip
PHASES = ("data", "env", "exchange", "rollout", "rollout/env", "update", "update/all_reduce")

unit = st.one_of(st.sampled_from([0.0, 0.05, 0.5, 0.95, 1.0]), st.floats(0.0, 1.0))
maybe = st.one_of(st.just(UNKNOWN), unit)
counts = st.dictionaries(st.sampled_from(KINDS), st.integers(1, 200), max_size=4)


@st.composite
def gpus(draw: st.DrawFn, index: int) -> GpuWindow:
    """A GPU with readings, without counters as before Hopper, without busy time as MIG has, or lost."""
    known = draw(st.sampled_from(["all", "all", "no counters", "no busy time", "nothing"]))
    busy, sm = draw(unit), draw(unit)
    pcie = st.floats(0.0, 64e9)
    readings: dict[str, float] = {
        "busy": max(busy, sm),
        "sm": sm,
        "tensor": draw(unit) * sm,
        "fp32": draw(unit) * sm,
        "fp64": draw(unit) * sm,
        "fp16": draw(unit) * sm,
        "dram": draw(unit),
        "upload": draw(pcie),
        "download": draw(pcie),
        "link": draw(st.one_of(st.just(UNKNOWN), st.floats(0.0, 400e9))),
        "power_w": draw(st.one_of(st.just(UNKNOWN), st.floats(60.0, 720.0))),
        "clock_mhz": draw(st.one_of(st.just(UNKNOWN), st.floats(200.0, 2000.0))),
        "temperature_c": draw(st.one_of(st.just(UNKNOWN), st.floats(25.0, 95.0))),
        "capped": draw(maybe),
        "hot": draw(maybe),
        "braked": draw(maybe),
        "memory": draw(maybe),
    }
    missing = {"no counters": COUNTERS, "no busy time": ("busy",), "nothing": tuple(readings)}.get(known, ())
    single = draw(st.sets(st.sampled_from(["tensor", "fp32", "dram", "busy"]), max_size=2))
    readings |= dict.fromkeys((*missing, *single), UNKNOWN)
    return GpuWindow(
        index=index,
        rows=draw(st.sampled_from([20, 20, 20, 4])) if known != "nothing" else 0,
        power_limit_w=draw(st.sampled_from([UNKNOWN, 350.0, 700.0])),
        clock_max_mhz=draw(st.sampled_from([UNKNOWN, 1980.0])),
        upload_limit=draw(st.sampled_from([UNKNOWN, 64e9])),
        shared=draw(st.sampled_from([False, False, False, True])),
        missing=fact("gpm.needs_hopper", architecture="Ampere") if known == "no counters" else None,
        **readings,
    )


@st.composite
def phases(draw: st.DrawFn) -> dict[str, float]:
    """Shares of phases: the outer ones together and the inner ones within theirs."""
    found: dict[str, float] = {}
    for path in PHASES:
        if draw(st.booleans()):
            around = path.rpartition("/")[0]
            if around and around not in found:
                continue
            left = found[around] if around else 1 - sum(v for p, v in found.items() if "/" not in p)
            found[path] = draw(unit) * max(0.0, left)
    return found


def sampled(found: dict[tuple[Kind, Basis], int], own_loader: bool = False) -> SampledTime:
    """Samples with so many of each kind, each at a line of its own."""
    activities = Counter(
        {
            Activity(kind, CodeLine("train.py", at, "main"), "", own_loader and kind == "input", basis): n
            for at, ((kind, basis), n) in enumerate(found.items(), 1)
        }
    )
    return SampledTime.of(activities)


@st.composite
def windows(draw: st.DrawFn) -> ObservationWindow:
    """What may be known of a run."""
    world = draw(st.sampled_from([1, 1, 2, 8]))
    found = draw(counts)
    of_run = tuple(draw(gpus(index)) for index in range(draw(st.integers(0, 2))))
    straggler = None
    if world > 1 and found and draw(st.booleans()):
        others = draw(unit)
        straggler = Straggler(1, others * draw(unit), others, None, 0.0, 0.0)
    return ObservationWindow(
        t=10**12,
        seconds=draw(st.sampled_from([20.0, 20.0, 20.0, 3.0])),
        iterations=draw(st.sampled_from([100, 100, 100, 100, 2, 0])),
        phases=draw(phases()),
        aside=draw(unit),
        gpus=of_run,
        no_gpu=None if of_run else draw(st.sampled_from([None, *NO_GPU, *UNREADABLE])),
        knobs=draw(st.sampled_from([(), (knob("micro_batch", 8), knob("grad_accum", 8))])),
        world=world,
        cpus=draw(st.sampled_from([0, 16])),
        host_cpu=draw(maybe),
        sampled=sampled(found, draw(st.booleans())),
        free_gpus=draw(st.integers(0, 2)),
        straggler=straggler,
    )


def mean(window: ObservationWindow, of: Callable[[GpuWindow], float]) -> float:
    """The mean over the GPUs that have a reading, NaN if none has it."""
    known = [value for value in map(of, window.gpus) if math.isfinite(value)]
    return sum(known) / len(known) if known else UNKNOWN


def reading(window: ObservationWindow, name: str) -> float:
    return mean(window, lambda gpu: float(getattr(gpu, name)))


def busy(window: ObservationWindow) -> float:
    """How busy the GPUs are, by what is known."""
    found = reading(window, "busy")
    return found if math.isfinite(found) else reading(window, "sm")


def about(value: float) -> Any:
    """A reading as a fact shows it."""
    return pytest.approx(share(value), abs=1e-9) if math.isfinite(value) else None


def wrong(evidence: Fact, window: ObservationWindow) -> str:
    """What is wrong with a fact of a verdict, "" if it is what the window has."""
    code, fields = evidence.code, evidence.fields
    if code in ACTIVE:
        return "" if fields["share"] == about(reading(window, ACTIVE[code])) else "not the mean reading"
    match code:
        case "gpu.idle_share":
            return "" if fields["share"] == about(1 - busy(window)) else "not the idle time"
        case "gpu.kernel_fill":
            fill = reading(window, "sm") / reading(window, "busy")
            return "" if fields["share"] == about(fill) else "not SMs per busy time"
        case "gpu.memory":
            fullest = max((g.memory for g in window.gpus if g.memory == g.memory), default=UNKNOWN)
            return "" if fields["share"] == about(fullest) else "not the fullest GPU"
        case "gpu.power":
            limit = reading(window, "power_limit_w")
            told = fields.get("limit_w", UNKNOWN)
            same = abs(fields["watts"] - reading(window, "power_w")) <= 0.5
            return "" if same and (told == limit or math.isnan(told + limit)) else "not the power"
        case "gpu.clock":
            every = [(mean(window, lambda g: g.clock_mhz), mean(window, lambda g: g.clock_max_mhz))]
            every += [(gpu.clock_mhz, gpu.clock_max_mhz) for gpu in window.gpus]
            told = (fields["mhz"], fields["max_mhz"])
            return "" if any(_near(told, each, 0.5) for each in every) else "no clock of a GPU"
        case "gpu.pcie":
            rates = [reading(window, name) for name in ("upload", "download")]
            return "" if any(_near_rate(fields["bytes_per_s"], rate) for rate in rates) else "no rate of PCIe"
        case "gpu.nvlink":
            return "" if _near_rate(fields["bytes_per_s"], reading(window, "link")) else "not the rate"
        case "gpu.hot" | "gpu.power_brake":
            name = "hot" if code == "gpu.hot" else "braked"
            read = [about(getattr(gpu, name)) for gpu in window.gpus if fields.get("gpu", 0) == gpu.index]
            return "" if fields["share"] in read else "not the reading of that GPU"
        case "gpu.temperature":
            read = [gpu.temperature_c for gpu in window.gpus]
            return "" if any(abs(fields["celsius"] - each) <= 0.5 for each in read) else "no temperature"
        case "gpu.no_counters" | "gpu.counters_not_read" | "gpu.no_rows":
            lacking = [gpu for gpu in window.gpus if not math.isfinite(gpu.sm)]
            return "" if lacking else "all have counters"
        case "gpu.shared":
            return "" if fields["gpus"] == [g.index for g in window.gpus if g.shared] else "not those"
        case "host.cpu":
            return "" if fields["share"] == about(window.host_cpu) else "not the CPU"
        case "phase.largest":
            return "" if fields["share"] == about(window.phases[fields["phase"]]) else "not the phase"
        case "phase.share":
            low, high = share(window.phases[fields["phase"]]), share(min(1.0, sum(window.phases.values())))
            return "" if low - 1e-9 <= fields["share"] <= high + 1e-9 else "not these phases"
        case "time.aside" | "time.all_aside":
            return "" if fields["share"] == about(window.aside) else "not the time aside"
        case "line.hot":
            lines = [*window.sampled.lines.values(), *window.sampled.guessed_lines.values()]
            told = (fields["kind"], fields["line"], fields["share"])
            return "" if told in [(x.kind, x.place.line, share(x.share)) for x in lines] else "no such line"
        case "cpu.computes":
            of = window.sampled.share("compute", "evaluate")
            return "" if fields["share"] == about(of) else "not the samples"
        case "cpu.thread_waits":
            return "" if fields["share"] == about(window.on_cpu) else "not the CPU time"
        case "cpu.queued":
            return "" if fields["share"] == about(window.queued) else "not the time in the queue"
        case "cpu.interpreter_kept":
            most = share(sum(window.sampled.kept.values()))
            return "" if 0 < fields["share"] <= most + 1e-9 else "not these samples"
        case "gpu.none_used":
            return "" if fields["count"] == window.free_gpus > 0 else "not the free GPUs"
    return ""


def _near(told: tuple[float, float], known: tuple[float, float], by: float) -> bool:
    return all(abs(one - other) <= by for one, other in zip(told, known, strict=True))


def _near_rate(told: float, rate: float) -> bool:
    """Whether a rate is right in the digits that are shown."""
    return abs(told - rate) <= max(0.051e9, 0.051 * rate)


def shares(evidence: Fact) -> list[float]:
    names = ("share", "whole", "waits", "others_wait", "other_share")
    return [evidence.fields[name] for name in names if name in evidence.fields]


def uncertain(found: Finding, window: ObservationWindow) -> str:
    """Why a verdict cannot be certain, "" if it can."""
    if any(not math.isfinite(gpu.sm) for gpu in window.gpus):
        return "a GPU has no counters"
    if window.gpus and not math.isfinite(busy(window)):
        return "nobody knows whether the GPUs work"
    pipes = [reading(window, name) for name in ("tensor", "fp32", "dram")]
    if found.verdict == "healthy" and window.gpus and not all(map(math.isfinite, pipes)):
        return "a part of the GPU that is unread may be at its limit"
    if not window.gpus and window.no_gpu in UNREADABLE:
        return "its GPUs cannot be read"
    if not window.gpus and not window.sampled.count:
        return "there are neither GPUs nor samples"
    return ""


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(windows())
def test_the_evidence_of_a_verdict_is_what_was_read(window: ObservationWindow) -> None:
    for found in findings(window):
        for evidence in found.facts:
            assert not wrong(evidence, window), (found.verdict, evidence, wrong(evidence, window))
            assert all(0 <= each <= 1 for each in shares(evidence)), (found.verdict, evidence)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(windows())
def test_a_verdict_needs_the_readings_of_its_kind(window: ObservationWindow) -> None:
    for found in findings(window):
        assert found.verdict in VERDICTS
        if found.verdict in OF_GPU:
            assert window.gpus, found
        if found.verdict == "wrong-device":
            assert window.free_gpus if not window.gpus else busy(window) < 0.02, found
        if found.verdict in OF_HOST:
            assert not busy(window) > BUSIEST + 1e-9, found
        if found.verdict == "launch-bound":
            assert not reading(window, "sm") > MOST_SM + 1e-9, found
            assert busy(window) > 0, found
        if found.verdict in ("communication-bound", "straggler"):
            assert window.world > 1, found
        for line in (each.fields for each in found.facts if each.code == "line.hot"):
            assert line["kind"] in KINDS_OF[found.verdict], found
            if found.verdict == "transfer-bound" and line["kind"] == "wait":
                full = mean(window, lambda gpu: gpu.uploading) >= 0.5
                assert full or reading(window, "download") >= 0.5e9, "it waits for no copy"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(windows())
def test_a_verdict_without_counters_says_so(window: ObservationWindow) -> None:
    lacking = [gpu.index for gpu in window.gpus if not math.isfinite(gpu.sm)]
    for found in findings(window):
        codes = {each.code for each in found.facts}
        missing = codes & {"gpu.no_counters", "gpu.counters_not_read", "gpu.no_rows"}
        assert bool(missing) == bool(lacking and window.iterations), found


EVERY = GpuWindow(
    index=0, rows=20, busy=1.0, sm=1.0, tensor=0.3, fp32=0.1, dram=0.3, clock_mhz=1980.0, capped=0.0, hot=0.0,
    braked=0.0, memory=0.5,
)  # fmt: skip
"""A GPU of which all is known. It works and nothing limits it."""


def best(*gpus: GpuWindow, counts: dict[tuple[Kind, Basis], int] | None = None, **more: Any) -> Finding:
    """The first finding of enough readings of these GPUs, and of so many samples."""
    return findings(
        ObservationWindow(
            t=10**12, seconds=20.0, iterations=100, gpus=gpus, sampled=sampled(counts or {}), **more
        )
    )[0]


def test_readings_that_are_missing_leave_doubt() -> None:
    assert best(EVERY).verdict == "healthy"
    assert best(EVERY).confidence == pytest.approx(CERTAIN)
    for without in (
        replace(EVERY, tensor=UNKNOWN),
        replace(EVERY, fp32=UNKNOWN),
        replace(EVERY, dram=UNKNOWN),
    ):
        found = best(without)
        assert (found.verdict, found.confidence) == ("healthy", UNSURE)
    idle = replace(EVERY, busy=0.0, sm=0.0, index=1)
    loads: dict[tuple[Kind, Basis], int] = {("input", "known"): 200}
    assert best(replace(idle, index=0), idle, counts=loads).confidence > CERTAIN
    found = best(replace(idle, index=0), replace(idle, sm=UNKNOWN), counts=loads)
    assert (found.verdict, found.confidence) == ("data-bound", UNSURE)
    assert fact("gpu.counters_not_read", gpu=1) in found.facts


def test_gpus_that_cannot_be_read_are_not_taken_for_none() -> None:
    computes: dict[tuple[Kind, Basis], int] = {("compute", "known"): 200}
    for problem in (None, *NO_GPU):
        assert best(counts=computes, no_gpu=problem).confidence > CERTAIN
    for problem in UNREADABLE:
        assert best(counts=computes, no_gpu=problem).confidence == UNSURE


def test_a_mig_instance_has_no_busy_time_in_its_evidence() -> None:
    slice_of_it = replace(EVERY, busy=UNKNOWN, sm=0.1)
    found = best(slice_of_it, phases={"data": 0.8})
    assert (found.verdict, found.facts[1]) == ("data-bound", fact("gpu.sm_active", share=0.1))
    found = best(slice_of_it)
    assert found.verdict == "launch-bound"
    assert [each.code for each in found.facts] == ["gpu.sm_active"]


def test_the_line_of_slow_transfers_is_one_that_copies() -> None:
    uploads = replace(EVERY, busy=0.1, sm=0.1, upload=8e9, download=1e6)
    found = best(uploads, counts={("copy", "known"): 90, ("wait", "known"): 110})
    assert found.verdict == "transfer-bound"
    assert [each.fields["kind"] for each in found.facts if each.code == "line.hot"] == ["copy"]


@pytest.mark.parametrize(
    ("rate", "told"), [(0.5e9, 0.5e9), (1.46e9, 1.5e9), (9.97e9, 10e9), (10.4e9, 10e9), (55.6e9, 56e9)]
)
def test_a_rate_of_pcie_keeps_its_digits(rate: float, told: float) -> None:
    found = best(replace(EVERY, busy=0.1, sm=0.1, upload=rate, download=0.0), counts={("copy", "known"): 200})
    assert fact("gpu.pcie", bytes_per_s=told) in found.facts


def test_two_signs_of_one_cause_raise_no_doubt() -> None:
    hot = replace(EVERY, hot=0.8)
    found = best(hot, replace(hot, index=1))
    assert (found.verdict, found.confidence) == ("heat-limited", 0.95)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(windows())
def test_the_confidence_of_a_verdict_is_what_its_readings_allow(window: ObservationWindow) -> None:
    first, *others = findings(window)
    for found in (first, *others):
        assert 0 <= found.confidence <= 1, found
        assert (found.confidence == 0) == (found.verdict == "unknown"), found
        if why := uncertain(found, window):
            assert found.confidence < CERTAIN, (found, why)
    assert all(first.confidence >= other.confidence for other in others)
    assert first.verdict != "unknown" or not others
    doctor = Diagnostician()
    for _ in range(CHALLENGES):
        doctor.look(window)
    assert doctor.told is not None
    assert doctor.told.verdict == first.verdict
    assert doctor.told.confidence == pytest.approx(first.confidence, abs=0.025 + 1e-9)
