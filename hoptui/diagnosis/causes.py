"""The causes of a verdict: what a GPU waits for, and what limits a GPU that has work.

A GPU waits for input, environments, other ranks, or the next kernel. An SM without work is lost time. Phases
claim a part of it; the rest belongs to the kernels, which are too small or launched too slowly. A GPU with
work is limited by its arithmetic, its memory bus, its power, its heat, or by how the work is cut.

Figures without a named source are means of H100 traces. Extracts of these traces are in
`tests/diagnosis/data`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from hoptui.diagnosis.knob_roles import pieces
from hoptui.diagnosis.window import GpuWindow, ObservationWindow
from hoptui.domain.diagnosis import Verdict
from hoptui.domain.facts import Fact, fact

MOST_CERTAIN = 0.95
UNSURE = 0.6
"""The highest confidence of a verdict with little evidence, or with evidence that also fits another
cause."""


class Finding(NamedTuple):
    """A possible verdict. `lost` is the share of the time, or of the speed, that it explains."""

    verdict: Verdict
    confidence: float
    lost: float
    facts: tuple[Fact, ...]

    def at_most(self, confidence: float) -> Finding:
        """The same finding, with its confidence limited to this value."""
        return self._replace(confidence=min(self.confidence, confidence))


class ConfidenceScale(NamedTuple):
    """The figure at which a cause has even odds, and the figure from which it is almost certain."""

    named: float
    certain: float

    def confidence(self, value: float) -> float:
        """0 below the first figure (and for NaN), 0.5 at it, `MOST_CERTAIN` from the second on."""
        if not value >= self.named:
            return 0.0
        return 0.5 + (MOST_CERTAIN - 0.5) * min(1.0, (value - self.named) / (self.certain - self.named))


RESULTS_BYTES_PER_S = 2e9
"""A GPU that sends so much to the host for the whole time does little else if its SMs are idle."""
NO_KERNELS = 0.1
"""SM active ÷ busy below which copies may be what keeps a GPU busy. A copy of 1.6 GB to pageable memory in
each iteration reads 0.014 on an H200."""


class Means:
    """Readings of `GpuWindow`, averaged over the run's GPUs that have them. NaN if none has.

    `kernels` is `GpuWindow.busy`. A MIG instance has counters and lacks it: `busy` is `sm` then. `memory` is
    that of the fullest; `uploading` the share of what PCIe carries.
    """

    def __init__(self, gpus: Sequence[GpuWindow]) -> None:
        def over(reading: Callable[[GpuWindow], float]) -> float:
            known = [value for value in map(reading, gpus) if math.isfinite(value)]
            return sum(known) / len(known) if known else math.nan

        self.sm = over(lambda g: g.sm)
        self.kernels = over(lambda g: g.busy)
        self.busy = self.kernels if math.isfinite(self.kernels) else self.sm
        self.tensor = over(lambda g: g.tensor)
        self.fp32 = over(lambda g: g.fp32)
        self.fp64 = over(lambda g: g.fp64)
        self.fp16 = over(lambda g: g.fp16)
        self.dram = over(lambda g: g.dram)
        self.power_w = over(lambda g: g.power_w)
        self.power_limit_w = over(lambda g: g.power_limit_w)
        self.clock_mhz = over(lambda g: g.clock_mhz)
        self.clock_max_mhz = over(lambda g: g.clock_max_mhz)
        self.clock_lost = over(lambda g: g.clock_lost)
        self.capped = over(lambda g: g.capped)
        self.memory = max((g.memory for g in gpus if g.memory == g.memory), default=math.nan)
        self.upload = over(lambda g: g.upload)
        self.uploading = over(lambda g: g.uploading)
        self.download = over(lambda g: g.download)
        self.link = over(lambda g: g.link)

    @property
    def only_copies(self) -> bool:
        """Whether what keeps the GPU busy are copies to the host: the driver counts these as busy."""
        return self.download >= RESULTS_BYTES_PER_S and self.sm < NO_KERNELS * self.busy

    @property
    def arithmetic(self) -> float:
        """The share of what the busiest units for floating point could do. NaN if the usual ones are
        unread."""
        if math.isnan(self.tensor) or math.isnan(self.fp32):
            return math.nan
        others = (one for one in (self.fp64, self.fp16) if math.isfinite(one))
        return max(self.tensor, self.fp32, *others)

    @property
    def idle(self) -> float:
        """The share of the time in which no kernel runs. 1 if unknown: then no reading contradicts
        waiting."""
        return 1 - self.busy if self.busy == self.busy else 1.0


def share(value: float) -> float:
    """A share, rounded as it is shown: three decimals below 0.1, otherwise two. A finer value would change at
    every look."""
    shown = round(100 * value, 1 if abs(value) < 0.0995 else 0)  # in per cent: the sentence rounds alike
    return round(shown / 100, 3)


def share_fact(code: str, value: float) -> tuple[Fact, ...]:
    """A fact with a `share`. Empty if the share is unknown."""
    return (fact(code, share=share(value)),) if math.isfinite(value) else ()


def at_work(seen: Means) -> tuple[Fact, ...]:
    """How busy the GPUs are: by their kernels, or by their SMs if that is unknown."""
    return share_fact("gpu.busy", seen.kernels) or share_fact("gpu.sm_active", seen.sm)


def power(seen: Means) -> tuple[Fact, ...]:
    """The watts and the limit in watts, as far as they are known."""
    if not math.isfinite(seen.power_w):
        return ()
    limit = {"limit_w": round(seen.power_limit_w, 0)} if seen.power_limit_w > 0 else {}
    return (fact("gpu.power", watts=round(seen.power_w, 0), **limit),)


def clock(mhz: float, highest: float) -> tuple[Fact, ...]:
    """The clock of the SMs and the highest one, both in MHz. Empty if either is unknown."""
    if not (math.isfinite(mhz) and highest > 0):
        return ()
    return (fact("gpu.clock", mhz=round(mhz, 0), max_mhz=round(highest, 0)),)


def transfer(seen: Means) -> tuple[Fact, ...]:
    """The larger of both directions over PCIe, in bytes a second. Empty if unknown."""
    known = [rate for rate in (seen.upload, seen.download) if rate == rate]
    return (fact("gpu.pcie", bytes_per_s=_gigabytes(max(known))),) if known else ()


def _gigabytes(bytes_per_s: float) -> float:
    """A rate in bytes a second, rounded as it is shown: whole GB/s from 10 GB/s on, otherwise tenths."""
    return round(bytes_per_s, -9 if bytes_per_s >= 9.95e9 else -8)


DATA = frozenset(
    (
        "data", "data_loading", "data_load", "data_wait", "data_time", "dataloader", "data_loader", "loader",
        "loading", "load", "load_batch", "load_data", "get_batch", "next_batch", "fetch", "fetch_batch",
        "fetch_data", "input", "input_wait", "inputs", "prefetch", "read", "decode", "augment",
        "augmentation", "preprocess", "preprocessing", "collate",
        "tokenize",
    )
)  # fmt: skip
ENVIRONMENTS = frozenset(
    ("env", "envs", "env_step", "env_steps", "environment", "environments", "sim", "simulate", "simulation",
     "simulator", "physics")
)  # fmt: skip
EXCHANGE = frozenset(
    (
        "exchange", "allreduce", "all_reduce", "reduce", "comm", "communication", "communicate",
        "sync_gradients", "gradient_sync", "grad_sync", "sync_grads",
    )
)  # fmt: skip
"""Names of phases (the last part of the path) with a known meaning."""

WAITING = ConfidenceScale(0.25, 0.5)
"""Share of the time that the GPU waits for input or environments: a load whose SMs have work for 65 % of the
time loses less to any other single cause."""
UNSEEN = ConfidenceScale(0.5, 0.75)
"""The same without readings of an idle GPU. On a CPU a phase waits for nothing, and limits a run only if it
takes most of the time."""
EXCHANGING = ConfidenceScale(0.2, 0.4)
"""Share of the time in exchange: two GPUs that are 1.98 times as fast as one lose 0.01 to it
(docs/internals/benchmark_log.md, R5)."""
LAUNCHING = ConfidenceScale(0.35, 0.55)
"""Share of the time without work on the SMs that nothing else explains. PPO's small kernels leave 0.5
(compiled, in graphs) to 0.99 (batch 1, eager); a language model's smallest batch leaves 0.17, the most
parallel part of PPO 0.27."""
UPLOADING = ConfidenceScale(0.5, 0.75)
"""Share of what PCIe carries one way: an upload that does nothing else reads 0.91
(docs/internals/benchmark_log.md)."""
ENOUGH_SM = 0.65
NOTHING_RUNS = 0.02
LAUNCHES_BYTES_PER_S = 60.0 * (1 << 20)
"""Every launch passes PCIe: eager loops, which do nothing but launch, read 125 to 240 MiB/s, graphs at most
26, a GPU at rest 1. With less than half of an eager loop's the host is busy with something else."""
SMALL_KERNELS = 0.4
"""SM active ÷ busy, how much of the GPU a kernel fills: batch 1 0.03, eager PPO 0.02 to 0.37, in graphs up to
0.5."""
LINK_BYTES_PER_S = 15e9
"""Over NVLink, of two H200: with a micro-batch of 4 a step they send 29 GB/s and their SMs idle 0.46 of the
time; with one of 32, 7 GB/s and 0.08."""
LINK_ALONE = 0.7
"""The highest confidence that NVLink traffic gives without a phase that measures the wait."""
WORKS_ON = 0.05
NOTICED = 0.05
"""If a GPU waits less than this, a change can hardly gain what the tuner requires."""


