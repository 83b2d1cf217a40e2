"""What a GPU waits for: input, environments, other ranks, or the next kernel.

An SM without work is time lost. Phases claim a part of it; what they do not claim is the kernels': too small,
or launched too slowly. Where no other source is named, figures are means of the H100 traces of which extracts
are in `tests/diagnosis/data`.
"""

from __future__ import annotations

from collections.abc import Iterator

from hoptui.diagnosis.evidence import UNSURE, ConfidenceScale, Finding, Means, share_text, watts
from hoptui.diagnosis.window import ObservationWindow
from hoptui.domain.quantities import percent
from hoptui.domain.tuning import Verdict

DATA = frozenset(
    (
        "data", "data_loading", "data_load", "data_wait", "data_time", "dataloader", "data_loader", "loader", "loading", "load",
        "load_batch", "load_data", "get_batch", "next_batch", "fetch", "fetch_batch", "fetch_data", "input", "input_wait", "inputs",
        "prefetch", "read", "decode", "augment", "augmentation", "preprocess", "preprocessing", "collate", "tokenize",
    )
)  # fmt: skip
ENVIRONMENTS = frozenset(
    ("env", "envs", "env_step", "env_steps", "environment", "environments", "sim", "simulate", "simulation", "simulator", "physics")
)  # fmt: skip
EXCHANGE = frozenset(
    (
        "exchange", "allreduce", "all_reduce", "reduce", "comm", "communication", "communicate", "sync_gradients", "gradient_sync",
        "grad_sync", "sync_grads",
    )
)  # fmt: skip
"""Names of phases, the last part of their path, that say what is done in them."""

