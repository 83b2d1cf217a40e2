"""What limits a run: one verdict with its facts from a window of readings, kept steady over many windows.
Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from msgspec import structs

from hoptui.diagnosis.advice import advise
from hoptui.diagnosis.causes import (
    UNSURE,
    WAITING,
    Finding,
    Means,
    busy_bus,
    capacity,
    healthy,
    latency,
    launching,
    noticed,
    protection,
    share,
    share_fact,
    unused_memory,
    waiting,
    waits_for_the_host,
    waits_unseen,
)
from hoptui.diagnosis.thread_causes import computing, lacks_processor, most_often, thread_causes
from hoptui.diagnosis.window import ObservationWindow
from hoptui.domain.diagnosis import Diagnosis, Verdict
from hoptui.domain.facts import Fact, fact

SECOND = 1_000_000_000
FEW_ROWS, FEW_ITERATIONS, SHORT_S = 5, 3, 5.0
NEAR = 0.7
"""If a second cause costs this share of the first one's cost, it is uncertain which is the main cause."""
NO_GPU = ("driver.not_found", "driver.not_loaded", "driver.no_gpu")
"""Codes of nodes on which nothing runs on a GPU. Elsewhere GPUs that cannot be read may be in use."""
UNEVEN = 0.15
"""The difference from which GPUs of one run are uneven. Those of two equal ranks differ by 0.01."""

FIRST, CHALLENGES = 2, 4
"""Successive looks that must agree before a first verdict is reported, and before another replaces it. Any
verdict after a step in what the run does is a first one, and so is one after "unknown". "unknown" itself is
reported later: in the first seconds there are too few samples."""
TESTED: tuple[Verdict, ...] = ("straggler",)
"""Verdicts that are far beyond chance in a single look. They need no more looks than a first one."""
AHEAD = 0.15
"""A verdict stays unless another one is more certain by more than this, or the run has begun to do something
else since."""
REFRESH_NS = 10 * SECOND
"""The shortest time between updates of an unchanged verdict's figures. Each is a message to every viewer. A
line is shown as soon as it is known."""


def findings(window: ObservationWindow, shown: str | None = None) -> list[Finding]:
    """All possible limits of the run, the most likely first. Never empty, and never more certain than the
    evidence allows. `shown` is the verdict that goes on unless the evidence is clear."""
    if not window.iterations:
        return [_unknown(fact("time.all_aside", share=share(window.aside)))]
    seen = Means(window.gpus)
    counted = math.isfinite(seen.sm)
    found = [*protection(window), *_idle(window, seen), *capacity(seen)]
    if counted:
        if all(f.confidence < UNSURE for f in found):
            found += unused_memory(window, seen)
        found = found or [*latency(seen), *busy_bus(seen)] or [*healthy(seen)]
    found = found or [*computing(window, shown)]
    if not found:
        return [_unknown(*_missing(window, seen), *_largest_phase(window))]
    if waits_unseen(window):
        found = [f.at_most(UNSURE) if f.verdict == "healthy" else f for f in found]
    least = _believed(window)
    return [f.at_most(least)._replace(facts=(*f.facts, *_beside(f, window, seen))) for f in _ranked(found)]


def _idle(window: ObservationWindow, seen: Means) -> Iterator[Finding]:
    """Findings of what a GPU waits for: by the lines of the training thread, or by phases and counters."""
    if window.sampled.count:
        yield from thread_causes(window, seen)
        if window.world > 1:
            yield from (f for f in waiting(window, seen) if f.verdict == "communication-bound")
    else:
        yield from waiting(window, seen)
        if math.isfinite(seen.sm):
            yield from launching(window, seen)


class Diagnostician:
    """The verdict on one run, look by look. It changes when another one has been better for several looks in
    a row."""

    def __init__(self) -> None:
        self.told: Diagnosis | None = None
        self._rival: Verdict | None = None
        self._looks = 0
        self._since = 0  # when the verdict was reported

    def look(self, window: ObservationWindow) -> bool:
        """Add a window. Return True if the verdict changed. `told` may have newer figures in any case."""
        told, stepped = self.told, window.step_t > self._since
        found = findings(window, None if told is None or told.stale or stepped else told.verdict)
        best = found[0]
        held = next((f for f in found if told is not None and f.verdict == told.verdict), None)
        ahead = 0.0 if stepped else AHEAD
        if told is not None and held is not None and held.confidence >= best.confidence - ahead:
            self._rival, self._looks = None, 0
            newly_named = _names_line(held.facts) and not _names_line(told.facts)
            if told.stale or newly_named or window.t - told.t >= REFRESH_NS:
                self._refresh(told, _diagnosis(held, window))
            return False
        self._looks = self._looks + 1 if best.verdict == self._rival else 1
        self._rival = best.verdict
        nothing_told = told is None or told.stale or told.verdict == "unknown"
        soon = nothing_told or window.step_t or best.verdict in TESTED
        if self._looks < (FIRST if soon and best.verdict != "unknown" else CHALLENGES):
            return False
        self._rival, self._looks, self._since = None, 0, window.t
        self.told = _diagnosis(best, window)
        return True

    def changed(self) -> None:
        """Mark the reported verdict as stale and drop its advice, because a knob has another value."""
        if self.told is not None:
            self.told = structs.replace(self.told, advice=(), stale=True)

    def _refresh(self, told: Diagnosis, now: Diagnosis) -> None:
        same = structs.replace(now, t=told.t, seconds=told.seconds)
        if same != told:
            self.told = now