def waiting(window: ObservationWindow, seen: Means) -> Iterator[Finding]:
    """Findings of input, environments and other ranks."""
    scale = WAITING if seen.busy == seen.busy else UNSEEN
    data = _lost_to_data(window, seen)
    if sure := scale.confidence(data):
        facts = (*phase(window, DATA), *at_work(seen), *host(window))
        yield Finding("data-bound", sure, data, facts)
    elif lost := _lost_to_uploads(window, seen):
        facts = (*transfer(seen), *share_fact("gpu.sm_active", seen.sm))
        yield Finding("transfer-bound", UPLOADING.confidence(seen.uploading), lost, facts)
    environments = _lost_to_environments(window, seen)
    if sure := scale.confidence(environments):
        if window.gpus and _launches(seen) is not False:
            sure = min(sure, UNSURE)  # environments on the GPU, launched one kernel at a time, look alike
        facts = (*phase(window, ENVIRONMENTS), *at_work(seen), *host(window))
        yield Finding("env-bound", sure, environments, facts)
    exchange = _lost_to_exchange(window, seen)
    if sure := EXCHANGING.confidence(exchange):
        measured = phase(window, EXCHANGE)
        link = (fact("gpu.nvlink", bytes_per_s=_gigabytes(seen.link)),) if seen.link > 1e9 else ()
        facts = (*measured, *link, *share_fact("gpu.sm_active", seen.sm))
        found = Finding("communication-bound", sure, exchange, facts)
        yield found if measured else found.at_most(LINK_ALONE)


