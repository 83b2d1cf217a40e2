"""Planted defects in what the nodes of a run tell each other."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from hoptui.daemon import head_facts
from hoptui.daemon.handlers import jobs
from hoptui.daemon.state import registry
from hoptui.sdk import job_exchange, run_core
from tests.simulation.defects import Patch, defect


@defect("a silent node is shown as live", jobs=True)
def _never_silent() -> list[Patch]:
    return [(jobs, "SILENT_S", 1e9)]


@defect("what a silent head has said is shown as new", jobs=True)
def _never_old() -> list[Patch]:
    return [(jobs, "_aged", lambda node, unchanged_s: node)]


@defect("what a silent head has said of the run is shown as new", jobs=True)
def _never_aged() -> list[Patch]:
    vital = registry.TrackedRun.vital

    def new(self: Any, now: float) -> Any:
        found = vital(self, now)
        return structs.replace(found, head_age_s=None if found.head_age_s is None else 0.0)

    return [(registry.TrackedRun, "vital", new)]


def _kept_jobs() -> list[Patch]:
    """What is known of the nodes of a run is kept when another rendezvous begins."""
    tend = jobs.JobDesk.tend

    def keeping(self: Any) -> None:
        before = self._jobs
        tend(self)
        self._jobs = {**before, **self._jobs}

    return [
        (jobs.JobDesk, "tend", keeping),
        (jobs.JobDesk, "_current", lambda self, name: self._jobs.get(name)),
    ]


@defect("the nodes of an earlier rendezvous are kept", "restart", jobs=True)
def _old_nodes() -> list[Patch]:
    return _kept_jobs()


@defect("a command for an earlier rendezvous is passed on", "restart", jobs=True)
def _any_restart() -> list[Patch]:
    submit = jobs.JobDesk._submit

    def newest(self: Any, run: Any, of: Any, record: Any, command: Any) -> None:
        submit(self, run, of, record, structs.replace(command, epoch=record.summary.epoch))

    return [*_kept_jobs(), (jobs.JobDesk, "_submit", newest)]


@defect("a command is passed on for a moment only", jobs=True)
def _forgotten() -> list[Patch]:
    def forget(self: Any, run: Any, job: Any, now: float) -> None:
        job.relayed = {name: one for name, one in job.relayed.items() if now - one.since < 3.0}

    return [(jobs.JobDesk, "_give_up_old", forget)]


@defect("a store that has failed is not connected to again", "lost store", jobs=True)
def _once() -> list[Patch]:
    return [(job_exchange, "AGAIN_S", (1e9,))]


@defect("a store that does not answer is not reported", "hanging store", jobs=True)
def _no_report() -> list[Patch]:
    return [(jobs, "NO_ANSWER_S", 1e9)]


@defect("the training thread reads the record of the head", jobs=True)
def _in_training() -> list[Patch]:
    follow = run_core.RunCore._follow

    def reading(self: Any, now: int) -> None:
        follow(self, now)
        if self.place.shared is not None:
            self.place.shared.store.get(f"{self.place.shared.prefix}head")

    return [(run_core.RunCore, "_follow", reading)]


@defect("what the head says is taken anew each time", jobs=True)
def _rows_again() -> list[Patch]:
    take = head_facts.HeadView.take

    def anew(self: Any, facts: Any, epoch: int, written: float) -> None:
        self._newest = 0
        take(self, facts, epoch, written)

    return [(head_facts.HeadView, "take", anew)]


@defect("the head says nothing of the run", jobs=True)
def _silent_head() -> list[Patch]:
    return [(jobs, "head_facts", lambda node, run: None)]
