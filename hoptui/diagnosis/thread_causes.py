"""The causes that lie in the training thread, from samples of its stack.

While the GPU works, it is the limit, and its counters say how. While it idles, what the thread does then is
the limit. Samples and GPU readings are means over the same window. So a kind of work claims at most the idle
time, and several kinds share it by their samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hoptui.diagnosis.causes import (
    DATA,
    ENVIRONMENTS,
    EXCHANGING,
    LAUNCHING,
    NOTHING_RUNS,
    SMALL_KERNELS,
    UNSEEN,
    UNSURE,
    UPLOADING,
    WAITING,
    ConfidenceScale,
    Finding,
    Means,
    host,
    lost_to_link,
    phase,
    power,
    room_on_host,
    share,
    share_fact,
    transfer,
    uploads,
)
from hoptui.diagnosis.knob_roles import pieces
from hoptui.diagnosis.sampled_time import LineShare, SampledTime
from hoptui.diagnosis.window import ObservationWindow
from hoptui.domain.code_lines import CodeLine
from hoptui.domain.diagnosis import Verdict
from hoptui.domain.facts import Fact, fact
from hoptui.domain.kind_rules import Kind
from hoptui.domain.stack_kinds import Basis

CLAIMS: Mapping[Verdict, tuple[Kind, ...]] = {
    "data-bound": ("input",),
    "env-bound": ("environment",),
    "save-bound": ("save",),
    "compiling": ("compile",),
    "host-bound": ("script", "log"),
}
"""What a thread does instead of giving work to the GPU."""
WORKS: tuple[Kind, ...] = ("compute", "evaluate", "wait", "copy")
"""What a thread does to give work to a GPU, or to get its results."""
GUESSED = 0.65
"""The highest confidence of what Python of the script is for, if only its place in the loop says it, and of
what another process does."""
COMPUTES_ON_CPU = 0.4
"""The least CPU time of a thread that computes, for each second that it was found computing. Torch also waits
for threads of its own."""
WIDER = 0.05
"""The share of the samples of other lines of the same kind, from which their sum is told too."""
STRAGGLING = ConfidenceScale(0.1, 0.25)
COMPUTING = ConfidenceScale(0.6, 0.85)
TRANSFER_BYTES_PER_S = 0.5e9
"""With less over PCIe, a thread in a copy waits for the turn of many small ones, or for the GPU."""
SMALL_PIECE_S = 0.1
"""A CPU spends less than this on a small piece if there are many: the calls of all but one can be saved. An
iteration has as many pieces as its batch, or more if it has several batches."""
KEPT_PIECE_S, KEPT_COMPUTING = 0.2, 0.5
"""The limits of both for a verdict that is shown: near a limit, it would alternate with another one. Work of
any other kind is named from half of the time on, which leaves no more than `KEPT_COMPUTING`."""
CUT_SURE = 0.8
"""The highest confidence that larger pieces help: what the calls cost is not measured."""
FEW_SAMPLES = 50
"""Fewer samples leave a share uncertain by 0.07."""


class IdleShares:
    """The idle time of the GPUs by what the training thread does in it, 0 to 1 of the whole time.

    `claims` has what each verdict claims. `exchange` is the time in collectives, and `late` that in which
    ranks wait for a slow one.

    Python of the script between two runs of the model is taken for environments: it uses what the model
    chose, and makes what the model sees next. What runs before the model is taken for input, or for
    environments if the thread steps these more than it loads. It is part of stepping them if the run acts.
    Another process is taken for a loader, or for environments if the run acts.
    """

    def __init__(self, window: ObservationWindow, seen: Means) -> None:
        self.sampled = window.sampled
        shares = dict(self.sampled.shares)
        self._kinds = {**CLAIMS, "transfer-bound": _copying(seen)} if window.gpus else CLAIMS
        claims = {v: sum(shares.get(kind, 0.0) for kind in kinds) for v, kinds in self._kinds.items()}
        guessed = self.sampled.guessed
        awaited, before = (guessed.get(basis, 0.0) if window.acts else 0.0 for basis in ("process", "before"))
        steps = shares.get("environment", 0.0) + guessed.get("between", 0.0) + awaited + before
        prepares: Verdict = "env-bound" if steps > shares.get("input", 0.0) - awaited else "data-bound"
        self._guesses: dict[Basis, Verdict] = {
            "before": prepares,
            "between": "env-bound",
            "process": "env-bound" if window.acts else "data-bound",
        }
        for basis, verdict in self._guesses.items():
            claims[verdict] += guessed.get(basis, 0.0)
            claims["data-bound" if basis == "process" else "host-bound"] -= guessed.get(basis, 0.0)
        whole = sum(claims.values())
        self._scale = min(1.0, seen.idle / whole) if whole else 1.0
        self.claims: dict[Verdict, float] = {verdict: lost * self._scale for verdict, lost in claims.items()}
        if seen.only_copies:  # these count as busy
            self.claims["transfer-bound"] = min(claims["transfer-bound"], 1 - seen.sm)
        self.exchange = shares.get("collective", 0.0) if window.world > 1 else 0.0
        self.late = window.straggler.others_wait - window.straggler.waits if window.straggler else 0.0
        if window.straggler is not None:
            self.exchange = max(0.0, self.exchange - window.straggler.others_wait)

    def confidence(self, verdict: Verdict, scale: ConfidenceScale) -> float:
        """Return the confidence of a claim: by libraries and names, and by the place in the loop."""
        lost = self.claims[verdict]
        known = lost - self._scale * self._guessed(verdict)
        return max(scale.confidence(known), min(GUESSED, scale.confidence(lost)))

    def line_facts(self, verdict: Verdict) -> tuple[Fact, ...]:
        """Return the line that takes most of a claim, as a fact."""
        line = self.sampled.line(*self._kinds[verdict])
        whole = self.sampled.share(line.kind) - self._placed(line.kind) if line else 0.0
        for basis, guess in self._guesses.items():
            placed = self.sampled.guessed_lines.get(basis)
            if guess == verdict and placed is not None and (line is None or placed.share > line.share):
                line, whole = placed, self.sampled.guessed[basis]
                if basis == "process":
                    line = line._replace(kind="script")  # it waits, and nobody has seen it load
        return _line_facts(line, whole)

    def _placed(self, kind: Kind) -> float:
        """Return the share of the samples of a kind that are in another claim by their place."""
        others = [basis for basis in self._guesses if kind == ("input" if basis == "process" else "script")]
        return sum(self.sampled.guessed.get(basis, 0.0) for basis in others)

    def _guessed(self, verdict: Verdict) -> float:
        """Return the share of the samples in a claim that only their place in the loop puts there."""
        guesses = {**self._guesses, "unknown": "host-bound"}
        return sum(self.sampled.guessed.get(basis, 0.0) for basis, v in guesses.items() if v == verdict)


def _copying(seen: Means) -> tuple[Kind, ...]:
    """What a thread does that waits for a copy: it copies, or waits for results where those are large. A rate
    that is unknown is no objection."""
    if seen.download >= TRANSFER_BYTES_PER_S:
        return ("copy", "wait")
    return () if seen.upload < TRANSFER_BYTES_PER_S else ("copy",)


def thread_causes(window: ObservationWindow, seen: Means) -> Iterator[Finding]:
    """Findings of work of the training thread that keeps the GPU idle.

    Without a GPU, they are what takes most of the time.
    """
    idle = IdleShares(window, seen)
    scale = WAITING if seen.busy == seen.busy else UNSEEN
    for verdict, lost in idle.claims.items():
        if sure := idle.confidence(verdict, scale):
            facts = (
                *_at_rest(verdict, seen),
                *idle.line_facts(verdict),
                *_beside(verdict, window, seen),
            )
            yield _counted(Finding(verdict, sure, lost, facts), idle.sampled)
    if sure := EXCHANGING.confidence(idle.exchange):
        facts = (*_line(idle.sampled, "collective"), *share_fact("gpu.sm_active", seen.sm))
        yield _counted(Finding("communication-bound", sure, idle.exchange, facts), idle.sampled)
    uploading = _uploading(window, seen, idle)
    yield from uploading
    yield from _straggling(window)
    if not uploading:
        yield from _launching(window, seen, idle)
    yield from _wrong_device(window, seen, idle.sampled)


def _uploading(window: ObservationWindow, seen: Means, idle: IdleShares) -> tuple[Finding, ...]:
    """A finding of a full link. The thread need not wait for it: it goes on while pinned memory is copied."""
    lost = 1 - seen.sm - sum(idle.claims.values())
    if not uploads(seen) or lost < WAITING.named or idle.claims["transfer-bound"] >= lost:
        return ()
    facts = (
        *share_fact("gpu.sm_active", seen.sm),
        *_line(idle.sampled, "copy", "wait"),
        *transfer(seen),
    )
    found = Finding("transfer-bound", UPLOADING.confidence(seen.uploading), lost, facts)
    return (_counted(found, idle.sampled),)


def _straggling(window: ObservationWindow) -> Iterator[Finding]:
    """A finding of a rank that the others wait for."""
    found = window.straggler
    if found is None or not (sure := STRAGGLING.confidence(found.others_wait - found.waits)):
        return
    rank = fact(
        "rank.slow",
        rank=found.rank,
        world=window.world,
        waits=share(found.waits),
        others_wait=share(found.others_wait),
        **(window.straggler_device._asdict() if window.straggler_device is not None else {}),
    )
    where = found.where
    at = () if where is None else (line_fact(where.kind, where.place, where.inside, found.share),)
    yield Finding("straggler", sure, found.others_wait - found.waits, (rank, *at))


def _launching(window: ObservationWindow, seen: Means, idle: IdleShares) -> Iterator[Finding]:
    """A finding of kernels that are too small, or launched too slowly."""
    if not seen.busy >= NOTHING_RUNS:
        return
    counted = seen.sm == seen.sm
    lost = (1 - seen.sm if counted else seen.idle) - sum(idle.claims.values()) - idle.late
    lost -= max(idle.exchange, lost_to_link(window, seen))
    sure = LAUNCHING.confidence(lost)
    if not sure or idle.sampled.share(*WORKS) < lost / 2:
        return
    fill = seen.sm / seen.busy
    small = share_fact("gpu.kernel_fill", fill) if fill < SMALL_KERNELS else ()
    active = share_fact("gpu.sm_active", seen.sm)
    facts = (
        *active,
        *share_fact("gpu.any_kernel" if active else "gpu.busy", seen.kernels),
        *small,
        *power(seen),
    )
    facts = (*facts, *_line(idle.sampled, *WORKS)) if seen.idle >= WAITING.named else facts
    found = _counted(Finding("launch-bound", sure, lost, facts), idle.sampled)
    yield found if counted else found.at_most(UNSURE)


def _wrong_device(window: ObservationWindow, seen: Means, sampled: SampledTime) -> Iterator[Finding]:
    """A finding of a model that is computed by the CPU while a GPU has nothing to do."""
    sure = COMPUTING.confidence(sampled.share("compute", "evaluate"))
    if not sure:
        return
    if window.gpus and seen.busy < NOTHING_RUNS:
        facts = (*_at_rest("wrong-device", seen), *_line(sampled, "compute", "evaluate"))
        found = _counted(Finding("wrong-device", sure, 1.0, facts), sampled)
        yield found.at_most(UNSURE) if window.elsewhere else found
    elif not window.gpus and window.free_gpus:
        facts = (fact("gpu.none_used", count=window.free_gpus), *_line(sampled, "compute", "evaluate"))
        yield Finding("wrong-device", min(sure, UNSURE), 1.0, facts)


def lacks_processor(window: ObservationWindow) -> bool:
    """Whether the training thread computes in its samples, and most of this time had no processor.

    It waits for a processor if others have them, or if a limit of the container is reached. Or it waits for
    something that no sample shows.
    """
    return window.on_cpu < COMPUTES_ON_CPU * window.sampled.share("compute", "evaluate")


def computing(window: ObservationWindow, shown: str | None = None) -> Iterator[Finding]:
    """A finding of a run without a GPU that computes most of the time.

    Nothing holds it back, unless its batches are computed in pieces so small that the calls take the time.
    Only a knob of the speed cuts a batch: with fewer batches of the script accumulated, each is as small as
    before. `shown` is the verdict so far.
    """
    sampled = window.sampled
    computes = sampled.share("compute", "evaluate")
    if lacks_processor(window):
        return
    kept = shown in ("healthy", "memory-unused")
    if window.gpus or computes < (KEPT_COMPUTING if kept else COMPUTING.named):
        return
    sure = COMPUTING.confidence(max(computes, COMPUTING.named))
    line = _line_facts(sampled.line("compute", "evaluate"), 0.0)  # the sum is in the fact before it
    facts = (fact("cpu.computes", share=share(computes)), *line)
    found = Finding("healthy", sure, 0.0, facts)
    count = pieces(knob for knob in window.knobs if knob.spec.effect == "speed")
    small_s = KEPT_PIECE_S if shown == "memory-unused" else SMALL_PIECE_S
    if window.seconds < small_s * (count - 1) * window.iterations and room_on_host(window) > 1:
        cut = (fact("batch.pieces", pieces=count), fact("host.memory", share=share(window.host_filled)))
        found = Finding("memory-unused", min(sure, CUT_SURE), computes, (*cut, *facts))
    yield _counted(found, sampled)


def _counted(finding: Finding, sampled: SampledTime) -> Finding:
    return finding if sampled.count >= FEW_SAMPLES else finding.at_most(UNSURE)


def _at_rest(verdict: Verdict, seen: Means) -> tuple[Fact, ...]:
    """How much of the time the GPU has no kernel."""
    if verdict == "transfer-bound" and seen.only_copies:
        return share_fact("gpu.sm_active", seen.sm)
    return share_fact("gpu.idle_share", 1 - seen.busy)


def most_often(sampled: SampledTime) -> tuple[Fact, ...]:
    """The line with the most samples, as a fact."""
    return _line(sampled, *sampled.lines)


def _line(sampled: SampledTime, *kinds: Kind) -> tuple[Fact, ...]:
    """The line of these kinds with the most samples, as a fact."""
    line = sampled.line(*kinds)
    return _line_facts(line, sampled.share(line.kind) if line else 0.0)


def _line_facts(line: LineShare | None, whole: float) -> tuple[Fact, ...]:
    """A line as a fact. `whole` is the share of all lines of its kind."""
    return () if line is None else (line_fact(line.kind, line.place, line.inside, line.share, whole),)


def line_fact(kind: Kind, place: CodeLine, inside: str, part: float, whole: float = 0.0) -> Fact:
    """Return what a line does as a fact. `part` is its share of the samples, `whole` that of such lines."""
    of_all = {"whole": share(whole)} if whole >= part + WIDER else {}
    return fact(
        "line.hot",
        kind=kind,
        share=share(part),
        **of_all,
        file=place.file,
        line=place.line,
        function=place.function,
        inside=inside,
    )


def _beside(verdict: Verdict, window: ObservationWindow, seen: Means) -> Iterator[Fact]:
    kept = sum(window.sampled.kept.get(kind, 0.0) for kind in CLAIMS.get(verdict, ()))
    if kept >= WIDER:
        yield fact("cpu.interpreter_kept", share=share(kept))
    if verdict == "transfer-bound":
        yield from transfer(seen)
    if verdict in ("data-bound", "env-bound"):
        yield from phase(window, DATA if verdict == "data-bound" else ENVIRONMENTS)
        yield from host(window)