def launching(window: ObservationWindow, seen: Means) -> Iterator[Finding]:
    """A finding of kernels that are too small, or launched too slowly. Needs the SMs' counters."""
    if not seen.busy >= NOTHING_RUNS:
        return
    lost = 1 - seen.sm
    for claimed in (_lost_to_data, _lost_to_uploads, _lost_to_environments, _lost_to_exchange):
        lost -= claimed(window, seen)
    sure = LAUNCHING.confidence(lost)
    fill = seen.sm / seen.busy
    starved = _launches(seen) is False and seen.idle > WAITING.certain  # the host does not even launch
    if not sure or (starved and fill >= SMALL_KERNELS):
        return
    small = share_fact("gpu.kernel_fill", fill) if fill < SMALL_KERNELS else ()
    busy = share_fact("gpu.any_kernel", seen.kernels)
    facts = (*share_fact("gpu.sm_active", seen.sm), *busy, *small, *power(seen))
    found = Finding("launch-bound", sure, lost, facts)
    yield found.at_most(UNSURE) if starved or _may_wait_for_ranks(window, seen) else found


def noticed(window: ObservationWindow, seen: Means) -> Iterator[tuple[Verdict, tuple[Fact, ...]]]:
    """An occasional wait of a GPU, as a verdict's name and facts. It may be worth a change in addition to the
    main limit."""
    if seen.busy == seen.busy:
        if _lost_to_data(window, seen) >= NOTICED:
            yield "data-bound", phase(window, DATA)
        if _lost_to_environments(window, seen) >= NOTICED:
            yield "env-bound", phase(window, ENVIRONMENTS)


