"""The state of the node for one command: a session with the daemon, a filled store, and run lookup."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import structs

from hoptui import settings
from hoptui.cli.support.terminal import MISSING, REJECTED, Fail, usage, warn
from hoptui.client.conversation import ReadOnlyError
from hoptui.client.session import NoDaemon, RefusedError, Session, Unreachable
from hoptui.domain.columns import Columns
from hoptui.domain.devices import GpuInfo, GpuProcess
from hoptui.domain.diagnosis import Diagnosis
from hoptui.domain.facts import fact
from hoptui.domain.jobs import JobState
from hoptui.domain.knobs import KnobState, missing
from hoptui.domain.learning_metrics import headline_name
from hoptui.model.command_history import command_line
from hoptui.model.runs import Ambiguous, NoSuchRun, find_run, lives
from hoptui.model.store import Store
from hoptui.presentation import diagnosis, numbers, sentences, vocabulary
from hoptui.protocol.job_records import decode_state
from hoptui.protocol.messages import JOB_ENDED, OFF, STACKS_ENDED, Delta, NodeState, RunState, Verb, Vital
from hoptui.protocol.record_bytes import RecordError
from hoptui.settings import Config

START_ONE = "start one with `hoptui demo` or hoptui.connect() in a training script"

SECOND = 1_000_000_000
ANSWER_S = 5.0
STALE_S = 5.0
"""Readings older than this are unknown."""
SAMPLER_S = 5.0
"""How long to wait for a new sampler to find the GPUs and read their counters."""
RETURN_S = 3.0
"""How long to wait for a new daemon to hear from the runs in its recordings."""
NOT_ASKED = ("driver.not_asked", "driver.amd_not_asked")
"""The codes of what a sampler says before it asks the driver, which may take seconds to answer."""
BACK_S = 15.0
"""How far back to fetch GPU rows. The slowest readings (energy, ECC, links) arrive every 5 to 10 seconds."""
NONE = 1 << 62
"""A cursor beyond every event and command: fetch rows only."""


class NodeSnapshot:
    """A session and the state of the node at its start. `readings=False` skips GPU readings."""

    def __init__(self, session: Session, *, readings: bool = True) -> None:
        self.session = session
        self.store = Store()
        self._readings = readings
        self._jobs: dict[str, JobState | None] = {}
        self._state = 0
        self.refresh()
        if session.started_daemon:
            self._await_runs(time.monotonic() + RETURN_S)

    def _await_runs(self, end: float) -> None:
        """Give each run time to connect to a new daemon."""
        while self._unheard() and time.monotonic() < end:
            self.store.apply(self.session.fetch(latest=True, state=0, wait_s=0.0))
            time.sleep(0.02)

    def _unheard(self) -> bool:
        vitals = self.store.vitals
        return any(
            run.run in vitals and vitals[run.run].pulse_age_s is None and self.lives(run)
            for run in self.node.runs
        )

    @property
    def node(self) -> NodeState:
        assert self.store.node is not None
        return self.store.node

    @property
    def newest_event(self) -> int:
        """The number of the newest event that is known."""
        return max((event.seq for event in self.store.events), default=0)

    @property
    def newest_command(self) -> int:
        """The number of the newest change of a command that is known."""
        return max((record.seq for record in self.store.commands.values()), default=0)

    def refresh(self) -> None:
        """Fetch everything again."""
        newest = self.session.fetch(latest=True)
        self._state = newest.state
        self._jobs.clear()
        rows = self._gpu_rows(newest) if self._readings else ()
        self.store.apply(structs.replace(newest, columns=(*rows, *newest.columns)))

    def _gpu_rows(self, newest: Delta) -> tuple[Columns, ...]:
        """The last rows of the GPUs. The newest row alone lacks the slow readings."""
        gpus = newest.node.gpus if newest.node else ()
        cursors = {f"gpu/{gpu.uuid}": newest.now - int(BACK_S * SECOND) for gpu in gpus if not gpu.problem}
        found: list[Columns] = []
        more = bool(cursors)
        while more:
            delta = self.session.fetch(cursors=cursors, events=NONE, commands=NONE, state=newest.state)
            found += delta.columns
            cursors |= {part.source: part.last_t for part in delta.columns if len(part)}
            more = delta.more
        return tuple(found)

    def job(self, run: RunState) -> JobState | None:
        """The state of a live run on all its nodes, None if it has one, or nothing is known of the others."""
        if run.world == 1 or not self.lives(run):
            return None
        if run.run not in self._jobs:
            self._jobs[run.run] = self._read_job(run)
        return self._jobs[run.run]

    def _read_job(self, run: RunState) -> JobState | None:
        found = self.session.fetch(job=run.run, events=NONE, commands=NONE, state=self._state).job
        try:
            return decode_state(found) if found is not None else None
        except RecordError as error:
            warn(f"hoptui: the ranks of other nodes are not shown: {error}")
            return None

    def find(self, name: str) -> RunState:
        """Find a run by name or id.

        Raises:
            Fail: no run matches, or several do; exit code 3.
        """
        try:
            return find_run(self.node, self.store.vitals, name)
        except Ambiguous as error:
            raise Fail(str(error), MISSING) from None
        except NoSuchRun as error:
            raise Fail(f"{error}{self._recorded(name) or self._where_else()}", MISSING) from None

    def _recorded(self, name: str) -> str:
        """A hint for a run that exists only as a recording."""
        state = self.session.where.state
        if next(state.glob("*.hoptui"), None) is None:
            return ""
        from hoptui.cli.support.recordings import entries, matching
        from hoptui.client.target import is_path

        which = matching(entries(self.session.where), name)
        if not which:
            return ""
        enough = len(which) == 1 and not is_path(name) and not name.startswith("-")
        return f"; it was recorded: {command_line('replay', name if enough else which[0].run)}"

    def _where_else(self) -> str:
        """A hint if no run is live. Otherwise the error already lists the live runs."""
        return "" if any(map(self.lives, self.node.runs)) else "; hoptui ls --all lists all runs"

    def lives(self, run: RunState) -> bool:
        """Whether a run has not exited."""
        return lives(run, self.store.vitals)

    def off(self, run: RunState) -> str:
        """Why hoptui is off in a run, by an error of its own; "" if it is not."""
        vital = self.store.vital(run.run)
        why = vital.because if vital is not None else None
        return sentences.sentence(why) if why is not None and why.code == OFF else ""

    def broken(self, run: RunState) -> str:
        """What of hoptui has ended in a run by an error of its own; "" for nothing."""
        ended = [each for each in run.refused if each.code in (STACKS_ENDED, JOB_ENDED)]
        return self.off(run) or "; ".join(map(sentences.sentence, ended))

    def age_s(self, source: str) -> float | None:
        """Seconds since the newest row of a source, None while there is none."""
        known = [series.last_t for n in self.store.names(source) if (series := self.store.series(source, n))]
        return (self.store.now() - max(known)) / SECOND if known else None

    def readings(self, source: str) -> dict[str, float]:
        """The newest values of a continuously sampled source; empty if they are old."""
        age = self.age_s(source)
        return self.store.latest(source) if age is not None and age <= STALE_S else {}

    def gpus_of(self, run: RunState) -> list[GpuInfo]:
        """The GPUs of a run by index. Empty after it exited, because others may use them now."""
        return [gpu for gpu in self.node.gpus if gpu.uuid in run.gpus] if self.lives(run) else []

    def processes(self) -> tuple[GpuProcess, ...]:
        """The processes on the GPUs."""
        return self.session.fetch(processes=0).processes or ()

    def await_readings(self) -> None:
        """Wait until a new sampler has found the GPUs and read their counters."""
        end = time.monotonic() + SAMPLER_S
        while self._begins() and time.monotonic() < end:
            time.sleep(0.1)
            self.refresh()

    def _begins(self) -> bool:
        if not self.node.gpus:
            problem = self.node.gpu_problem
            return bool(self.node.sampler_problems) or (problem is not None and problem.code in NOT_ASKED)
        return any(
            not gpu.problem
            and "gpm" not in gpu.missing_because
            and "sm_active" not in self.readings(f"gpu/{gpu.uuid}")
            for gpu in self.node.gpus
        )

    def find_living(self, name: str) -> RunState:
        """Find a live run by name or id.

        Raises:
            Fail: no run matches, several do, or it has exited; exit code 3.
        """
        run = self.find(name)
        if not self.lives(run):
            raise Fail(f"{run.name} ({run.run}) has exited ({run.exit_reason or 'reason unknown'})", MISSING)
        return run


def refuse_read_only(what: str) -> None:
    """Warn about configuration problems and refuse if read-only. Call this before a change.

    Args:
        what: the consequence of the refusal: `nothing is sent`.

    Raises:
        Fail: this is read-only (exit code 1).
    """
    found = settings.read()
    for problem in found.problems:
        warn(f"hoptui: {problem}")
    if found.read_only:
        raise _read_only(found, f"read-only: {what}")


def _read_only(found: Config, why: str) -> Fail:
    return Fail(f"{why} (read_only is set by {found.values['read_only'].origin})", REJECTED)


@contextlib.contextmanager
def look(
    *, start_daemon: bool = True, steers: bool = False, readings: bool = True, agent: str = ""
) -> Iterator[NodeSnapshot]:
    """Connect and fetch the state of the node. Turn every failure into a Fail.

    `steers=True` is for commands that send something: they are refused at once if read-only.
    `readings=False` is for commands that show no GPU readings. `agent` names the program of an agent, which
    is then the author of what is sent.

    Raises:
        NoDaemon: there is no daemon, and `start_daemon` is false.
        Fail: the daemon is unreachable (exit code 3), or refuses (1), or read-only forbids `steers` (1).
    """
    if steers:
        refuse_read_only("nothing is sent")
    found = settings.read()
    try:
        with Session(
            client=agent or "cli",
            kind="agent" if agent else "person",
            start_daemon=start_daemon,
            timeout_s=ANSWER_S,
            read_only=found.read_only,
        ) as session:
            yield NodeSnapshot(session, readings=readings)
    except ReadOnlyError as error:
        raise _read_only(found, str(error)) from None
    except NoDaemon:
        raise
    except Unreachable as error:
        raise Fail(str(error), MISSING) from None
    except RefusedError as error:
        raise Fail(str(error), REJECTED) from None


def diagnosis_json(found: Diagnosis | None) -> dict[str, Any] | None:
    """A diagnosis as every `--json` shows it: with the sentences of its facts and of its advice."""
    if found is None:
        return None
    return {
        **structs.asdict(found),
        "evidence": diagnosis.evidence(found),
        "advice": [{**structs.asdict(one), "text": diagnosis.advice_text(one)} for one in found.advice],
    }


def metrics_json(values: Mapping[str, float]) -> dict[str, float | str]:
    """Logged values as every `--json` shows them: JSON has no number for NaN and infinities."""
    return {name: value if math.isfinite(value) else str(value) for name, value in values.items()}


def knobs_of(run: RunState) -> dict[str, dict[str, Any]]:
    """The knobs of a run as every `--json` shows them."""
    return {knob.spec.name: _knob(knob, run.held) for knob in run.knobs}


def _knob(knob: KnobState, held: Mapping[str, str] | None) -> dict[str, Any]:
    spec = knob.spec
    shown = {
        "value": knob.value,
        "version": knob.version,
        "min": spec.min,
        "max": spec.max,
        "choices": spec.choices,
        "unit": spec.unit,
        "effect": spec.effect,
        "cost": spec.cost,
        "took_s": knob.took_s,
        "by": knob.by,
    }
    return shown if held is None else {**shown, "held_by": held.get(spec.name)}


def state_name(vital: Vital) -> str:
    """The state of a run as every `--json` shows it."""
    if vocabulary.hung(vital):
        return "hung"
    return "starting" if vocabulary.starting(vital) else vital.state


def headline(run: RunState, metrics: dict[str, float]) -> tuple[str, float | None]:
    """The headline metric and its newest value: the declared metric, or the first rate."""
    name = headline_name(metrics, run.headline)
    return name, metrics.get(name)


def check_offered(run: RunState, verb: Verb) -> None:
    """Raises Fail with the reason if the script has declined the command (exit code 1)."""
    if reason := run.declined.get(verb):
        raise Fail(sentences.sentence(fact("declined", verb=verb, reason=reason)), REJECTED)


def knob_named(run: RunState, name: str) -> KnobState:
    """The knob of this name. Raises Fail with similar names (exit code 2)."""
    for knob in run.knobs:
        if knob.spec.name == name:
            return knob
    if reason := run.declined.get(name):
        raise Fail(sentences.sentence(fact("declined", knob=name, reason=reason)), REJECTED)
    raise usage(missing(numbers.clean(run.name), name, [knob.spec.name for knob in run.knobs]))
