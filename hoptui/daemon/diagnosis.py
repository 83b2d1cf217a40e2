"""Diagnosis of each live run every two seconds: windows from the rings, verdicts into its state. No I/O."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from hoptui.daemon.rank_devices import rank_device
from hoptui.daemon.state.command_log import CHANGED, LATEST
from hoptui.daemon.state.gpu_ownership import elsewhere
from hoptui.daemon.state.node import Node
from hoptui.daemon.state.registry import TrackedRun
from hoptui.daemon.state.row_buffers import Ring
from hoptui.daemon.tuning import host_memory
from hoptui.diagnosis.change_point import SLOT_NS, SLOTS, ActivitySlot, step_end
from hoptui.diagnosis.sampled_time import FEW as FEW_SAMPLES
from hoptui.diagnosis.sampled_time import SampledTime
from hoptui.diagnosis.verdict import Diagnostician
from hoptui.diagnosis.window import NAN, GpuWindow, ObservationWindow, gpu_window, iterations, mean_of
from hoptui.domain.activities import summed
from hoptui.domain.columns import Columns
from hoptui.domain.devices import GpuInfo
from hoptui.domain.facts import fact
from hoptui.domain.job_stragglers import straggler_elsewhere
from hoptui.domain.learning_metrics import acts
from hoptui.domain.stragglers import find_straggler
from hoptui.domain.throughput import PHASE
from hoptui.tuner.effect import WARM_UP

SECOND = 1_000_000_000
WINDOW_NS = 20 * SECOND
LONGEST_NS = 600 * SECOND
"""A window holds at least `FEW` iterations, up to this length."""
FEW = 3
LEAST_NS = 2 * SECOND
"""A shorter window has too few GPU readings for a verdict."""
MOST_ROWS = 2048
"""Maximum rows of a source in a window. Of shorter iterations than 10 ms, the newest ones count."""
STACKS_NS = SECOND
"""A message of stack samples covers two seconds. It counts if more than half of that lies in the window."""
SETTLED_NS = 10 * SECOND
"""`WARM_UP` iterations are left out after a change or the start (compilation, caches). Of long iterations,
only those that end within this time."""
NOTHING_PERCENT = 1.0
AT_WORK_PERCENT = 5.0
"""Another user's process with a smaller share of the SMs' time does not distort the readings."""


class _Case:
    """The diagnosis of one process of a run.

    Rows count from `counts_from`, and were evaluated up to `seen_t`. At `step_t` the run began to do
    what the reported verdict is about. After a verdict was reported, an unknown one is worth an event.
    """

    def __init__(self, nonce: str, t: int) -> None:
        self.nonce = nonce
        self.diagnostician = Diagnostician()
        self.changed_t = t
        self.counts_from: int | None = None
        self.step_t = 0
        self.seen_t = 0
        self.reported = False


class Diagnosing:
    """Diagnoses the live runs of a node. Call `tend` about once per second."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._cases: dict[str, _Case] = {}
        self._due = 0

    def tend(self) -> None:
        """Diagnose every live run if it is due. A change of a knob is noticed at once."""
        t = self._node.clock.t()
        live = self._node.registry.live()
        due = t >= self._due
        if due:
            self._due = t + int(self._node.timings.diagnose_s * SECOND)
        self._cases = {run.id: case for run in live if (case := self._cases.get(run.id)) is not None}
        news = [self._apart(run, t, due=due) for run in live]
        if any(news):
            self._node.touch()

    def _apart(self, run: TrackedRun, t: int, *, due: bool) -> bool:
        """Diagnose one run. A fault costs only its own verdict."""
        what = f"the diagnosis of {run.id}"
        news = self._node.faults.attempt(what, self._tend, run, t, due=due)
        if news is not None:
            return news
        self._cases.pop(run.id, None)
        known = run.state.diagnosis is not None
        run.diagnosed(None)
        return known

    def _tend(self, run: TrackedRun, t: int, *, due: bool) -> bool:
        case = self._cases[run.id] = self._case(run)
        turned = self._turned(run, case)
        return (self._look(run, case, t) if due else False) or turned

    def _case(self, run: TrackedRun) -> _Case:
        known = self._cases.get(run.id)
        if known is not None and known.nonce == run.nonce:
            return known
        run.diagnosed(None)  # the verdict of an earlier daemon is outdated
        ring = self._node.rings.get(f"run/{run.id}")
        return _Case(run.nonce, ring.last_t if ring is not None else 0)

    def _turned(self, run: TrackedRun, case: _Case) -> bool:
        """Return whether a knob has changed, so that the tuner does not use a verdict for the previous
        value."""
        change = self._last_change(run)
        if change <= case.changed_t:
            return False
        case.changed_t, case.counts_from, case.step_t = change, None, 0
        case.diagnostician.changed()
        run.diagnosed(case.diagnostician.told)
        return True

    def _look(self, run: TrackedRun, case: _Case, t: int) -> bool:
        """Evaluate new rows of a run. Returns whether there is news for viewers."""
        if run.last_t <= case.seen_t or run.judge(t / SECOND)[0] == "paused":
            return False
        case.seen_t = run.last_t
        doctor = case.diagnostician
        window = self._window(run, case)
        verdict = doctor.look(window) if window is not None else False
        if verdict and window is not None:
            case.step_t = max(case.step_t, window.step_t)
        found = doctor.told
        if found == run.state.diagnosis:
            return False
        run.diagnosed(found)
        if verdict and found is not None and (case.reported or found.verdict != "unknown"):
            case.reported = True
            what = fact("diagnosis.verdict", verdict=found.verdict, facts=found.facts)
            self._node.event("diagnosis", what, run=run.id, step=run.last_step, t=found.t)
        return True

    def _last_change(self, run: TrackedRun) -> int:
        """Return when a knob last changed."""
        records = self._node.book.of(run.id)[-LATEST:]
        settled = (r.settled for r in records if r.verb == "set" and r.stage in CHANGED)
        return max(settled, default=0)

    def _window(self, run: TrackedRun, case: _Case) -> ObservationWindow | None:
        """Return the latest readings, None while there are too few since the start or the last change."""
        node, source = self._node, f"run/{run.id}"
        counts_from = self._start(source, case)
        ring = node.rings.get(source)
        if ring is None or counts_from is None:
            return None
        gpus = [gpu for gpu in node.gpus if gpu.uuid in run.state.gpus]
        start = max(counts_from, case.step_t)
        step_t = self._step(run, gpus, start)
        if step_t and not _short(ring, step_t):
            step_t = 0
        start = max(start, step_t)
        names = ("iteration_s", *(name for name in run.metrics if name.startswith(PHASE)))
        rows = ring.excerpt(names, after=max(start, run.last_t - WINDOW_NS), most=MOST_ROWS)
        if len(rows) < FEW:
            rows = ring.excerpt(names, after=max(start, run.last_t - LONGEST_NS), most=FEW)
        spent = iterations(rows)
        if spent is None:
            return None
        # of very short iterations, the newest rows stand for all of the window
        begin = max(start, spent.start if len(rows) < MOST_ROWS else run.last_t - WINDOW_NS)
        if spent.end - begin < LEAST_NS:
            return None
        found = run.stacks.activities(begin + STACKS_NS)
        late = find_straggler(found) if run.state.world > 1 else None
        device = rank_device(node, run, late.rank, begin) if late is not None else None
        if late is None and run.job is not None:
            late, device = straggler_elsewhere(run.job)
        acting = acts(run.metrics)
        return ObservationWindow(
            t=spent.end,
            seconds=(spent.end - begin) / SECOND,
            iterations=spent.count,
            phases=spent.phases,
            aside=spent.aside,
            gpus=tuple(self._gpus(run, gpus, begin, spent.end, spent.apart)),
            no_gpu=node.gpu_problem,
            knobs=run.state.knobs,
            world=run.state.world,
            cpus=node.hardware.cpus,
            host_filled=next((memory.filled for memory in host_memory(node, run, node.clock.t())), NAN),
            host_cpu=mean_of(self._between("host", begin, spent.end), "cpu_percent") / 100,
            sampled=SampledTime.of_ranks(found, late.rank if late is not None else None, acts=acting),
            on_cpu=run.stacks.on_cpu(begin + STACKS_NS),
            queued=run.stacks.queued(begin + STACKS_NS),
            straggler=late,
            straggler_device=device,
            free_gpus=self._free_gpus(begin, spent.end),
            elsewhere=elsewhere(
                run.state.gpus, {each.gpu for each in node.processes if each.run == run.id}, node.gpus
            ),
            step_t=step_t,
            acts=acting,
        )

    def _step(self, run: TrackedRun, gpus: list[GpuInfo], start: int) -> int:
        """Return when the run began to do something else, 0 if it goes on as it did since `start`, or too few
        samples show it."""
        end = run.stacks.last_t or run.last_t
        ends = [t for t in range(end - (SLOTS - 1) * SLOT_NS, end + 1, SLOT_NS) if t - SLOT_NS >= start]
        if not ends:
            return 0
        known = [self._between(f"gpu/{gpu.uuid}", ends[0] - SLOT_NS, end) for gpu in gpus]
        rows = [each for each in known if each is not None]
        kinds = run.stacks.kinds(ends)
        slots = [
            ActivitySlot(t, counts, _busy(rows, t - SLOT_NS, t))
            for t, counts in zip(ends, kinds, strict=True)
        ]
        step = step_end(slots)
        if step is None:
            return 0
        since = summed(run.stacks.activities(step + STACKS_NS).values()).total()
        return 0 if any(kinds) and since < FEW_SAMPLES else step

    def _start(self, source: str, case: _Case) -> int | None:
        """Return the stamp from which rows count: some iterations after the start or the last change.
        None: not yet."""
        if case.counts_from is None:
            ring = self._node.rings.get(source)
            rows = ring.since(case.changed_t, WARM_UP)[0] if ring is not None else None
            times = rows.times() if rows is not None else ()
            if times and (len(times) == WARM_UP or times[-1] - case.changed_t > SETTLED_NS):
                case.counts_from = times[-1]
        return case.counts_from

    def _gpus(
        self,
        run: TrackedRun,
        gpus: list[GpuInfo],
        start: int,
        end: int,
        apart: tuple[tuple[int, int], ...],
    ) -> Iterator[GpuWindow]:
        others = {
            p.gpu
            for p in self._node.processes
            if p.run != run.id and p.sm_percent is not None and p.sm_percent > AT_WORK_PERCENT
        }
        for gpu in gpus:
            rows = self._between(f"gpu/{gpu.uuid}", start, end)
            if rows is not None and len(rows) > 1:
                rows = rows.slice(1)  # the first row also covers the time before the window
            yield gpu_window(gpu, rows, apart, shared=gpu.uuid in others)

    def _free_gpus(self, start: int, end: int) -> int:
        """Return how many GPUs of the node did nothing. A GPU without readings is not counted."""
        taken = {uuid for run in self._node.registry.live() for uuid in run.state.gpus}
        taken |= {process.gpu for process in self._node.processes}
        free = [gpu.uuid for gpu in self._node.gpus if gpu.uuid not in taken]
        return sum(
            mean_of(self._between(f"gpu/{uuid}", start, end), "busy") < NOTHING_PERCENT for uuid in free
        )

    def _between(self, source: str, start: int, end: int) -> Columns | None:
        ring = self._node.rings.get(source)
        rows = ring.since(start, MOST_ROWS)[0] if ring is not None else None
        if rows is None or rows.last_t <= end:
            return rows
        return rows.slice(0, sum(t <= end for t in rows.times()))


def _short(ring: Ring, since: int) -> bool:
    """Whether no iteration is longer than half of the time: a long one is no lasting change."""
    times = ring.excerpt((), after=since, most=MOST_ROWS).times()
    if len(times) < MOST_ROWS:
        times.insert(0, since)
    longest = max((later - t for t, later in itertools.pairwise(times)), default=0)
    return len(times) > 1 and 2 * longest <= times[-1] - since


def _busy(gpus: Iterable[Columns], start: int, end: int) -> dict[str, float]:
    """Return the means of what GPUs did between two stamps, 0 to 1."""
    found: dict[str, list[float]] = {}
    for rows in gpus:
        times = rows.times()
        part = rows.slice(bisect_right(times, start), bisect_right(times, end))
        for name in ("busy", "sm_active"):
            if (mean := mean_of(part, name)) == mean:
                found.setdefault(name, []).append(mean / 100)
    return {name: sum(values) / len(values) for name, values in found.items()}
