"""The node as one command sees it: a session with the daemon, a store filled once, and runs found by name."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from msgspec import structs

from hoptui.cli.support.terminal import MISSING, REJECTED, Fail, usage, warn
from hoptui.client.conversation import ReadOnlyError
from hoptui.client.session import NoDaemon, RefusedError, Session, Unreachable
from hoptui.domain.columns import Columns
from hoptui.domain.devices import GpuInfo, GpuProcess
from hoptui.domain.knobs import KnobState, missing
from hoptui.model.command_history import command_line
from hoptui.model.run_lookup import Ambiguous, NoSuchRun, find_run, lives
from hoptui.model.store import Store
from hoptui.presentation import numbers
from hoptui.protocol.messages import Delta, NodeState, RunState
from hoptui.settings import config
from hoptui.settings.config import Config

START_ONE = "start one with `hoptui demo` or hoptui.connect() in a training script"

SECOND = 1_000_000_000
ANSWER_S = 5.0
STALE_S = 5.0
"""Readings older than this are unknown."""
SAMPLER_S = 5.0
"""How long a sampler gets to find the GPUs and to count for the first time."""
RETURN_S = 3.0
"""How long a daemon that has just been started gets to hear from the runs that its recordings know."""
BACK_S = 15.0
"""The rows of GPUs that one look takes in: the slowest readings (energy, ECC, links) are in a row every five to ten seconds."""
NONE = 1 << 62
"""A cursor beyond every event and command: rows are all that is wanted."""


class NodeSnapshot:
    """A session, and what the daemon said of the node when it began; without `readings` of GPUs, where none are told."""

    def __init__(self, session: Session, *, readings: bool = True) -> None:
        self.session = session
        self.store = Store()
        self._readings = readings
        self.refresh()
        if session.started_daemon:
            self._await_runs(time.monotonic() + RETURN_S)

    def _await_runs(self, end: float) -> None:
        """Training outlives its daemon: give each run time to say hello to the new one."""
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

    def refresh(self) -> None:
        """Ask for everything again."""
        newest = self.session.fetch(latest=True)
        rows = self._gpu_rows(newest) if self._readings else ()
        self.store.apply(structs.replace(newest, columns=(*rows, *newest.columns)))

    def _gpu_rows(self, newest: Delta) -> tuple[Columns, ...]:
        """The last rows of the GPUs: the newest one alone has not got the readings that are taken now and then."""
        gpus = newest.node.gpus if newest.node else ()
        cursors = {f"gpu/{gpu.uuid}": newest.now - int(BACK_S * SECOND) for gpu in gpus if not gpu.reason}
        found: list[Columns] = []
        more = bool(cursors)
        while more:
            delta = self.session.fetch(cursors=cursors, events=NONE, commands=NONE, state=newest.state)
            found += delta.columns
            cursors |= {part.source: part.times()[-1] for part in delta.columns if len(part)}
            more = delta.more
        return tuple(found)

    def find(self, name: str) -> RunState:
        """The run that is meant.

        Raises:
            Fail: none or several; exit code 3.
        """
        try:
            return find_run(self.node, self.store.vitals, name)
        except Ambiguous as error:
            raise Fail(str(error), MISSING) from None
        except NoSuchRun as error:
            raise Fail(f"{error}{self._recorded(name) or self._where_else()}", MISSING) from None

    def _recorded(self, name: str) -> str:
        """Where to look instead, if only recordings know the run."""
        state = self.session.where.state
        if next(state.glob("*.hoptui"), None) is None:
            return ""
        from hoptui.cli.support.recordings import entries, matching
        from hoptui.client.transport.target import is_path

        which = matching(entries(self.session.where), name)
        if not which:
            return ""
        enough = len(which) == 1 and not is_path(name) and not name.startswith("-")
        return f"; it was recorded: {command_line('replay', name if enough else which[0].run)}"

    def _where_else(self) -> str:
        """Where to look where no run lives; the names of those that do are told anyway."""
        return "" if any(map(self.lives, self.node.runs)) else "; hoptui ls --all lists all there is"

    def lives(self, run: RunState) -> bool:
        """Whether it has not exited."""
        return lives(run, self.store.vitals)

    def age_s(self, source: str) -> float | None:
        """Seconds since the newest row of a source, None while there is none."""
        known = [series.last_t for n in self.store.names(source) if (series := self.store.series(source, n))]
        return (self.store.now() - max(known)) / SECOND if known else None

    def readings(self, source: str) -> dict[str, float]:
        """The newest values of a source that is sampled all the time; none where they are old."""
        age = self.age_s(source)
        return self.store.latest(source) if age is not None and age <= STALE_S else {}

    def gpus_of(self, run: RunState) -> list[GpuInfo]:
        """The GPUs that a run has, by their index; none once it has exited, because others may have them now."""
        return [gpu for gpu in self.node.gpus if gpu.uuid in run.gpus] if self.lives(run) else []

    def processes(self) -> tuple[GpuProcess, ...]:
        """Who is on the GPUs."""
        return self.session.fetch(processes=0).processes or ()

    def await_readings(self) -> None:
        """Give a sampler that has just begun time to find the GPUs and to count for the first time."""
        end = time.monotonic() + SAMPLER_S
        while self._begins() and time.monotonic() < end:
            time.sleep(0.1)
            self.refresh()

    def _begins(self) -> bool:
        if not self.node.gpus:
            return bool(self.node.sampler)
        return any(
            not gpu.reason
            and not gpu.missing.get("gpm")
            and "sm_active" not in self.readings(f"gpu/{gpu.uuid}")
            for gpu in self.node.gpus
        )

    def find_living(self, name: str) -> RunState:
        """The run that is meant, if it can still be steered.

        Raises:
            Fail: none, several, or it has exited; exit code 3.
        """
        run = self.find(name)
        if not self.lives(run):
            raise Fail(
                f"{run.name} ({run.run}) has exited ({run.exit_reason or 'for no known reason'})", MISSING
            )
        return run


def refuse_read_only(what: str) -> None:
    """For a command that changes something, before it does: tell what is wrong with the configuration, refuse if read-only.

    Args:
        what: what does not happen then: `nothing is sent`.

    Raises:
        Fail: this is read-only (exit code 1).
    """
    found = config.read()
    for problem in found.problems:
        warn(f"hoptui: {problem}")
    if found.read_only:
        raise _read_only(found, f"read-only: {what}")


def _read_only(found: Config, why: str) -> Fail:
    return Fail(f"{why} (read_only is set by {found.values['read_only'].origin})", REJECTED)


@contextlib.contextmanager
def look(*, start_daemon: bool = True, steers: bool = False, readings: bool = True) -> Iterator[NodeSnapshot]:
    """Connect, look once, and turn everything that can go wrong on the way into a Fail.

    `steers` is said by a command that is going to send something: it ends here if this is read-only, before anybody is asked.
    `readings=False` by one that tells none of the GPUs.

    Raises:
        NoDaemon: there is none, and it was not to be started.
        Fail: the daemon cannot be reached (exit code 3) or refuses (1), or this is read-only and was to send something (1).
    """
    if steers:
        refuse_read_only("nothing is sent")
    found = config.read()
    try:
        with Session(start_daemon=start_daemon, timeout_s=ANSWER_S, read_only=found.read_only) as session:
            yield NodeSnapshot(session, readings=readings)
    except ReadOnlyError as error:
        raise _read_only(found, str(error)) from None
    except NoDaemon:
        raise
    except Unreachable as error:
        raise Fail(str(error), MISSING) from None
    except RefusedError as error:
        raise Fail(str(error), REJECTED) from None


def knobs_of(run: RunState) -> dict[str, dict[str, Any]]:
    """The knobs of a run as every `--json` shows them."""
    return {
        knob.spec.name: {
            "value": knob.value,
            "version": knob.version,
            "min": knob.spec.min,
            "max": knob.spec.max,
            "effect": knob.spec.effect,
            "cost": knob.spec.cost,
            "took_s": knob.took_s,
        }
        for knob in run.knobs
    }


def headline(run: RunState, metrics: dict[str, float]) -> tuple[str, float | None]:
    """The metric that stands for throughput, and its newest value: the declared one, or the first rate there is."""
    name = run.headline or next((n for n in metrics if n.endswith("_per_s")), "")
    return name, metrics.get(name)


def knob_named(run: RunState, name: str) -> KnobState:
    """The knob of this name. Raises Fail, with the names that may have been meant (exit code 2)."""
    for knob in run.knobs:
        if knob.spec.name == name:
            return knob
    raise usage(missing(numbers.clean(run.name), name, [knob.spec.name for knob in run.knobs]))