WAITING = ConfidenceScale(0.25, 0.5)
"""Share of the time that the GPU waits for input or environments: a load whose SMs have work for 65 % of the
time loses less to any other single cause."""
UNSEEN = ConfidenceScale(0.5, 0.75)
"""The same where no GPU is seen to idle: on a CPU a phase waits for nothing, and limits a run only where it
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
"""What is believed at most of traffic on NVLink without a phase that says how long is waited."""
WORKS_ON = 0.05
NOTICED = 0.05
"""A GPU that waits less has hardly what the tuner asks of a change to gain."""


def waiting(window: ObservationWindow, seen: Means) -> Iterator[Finding]:
    """Findings of input, environments and other ranks."""
    scale = WAITING if seen.busy == seen.busy else UNSEEN
    data = _lost_to_data(window, seen)
    if sure := scale.confidence(data):
        evidence = (*_phase(window, DATA), *share_text("GPU busy", seen.busy), *_host(window))
        yield Finding("data-bound", sure, data, evidence)
    elif lost := _lost_to_uploads(window, seen):
        evidence = (f"{seen.upload / 1e9:.0f} GB/s over PCIe", *share_text("SM active", seen.sm))
        yield Finding("data-bound", UPLOADING.confidence(seen.uploading), lost, evidence)
    environments = _lost_to_environments(window, seen)
    if sure := scale.confidence(environments):
        if window.gpus and _launches(seen) is not False:
            sure = min(sure, UNSURE)  # environments on the GPU, launched one kernel at a time, look alike
        evidence = (*_phase(window, ENVIRONMENTS), *share_text("GPU busy", seen.busy), *_host(window))
        yield Finding("env-bound", sure, environments, evidence)
    exchange = _lost_to_exchange(window, seen)
    if sure := EXCHANGING.confidence(exchange):
        phase = _phase(window, EXCHANGE)
        link = (f"NVLink {seen.link / 1e9:.0f} GB/s",) if seen.link > 1e9 else ()
        evidence = (*phase, *link, *share_text("SM active", seen.sm))
        found = Finding("communication-bound", sure, exchange, evidence)
        yield found if phase else found.at_most(LINK_ALONE)


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
    small = (f"a kernel fills {percent(fill)} of the GPU",) if fill < SMALL_KERNELS else ()
    evidence = (*share_text("SM active", seen.sm), *share_text("busy", seen.busy), *small, *watts(seen))
    found = Finding("launch-bound", sure, lost, evidence)
    yield found.at_most(UNSURE) if starved or _may_wait_for_ranks(window, seen) else found


def noticed(window: ObservationWindow, seen: Means) -> Iterator[tuple[Verdict, tuple[str, ...]]]:
    """What a GPU is seen to wait for now and then, as a verdict's name and evidence: it may be worth a change
    beside what limits it most."""
    if seen.busy == seen.busy:
        if _lost_to_data(window, seen) >= NOTICED:
            yield "data-bound", _phase(window, DATA)
        if _lost_to_environments(window, seen) >= NOTICED:
            yield "env-bound", _phase(window, ENVIRONMENTS)


def waits_for_the_host(seen: Means) -> bool:
    """Whether the GPU has nothing to do, and not because launching takes so long."""
    return seen.busy < NOTHING_RUNS or (_launches(seen) is False and seen.idle > WAITING.named)


def _claimed(window: ObservationWindow, names: frozenset[str]) -> tuple[float, str]:
    """The time in phases of these names, and the largest of them; one inside another counts once."""
    paths = [p for p in window.phases if p.rpartition("/")[2].lower().replace("-", "_") in names]
    outer = [p for p in paths if not any(p.startswith(f"{other}/") for other in paths)]
    largest = max(outer, key=lambda path: window.phases[path], default="")
    return min(1.0, sum(window.phases[p] for p in outer)), largest


def _lost_to_data(window: ObservationWindow, seen: Means) -> float:
    """The GPU works on through a part of a phase that a host's clock has measured: only what it idles is
    lost."""
    return min(_claimed(window, DATA)[0], seen.idle)


def _lost_to_uploads(window: ObservationWindow, seen: Means) -> float:
    """What no phase claims of a GPU with little work, while its link is full: nothing but input comes in so
    fast."""
    full = UPLOADING.confidence(seen.uploading) > 0 and seen.sm < ENOUGH_SM
    return max(0.0, 1 - seen.sm - _lost_to_data(window, seen)) if full else 0.0


def _lost_to_environments(window: ObservationWindow, seen: Means) -> float:
    """The same for environments on the CPU; those on the GPU keep it as busy as the rest of an iteration
    does."""
    share, path = _claimed(window, ENVIRONMENTS)
    around = path.rpartition("/")[0]
    if around and _launches(seen) is False:  # the rollout around them is not on the GPU either
        share = max(share, window.phases.get(around, 0.0))
    return 0.0 if seen.busy > 1 - share + WORKS_ON else min(share, seen.idle)


def _lost_to_exchange(window: ObservationWindow, seen: Means) -> float:
    if window.world < 2:
        return 0.0
    share, path = _claimed(window, EXCHANGE)
    if path:
        return share
    return max(0.0, 1 - seen.sm) if seen.link >= LINK_BYTES_PER_S else 0.0


def _may_wait_for_ranks(window: ObservationWindow, seen: Means) -> bool:
    """Whether ranks may wait for each other without anything here that shows it: no phase, no NVLink, GPUs
    elsewhere."""
    if window.world < 2 or _claimed(window, EXCHANGE)[1]:
        return False
    return seen.link != seen.link or window.world > len(window.gpus)


def _launches(seen: Means) -> bool | None:
    """Whether the host may be launching all the time; None: not known."""
    return seen.upload >= LAUNCHES_BYTES_PER_S if seen.upload == seen.upload else None


def _phase(window: ObservationWindow, names: frozenset[str]) -> tuple[str, ...]:
    share, path = _claimed(window, names)
    return (f"{path} {percent(share)} of the time",) if path else ()


def _host(window: ObservationWindow) -> tuple[str, ...]:
    if not window.cpus or window.host_cpu != window.host_cpu:
        return ()
    return (f"CPU {percent(window.host_cpu)} of {window.cpus} cores",)