def waits_for_the_host(seen: Means) -> bool:
    """Whether the GPU has no work for a reason other than slow launches."""
    return seen.busy < NOTHING_RUNS or (_launches(seen) is False and seen.idle > WAITING.named)


def claimed(window: ObservationWindow, names: frozenset[str]) -> tuple[float, str]:
    """The time in phases of these names, and the largest of them; one inside another counts once."""
    paths = [p for p in window.phases if p.rpartition("/")[2].lower().replace("-", "_") in names]
    outer = [p for p in paths if not any(p.startswith(f"{other}/") for other in paths)]
    largest = max(outer, key=lambda path: window.phases[path], default="")
    return min(1.0, sum(window.phases[p] for p in outer)), largest


def _lost_to_data(window: ObservationWindow, seen: Means) -> float:
    """The lost part of a phase that the host's clock measured. The GPU works during some of it, so only its
    idle time is lost."""
    return min(claimed(window, DATA)[0], seen.idle)


def _lost_to_uploads(window: ObservationWindow, seen: Means) -> float:
    """What no phase claims of a GPU with little work, while its link is full."""
    return max(0.0, 1 - seen.sm - _lost_to_data(window, seen)) if uploads(seen) else 0.0


def uploads(seen: Means) -> bool:
    """Whether the link of a GPU with little work is full: nothing but input comes in so fast."""
    return UPLOADING.confidence(seen.uploading) > 0 and seen.sm < ENOUGH_SM


def _lost_to_environments(window: ObservationWindow, seen: Means) -> float:
    """The same for environments on the CPU; those on the GPU keep it as busy as the rest of an iteration
    does."""
    share, path = claimed(window, ENVIRONMENTS)
    around = path.rpartition("/")[0]
    if around and _launches(seen) is False:  # the rollout around them is not on the GPU either
        share = max(share, window.phases.get(around, 0.0))
    return 0.0 if seen.busy > 1 - share + WORKS_ON else min(share, seen.idle)


def _lost_to_exchange(window: ObservationWindow, seen: Means) -> float:
    if window.world < 2:
        return 0.0
    share, path = claimed(window, EXCHANGE)
    return share if path else lost_to_link(window, seen)


def lost_to_link(window: ObservationWindow, seen: Means) -> float:
    """What the SMs of GPUs idle that send each other much: their kernels wait for the link."""
    return max(0.0, 1 - seen.sm) if window.world > 1 and seen.link >= LINK_BYTES_PER_S else 0.0


def _may_wait_for_ranks(window: ObservationWindow, seen: Means) -> bool:
    """Whether ranks may wait for each other unseen: no phase shows it, and NVLink is unread or some GPUs are
    elsewhere."""
    return waits_unseen(window) and (seen.link != seen.link or window.world > len(window.gpus))


def waits_unseen(window: ObservationWindow) -> bool:
    """Whether ranks may wait for each other inside of other work: DDP does so in the backward pass, where its
    kernels keep the SMs active."""
    return window.world > 1 and not (claimed(window, EXCHANGE)[1] or window.sampled.share("collective"))


def _launches(seen: Means) -> bool | None:
    """Whether the host may be launching all the time. None if unknown."""
    return seen.upload >= LAUNCHES_BYTES_PER_S if seen.upload == seen.upload else None


def phase(window: ObservationWindow, names: frozenset[str]) -> tuple[Fact, ...]:
    """The largest phase of these names, and the share of them all. Empty if there is none."""
    spent, path = claimed(window, names)
    return (fact("phase.share", phase=path, share=share(spent)),) if path else ()


def host(window: ObservationWindow) -> tuple[Fact, ...]:
    """How busy the CPUs are. Empty if unknown."""
    if not window.cpus or window.host_cpu != window.host_cpu:
        return ()
    return (fact("host.cpu", share=share(window.host_cpu), cores=window.cpus),)


