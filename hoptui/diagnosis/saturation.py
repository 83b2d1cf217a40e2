"""What limits a GPU that has work: its arithmetic, its memory bus, its power, its heat; or how the work is
cut.

Where no other source is named, figures are means of the H100 traces of which extracts are in
`tests/diagnosis/data`.
"""

from __future__ import annotations

from collections.abc import Iterator

from hoptui.diagnosis.evidence import (
    UNSURE,
    ConfidenceScale,
    Finding,
    Means,
    clocks,
    share_text,
    watts,
)
from hoptui.diagnosis.idle_causes import ENOUGH_SM
from hoptui.diagnosis.knob_roles import pieces
from hoptui.diagnosis.window import ObservationWindow
from hoptui.domain.quantities import percent

TENSOR = ConfidenceScale(0.7, 0.85)
"""Of the tensor cores: 8192³ products read 0.91 to 0.94, language models at 41 to 56 % MFU 0.37 to 0.6."""
FP32 = ConfidenceScale(0.55, 0.7)
"""cuBLAS's 8192³ product in FP32, 51.6 of 67 TFLOP/s, reads 0.77; everything else at most 0.23."""
BANDWIDTH = ConfidenceScale(0.55, 0.75)
"""Of the memory bus: a copy reads 0.90, PPO limited by its activations 0.72
(docs/internals/benchmark_log.md), an eager language model 0.57, compiled ones at most 0.51."""
CAPPED = 0.5
CLOCK_LOST = ConfidenceScale(0.05, 0.15)
"""At the power limit a language model loses 0.045 of the clock with a micro-batch of 8, 0.11 with 16, 0.17
with 64."""
HOT = ConfidenceScale(0.2, 0.5)
"""Share of the readings in which heat or the power brake holds the clocks down: unlike the power limit, that
is never normal."""
HEAT_COSTS = 0.2
"""At least so much is lost to heat: a board that is too hot halves its clocks now and then (nvml.h)."""
HALF_EMPTY = 0.45
"""With less of its memory in use a GPU holds twice the size, whatever part of it is fixed, below the 92 %
that the tuner keeps to."""
FULL_SM = 0.9


def capacity(seen: Means) -> Iterator[Finding]:
    """Findings of arithmetic, memory bandwidth and power."""
    sm = share_text("SM active", seen.sm)
    at_limit = ("at its power limit", *clocks(seen.clock_mhz, seen.clock_max_mhz))
    capped = seen.capped >= CAPPED
    tensor, fp32 = TENSOR.confidence(seen.tensor), FP32.confidence(seen.fp32)
    if tensor or fp32:
        unit = share_text("tensor cores", seen.tensor) if tensor else share_text("FP32 units", seen.fp32)
        evidence = (*unit, *(at_limit if capped else ()), *sm)
        yield Finding("compute-bound", tensor or fp32, seen.tensor if tensor else seen.fp32, evidence)
    elif capped and (sure := CLOCK_LOST.confidence(seen.clock_lost)):
        yield Finding("power-limited", sure, seen.clock_lost, (*watts(seen), *at_limit[1:], *sm))
    if sure := BANDWIDTH.confidence(seen.dram):
        evidence = (*share_text("memory bandwidth", seen.dram), *sm, *share_text("tensor cores", seen.tensor))
        yield Finding("memory-bandwidth-bound", sure, seen.dram, evidence)


def protection(window: ObservationWindow) -> Iterator[Finding]:
    """Findings of clocks that are held down to protect the hardware: one GPU of a run holds up all others."""
    many = len(window.gpus) > 1
    for gpu in window.gpus:
        name = f"GPU {gpu.index} " if many else ""
        lost = max(HEAT_COSTS, gpu.clock_lost) if gpu.clock_lost == gpu.clock_lost else HEAT_COSTS
        clock = clocks(gpu.clock_mhz, gpu.clock_max_mhz)
        if sure := HOT.confidence(gpu.hot):
            degrees = (f"{gpu.temperature_c:.0f} °C",) if gpu.temperature_c > 0 else ()
            evidence = (f"{name}too hot {percent(gpu.hot)} of the time", *degrees, *clock)
            yield Finding("heat-limited", sure, lost, evidence)
        if sure := HOT.confidence(gpu.braked):
            evidence = (f"{name}power brake {percent(gpu.braked)} of the time", *clock)
            yield Finding("power-limited", sure, lost, evidence)


def unused_memory(window: ObservationWindow, seen: Means) -> Iterator[Finding]:
    """A finding of work that is cut smaller than memory asks for, where the GPU is at work most of the
    time."""
    count = pieces(window.knobs)
    if count > 1 and seen.sm >= ENOUGH_SM and seen.memory < HALF_EMPTY:
        sure = UNSURE + 0.2 * (1 - seen.memory / HALF_EMPTY)
        memory = f"memory {percent(seen.memory)} in use"
        evidence = (f"computed in {count} pieces", memory, *share_text("SM active", seen.sm))
        yield Finding("memory-unused", sure, 1 - seen.sm, evidence)


def healthy(seen: Means) -> Iterator[Finding]:
    """That all is well: the SMs have work, and no part of the GPU is at its limit."""
    if seen.sm >= ENOUGH_SM:
        sure = 0.5 + 0.4 * min(1.0, (seen.sm - ENOUGH_SM) / (FULL_SM - ENOUGH_SM))
        shares = (("SM active", seen.sm), ("tensor cores", seen.tensor), ("memory bandwidth", seen.dram))
        evidence = tuple(figure for what, share in shares for figure in share_text(what, share))
        yield Finding("healthy", sure, 0.0, evidence)
