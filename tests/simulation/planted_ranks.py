"""Planted defects in what the ranks of a run agree on."""

from __future__ import annotations

import math
from typing import Any

from hoptui.sdk import command_execution, iteration, rank_schedule, rank_store, ranks
from tests.simulation.defects import Patch, defect, nothing


@defect("a rank applies without the decision", "stop rank")
def _no_commit() -> list[Patch]:
    settle = rank_schedule.RankSchedule._settle

    def eager(self: Any, proposal: Any, joint: bool) -> None:
        settle(self, proposal, joint or self._store.rank > 0)

    return [(rank_schedule.RankSchedule, "_settle", eager)]


@defect("a rank accepts a boundary that it has passed")
def _in_the_past() -> list[Patch]:
    accept = rank_schedule.RankSchedule._accept

    def always(self: Any, proposal: Any) -> bool:
        accept(self, proposal)
        return True

    return [
        (rank_schedule.RankSchedule, "_accept", always),
        (rank_schedule.RankSchedule, "_boundaries_in", lambda self, seconds: 1),
    ]


@defect("an answer counts for two ranks", "stop rank")
def _counted_twice() -> list[Patch]:
    answer = rank_schedule.RankSchedule._answer

    def first(self: Any, number: int, rank: int) -> str:
        return answer(self, number, rank if self._store.rank else 1)

    return [(rank_schedule.RankSchedule, "_answer", first)]


@defect("a rank that has left is waited for", "leave rank")
def _left_is_there() -> list[Patch]:
    return [(rank_store.Presence, "left", lambda self, rank: False)]


@defect("a stop of one rank is not told to the others", "signal")
def _lonely_stop() -> list[Patch]:
    def alone(self: Any, mine: Any) -> Any:
        if not self.alone:
            self._gather(mine)
        return mine

    return [(ranks.RankAgreement, "stop_request", alone)]


@defect("only rank 0 writes a checkpoint", "checkpoint")
def _one_checkpoint() -> list[Patch]:
    call = command_execution.CommandExecution._call

    def first(self: Any, command: Any, done: Any) -> Any:
        if self._state.rank == 0:
            return call(self, command, done)
        self._agreement.problem(None)
        return done

    return [(command_execution.CommandExecution, "_call", first)]


@defect("only rank 0 is paused", "pause")
def _one_pause() -> list[Patch]:
    do = command_execution.CommandExecution._do

    def first(self: Any, command: Any, stood: Any) -> Any:
        done = do(self, command, stood)
        if command.verb == "pause" and self._state.rank:
            self._state.paused = False
        return done

    return [(command_execution.CommandExecution, "_do", first)]


@defect("a joint boundary stays far ahead after a burst", "hurry")
def _far_ahead() -> list[Patch]:
    schedule = rank_schedule.RankSchedule

    def over_a_second(self: Any, seconds: float) -> int:
        (then, first), (now, last) = self._pace[0], self._pace[-1]
        rate: float = (last - first) / max(now - then, rank_schedule.AHEAD_S)
        return max(1, math.ceil(rate * seconds))

    return [(schedule, "_lead_nearer", nothing), (schedule, "_boundaries_in", over_a_second)]


@defect("ranks that cannot communicate go on applying", "broken store")
def _apart() -> list[Patch]:
    def silent(self: Any, error: Any) -> None:
        self._agreement.dissolve()

    return [(iteration.IterationBoundary, "_separate", silent)]