TENSOR = ConfidenceScale(0.7, 0.85)
"""Of the tensor cores: 8192³ products read 0.91 to 0.94, language models at 41 to 56 % MFU 0.37 to 0.6."""
FP32 = ConfidenceScale(0.35, 0.55)
"""cuBLAS's 8192³ product in FP32, 51.6 of 67 TFLOP/s, reads 0.77; what is not bound by it at most 0.23. A
model has other kernels between its products. FP64 units were not measured, so the same figures are doubtful
for them."""
BANDWIDTH = ConfidenceScale(0.55, 0.75)
"""Of the memory bus: a copy reads 0.90, PPO limited by its activations 0.72
(docs/internals/benchmark_log.md), an eager language model 0.57, compiled ones at most 0.51."""
CAPPED = 0.5
NEAR_LIMIT = 0.8
"""The driver's bits tell of moments. A board that draws less than this of its limit is not held by it."""
CLOCK_LOST = ConfidenceScale(0.05, 0.15)
"""At the power limit a language model loses 0.045 of the clock with a micro-batch of 8, 0.11 with 16, 0.17
with 64."""
HOT = ConfidenceScale(0.2, 0.5)
"""Share of the readings in which heat or the power brake reduces the clocks. Unlike the power limit, this is
never normal."""
HEAT_COSTS = 0.2
"""At least so much is lost to heat: a board that is too hot halves its clocks now and then (nvml.h)."""
HALF_EMPTY = 0.45
"""With less of its memory in use a GPU holds twice the size, whatever part of it is fixed, below the 92 %
that the tuner keeps to."""
FURTHEST = 16
"""The largest advised factor of a size. Memory is not in proportion to a size, so each step is to be small
enough to be seen."""
FULL_SM = 0.9
QUIET, QUIET_BUS = 0.2, 0.3
"""Work that waits for memory leaves tensor cores and FP32 units below the first, the memory bus below the
other one: each row of 16 bytes at a random place moves at least 32. Such rows of an H200 read 0.22."""
SILENT = 0.05
"""With arithmetic below this, any bus that is not full is that of work which waits for memory. Numbers of 4
bytes at random places, on an H200, read 0.49."""
BUSY_BUS = 0.5
"""From here on, work that hardly computes is limited by the memory bus, though less surely than by a full
one. Fourier transforms of large fields read 0.55 on an H200, with FP32 units below 0.2."""
LATENCY_SM = 0.75
"""From here on a GPU with work counts as healthy, more surely than as waiting for memory."""
LATENCY_SURE = 0.65
"""Kernels that compute with integers, or with functions such as `exp`, read the same."""


def capacity(seen: Means) -> Iterator[Finding]:
    """Findings of arithmetic, memory bandwidth and power."""
    sm = share_fact("gpu.sm_active", seen.sm)
    at_limit = (fact("gpu.at_power_limit"), *clock(seen.clock_mhz, seen.clock_max_mhz))
    capped = seen.capped >= CAPPED and not seen.power_w < NEAR_LIMIT * seen.power_limit_w
    tensor, fp32 = TENSOR.confidence(seen.tensor), FP32.confidence(seen.fp32)
    fp64 = min(UNSURE, FP32.confidence(seen.fp64))
    if tensor or fp32:
        code, active = ("gpu.tensor_active", seen.tensor) if tensor else ("gpu.fp32_active", seen.fp32)
        facts = (*share_fact(code, active), *(at_limit if capped else ()), *sm)
        yield Finding("compute-bound", tensor or fp32, active, facts)
    elif capped and (sure := CLOCK_LOST.confidence(seen.clock_lost)):
        yield Finding("power-limited", sure, seen.clock_lost, (*power(seen), *at_limit[1:], *sm))
    if fp64 and not (tensor or fp32):
        yield Finding("compute-bound", fp64, seen.fp64, (*share_fact("gpu.fp64_active", seen.fp64), *sm))
    if sure := BANDWIDTH.confidence(seen.dram):
        yield _bandwidth(seen, sure)


def _bandwidth(seen: Means, sure: float) -> Finding:
    shares = (
        ("gpu.dram_active", seen.dram),
        ("gpu.sm_active", seen.sm),
        ("gpu.tensor_active", seen.tensor),
    )
    facts = tuple(known for code, active in shares for known in share_fact(code, active))
    return Finding("memory-bandwidth-bound", sure, seen.dram, facts)