def _names_line(facts: Iterable[Fact]) -> bool:
    return any(each.code == "line.hot" for each in facts)


def _diagnosis(finding: Finding, window: ObservationWindow) -> Diagnosis:
    return Diagnosis(
        verdict=finding.verdict,
        confidence=round(20 * finding.confidence) / 20,
        facts=finding.facts,
        advice=advise(finding.verdict, window),
        seconds=round(window.seconds, 1),
        t=window.t,
    )


def _ranked(found: Iterable[Finding]) -> list[Finding]:
    ranked = sorted(found, key=lambda f: (f.confidence, f.lost), reverse=True)
    first = ranked[0]
    others = [f for f in ranked if f.verdict != first.verdict]
    if any(f.lost >= NEAR * first.lost and f.confidence > UNSURE for f in others):
        return [f.at_most(NEAR) for f in ranked]
    return ranked


def _believed(window: ObservationWindow) -> float:
    """How much may be believed at most, by how much was looked at."""
    counted = _all_counted(window) if window.gpus else window.sampled.count > 0 and _may_have_none(window)
    rows = min((g.rows for g in window.gpus), default=FEW_ROWS)
    thin = rows < FEW_ROWS or window.iterations < FEW_ITERATIONS or window.seconds < SHORT_S
    return UNSURE if thin or not counted or any(g.shared for g in window.gpus) else 1.0


def _all_counted(window: ObservationWindow) -> bool:
    return all(math.isfinite(gpu.sm) for gpu in window.gpus)


def _may_have_none(window: ObservationWindow) -> bool:
    """Whether a run without GPUs is one, and not one whose GPUs cannot be read."""
    return window.no_gpu is None or window.no_gpu.code in NO_GPU


def _unknown(*why: Fact) -> Finding:
    return Finding("unknown", 0.0, 0.0, why)


def _missing(window: ObservationWindow, seen: Means) -> Iterator[Fact]:
    """Why there is no verdict."""
    if not window.gpus:
        known = window.sampled.count > 0 and _may_have_none(window)
        if lacks_processor(window):
            yield fact("cpu.thread_waits", share=share(window.on_cpu))
            yield from share_fact("cpu.queued", window.queued)
        elif known:
            yield fact("cause.none_clear")
            yield from most_often(window.sampled)
        if window.no_gpu is None:
            yield fact("gpu.none_of_run")
        elif not known:
            yield fact("gpu.no_readings", problem=window.no_gpu)
        return
    if not _all_counted(window):
        yield _no_counters(window)
    yield from share_fact("gpu.busy", seen.kernels)
    yield from share_fact("gpu.sm_active", seen.sm)
    if math.isfinite(seen.sm):
        yield fact("gpu.waits_for_host" if waits_for_the_host(seen) else "cause.none_clear")


def _no_counters(window: ObservationWindow) -> Fact:
    """Why the SMs of a GPU are not known. The fact names the GPU if those of others are."""
    lacking = [gpu for gpu in window.gpus if not math.isfinite(gpu.sm)]
    which = {"gpu": lacking[0].index} if len(lacking) < len(window.gpus) else {}
    problem = next((gpu.missing for gpu in lacking if gpu.missing), None)
    if problem:
        return fact("gpu.no_counters", problem=problem, **which)
    return fact("gpu.counters_not_read" if all(gpu.rows for gpu in lacking) else "gpu.no_rows", **which)


def _largest_phase(window: ObservationWindow) -> Iterator[Fact]:
    outer = [path for path in window.phases if "/" not in path]
    if outer:
        path = max(outer, key=lambda name: window.phases[name])
        yield fact("phase.largest", phase=path, share=share(window.phases[path]))


def _beside(finding: Finding, window: ObservationWindow, seen: Means) -> Iterator[Fact]:
    """What weakens a verdict, or is worth knowing with it."""
    for waits, facts in noticed(window, seen):
        if waits != finding.verdict:
            yield from facts
    if not _all_counted(window):
        yield _no_counters(window)
    shared = [g.index for g in window.gpus if g.shared]
    if shared:
        yield fact("gpu.shared", gpus=shared)
    yield from _lagging(window)
    if window.aside >= WAITING.named:
        yield fact("time.aside", share=share(window.aside))


def _lagging(window: ObservationWindow) -> Iterator[Fact]:
    """Which GPU of several has less to do than another, or a lower clock: all ranks go at the pace of the
    slowest."""
    known = [g for g in window.gpus if g.sm == g.sm]
    if known:
        least, most = min(known, key=lambda g: g.sm), max(known, key=lambda g: g.sm)
        if most.sm - least.sm >= UNEVEN:
            yield fact(
                "gpu.less_work",
                gpu=least.index,
                share=share(least.sm),
                other=most.index,
                other_share=share(most.sm),
            )
    clocked = [g for g in window.gpus if g.clock_mhz > 0]
    if clocked:
        slow, fast = min(clocked, key=lambda g: g.clock_mhz), max(clocked, key=lambda g: g.clock_mhz)
        if slow.clock_mhz < (1 - UNEVEN) * fast.clock_mhz:
            yield fact(
                "gpu.slower",
                gpu=slow.index,
                mhz=round(slow.clock_mhz, 0),
                other=fast.index,
                other_mhz=round(fast.clock_mhz, 0),
            )