def busy_bus(seen: Means) -> Iterator[Finding]:
    """A finding of SMs that always have work and compute little, beside a memory bus that is not full."""
    if SILENT <= seen.arithmetic < QUIET and seen.sm >= LATENCY_SM and seen.dram >= BUSY_BUS:
        yield _bandwidth(seen, UNSURE)


def latency(seen: Means) -> Iterator[Finding]:
    """A finding of SMs that always have work and wait for memory: no pipe and no bus is near its limit."""
    pipes = (seen.tensor, seen.fp32, seen.dram)
    quiet = seen.arithmetic < SILENT or (seen.arithmetic < QUIET and seen.dram < QUIET_BUS)
    if seen.sm >= LATENCY_SM and quiet and not any(map(math.isnan, pipes)):
        readings = (
            ("gpu.sm_active", seen.sm),
            ("gpu.dram_active", seen.dram),
            ("gpu.tensor_active", seen.tensor),
            ("gpu.fp32_active", seen.fp32),
        )
        facts = tuple(known for code, active in readings for known in share_fact(code, active))
        yield Finding("memory-latency-bound", LATENCY_SURE, 1 - max(pipes), facts)


def protection(window: ObservationWindow) -> Iterator[Finding]:
    """Findings of clocks that are held down to protect the hardware: one GPU of a run holds up all others."""
    many = len(window.gpus) > 1
    for gpu in window.gpus:
        which = {"gpu": gpu.index} if many else {}
        lost = max(HEAT_COSTS, gpu.clock_lost) if gpu.clock_lost == gpu.clock_lost else HEAT_COSTS
        slow = clock(gpu.clock_mhz, gpu.clock_max_mhz)
        if sure := HOT.confidence(gpu.hot):
            known = gpu.temperature_c > 0
            warm = (fact("gpu.temperature", celsius=round(gpu.temperature_c, 0)),) if known else ()
            facts = (fact("gpu.hot", share=share(gpu.hot), **which), *warm, *slow)
            yield Finding("heat-limited", sure, lost, facts)
        if sure := HOT.confidence(gpu.braked):
            facts = (fact("gpu.power_brake", share=share(gpu.braked), **which), *slow)
            yield Finding("power-limited", sure, lost, facts)


def unused_memory(window: ObservationWindow, seen: Means) -> Iterator[Finding]:
    """A finding of work that is cut smaller than memory asks for, where the GPU is at work most of the
    time."""
    count = pieces(window.knobs)
    if count > 1 and seen.sm >= ENOUGH_SM and seen.memory < HALF_EMPTY:
        sure = UNSURE + 0.2 * (1 - seen.memory / HALF_EMPTY)
        memory = share_fact("gpu.memory", seen.memory)
        facts = (fact("batch.pieces", pieces=count), *memory, *share_fact("gpu.sm_active", seen.sm))
        yield Finding("memory-unused", sure, 1 - seen.sm, facts)


def room_on_host(window: ObservationWindow) -> int:
    """How many times its present size a run without a GPU may have: a power of two, 1 without room, and 1 if
    memory is unknown."""
    factor = 1
    while factor < FURTHEST and window.host_filled * factor < HALF_EMPTY:
        factor *= 2
    return factor


def healthy(seen: Means) -> Iterator[Finding]:
    """The healthy finding: the SMs have work, and no part of the GPU is at its limit, as far as is known.

    It is not sure where they hardly compute: then they may wait for memory.
    """
    if seen.sm >= ENOUGH_SM:
        sure = 0.5 + 0.4 * min(1.0, (seen.sm - ENOUGH_SM) / (FULL_SM - ENOUGH_SM))
        shares = (
            ("gpu.sm_active", seen.sm),
            ("gpu.tensor_active", seen.tensor),
            ("gpu.dram_active", seen.dram),
        )
        facts = tuple(known for code, active in shares for known in share_fact(code, active))
        found = Finding("healthy", sure, 0.0, facts)
        unknown = any(map(math.isnan, (seen.tensor, seen.fp32, seen.dram)))
        yield found.at_most(UNSURE) if unknown or seen.arithmetic < QUIET else found
