"""`connect()` and `Run`: what a training script holds. Every call returns at once and none of them raises."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Literal

from hoptui.protocol.messages import Outcome
from hoptui.sdk import environment, fork, restart
from hoptui.sdk.boundary import MICROSECONDS, Boundary
from hoptui.sdk.ranks import Agreement, Identity, Ranks, Single
from hoptui.sdk.values import Entry, Settler, travelling

log = logging.getLogger("hoptui")

ROWS_KEPT = 4096
Ending = Literal["finished", "stopped", "exception"]
COUNTS = ("env_steps", "tokens", "samples")
"""Metrics that count the work of one iteration: each gives a rate, `<name>_per_s`."""


def connect(
    name: str,
    *,
    total: int | None = None,
    resume: Mapping[str, Any] | None = None,
    ranks: Ranks | None = None,
) -> Run:
    """The run of this process, visible to `hoptui` on this node. Starts or finds the daemon in the background.

    `total` is the number of iterations planned. `resume` is the `state_dict()` of an earlier process of the same run:
    this one is then its next epoch instead of a new run. Where several processes train together, each calls this at the
    same place and passes how they talk as `ranks`; without that, knobs are refused in a run of several. With `HOPTUI=off`
    and where no daemon can be started, the same object comes back and does nothing but hold the knobs, and see to it
    that all ranks stop together.
    """
    return Run(name, total=total, resume=resume, ranks=ranks)


class Run(Boundary):
    """One training job as seen from its own process."""

    def __init__(
        self,
        name: str,
        *,
        total: int | None = None,
        resume: Mapping[str, Any] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__(ranks)
        resume = resume or {}
        own = Identity(
            run=str(resume.get("run") or new_id()),
            epoch=int(resume.get("epoch", 0)) + 1,
            nonce=secrets.token_hex(8),
            on=not environment.switched_off(os.environ),
        )
        known = self._know(own)
        self.name = str(name)[:100] or "run"
        self.id, self.epoch, self.nonce = known.run, known.epoch, known.nonce
        self.total = _whole(total)
        self.started = time.monotonic_ns()
        self.desk.epoch = self.epoch
        if ranks is None:
            self.rank, self.world = environment.ranks(os.environ)
            if self.world > 1:
                self.desk.refusal = (
                    f"this run has {self.world} ranks, and one rank alone must not change a knob"
                )
        # What the link thread takes away; bounded, the oldest goes first.
        self.entries: deque[Entry] = deque(maxlen=ROWS_KEPT)
        self.appended = 0
        self.settler = Settler()
        self.progress = time.monotonic()
        self.applied = int(resume.get("commands", 0))
        self._row: dict[str, float] | None = None
        self._last_t = 0
        self._iteration_start = 0.0
        self._closed = False
        self._handover = restart.take(os.environ, os.getpid(), self.id)
        fork.guard(self)
        if own.on and known.on and (self.rank == 0 or ranks is not None):
            self._link = _start_link(self)

    # the loop ----------------------------------------------------------------------------------------------------------

    def iterations(self, total: int | None = None, *, start: int = 0) -> Iterator[int]:
        """`range(start, total)` with a boundary before every turn; ends early when a stop was asked for.

        `total` None goes on until a stop. The run's total becomes `total` if it was not said before.
        """
        if self.total is None and total is not None:
            self.total = _whole(total)
            self.declared += 1
        step = start
        while total is None or step < total:
            if not self.boundary(step):
                return
            yield step
            step += 1
        self._last_row()

    def boundary(self, step: int | None = None) -> bool:
        """Between two iterations: close the last one's row, carry out what is due, wait while paused.

        Returns False when a stop was asked for. `step` is the iteration about to begin (default: one more than the
        last). Costs a few microseconds when nothing is due.
        """
        self._last_row()
        given = _whole(step)
        if given is not None:
            self.step = given
        elif self._iteration_start:
            self.step += 1
        self.progress = time.monotonic()
        try:
            self._arrive()
            self._meet()
        except Exception as error:  # a fault of ours must not reach the loop
            self._give_up(error)
        self.phases.take()  # what was done between two iterations is a part of neither
        self._row = {} if self.alive and not self.stopping else None
        self.progress = self._iteration_start = time.monotonic()
        return not self.stopping

    def phase_seconds(self, path: str, seconds: float) -> None:
        """Add to this iteration a phase that was timed by other means, e.g. CUDA events read one iteration late."""
        self.phases.add(path, float(seconds))

    def log(self, values: Mapping[str, Any] | None = None, /, **metrics: Any) -> None:
        """Metrics of this iteration: Python numbers, numpy scalars, 0-d tensors. What is no number is counted, not raised.

        `env_steps`, `tokens` and `samples` count the iteration's work: with the iteration's time they give
        `<name>_per_s`. Outside of a loop that passes boundaries each call is a row of its own. Typically 5 µs for 40
        metrics (`benchmarks/log_cost.py`). Metrics are rank 0's: of another rank, these three alone are kept.
        """
        if not self.alive:
            return
        try:
            if values:
                metrics = {**values, **metrics} if metrics else values  # type: ignore[assignment]
            if self.rank:
                metrics = {name: metrics[name] for name in COUNTS if name in metrics}
            row = self._row
            if row is not None:
                row.update(self.settler.settle(self._last_t, self.step, metrics))
            else:
                t = self._stamp()
                self._append(t, self.settler.settle(t, self.step, metrics))
        except Exception as error:  # a fault of ours must not reach the loop
            self._give_up(error)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint should hold so that the next process can be the next epoch of this run."""
        return {
            "run": self.id,
            "epoch": self.epoch,
            "knobs": {name: handle.value for name, handle in self.knob_handles.items()},
            "commands": self.applied,
        }

    # the end -----------------------------------------------------------------------------------------------------------

    def close(self, reason: Ending | None = None, detail: str = "") -> None:
        """Send what is left and say why the run ends; returns within a second and a half. Called at exit by itself."""
        if self._closed:
            return
        self._closed = True
        self._last_row()
        self._late_rows()
        if reason is None:
            reason, told = _ending(
                getattr(sys, "last_value", None), "stopped" if self.stopping else "finished"
            )
            detail = detail or told
        if self.stopping and not detail:
            detail = f"by {self._stop_by}" if self._stop_by else ""
        if self._link is not None and self.alive:
            self._link.close(reason, travelling(detail, 500))
        self.alive = False

    def hand_over(self, where: str) -> None:
        """This process is about to replace itself (`os.execv`) and to go on as the next epoch of this run, from `where`.

        What waits for that is answered by the first boundary there, with the value read back and the time since the last
        boundary here. In place of `close`, which does nothing afterwards.
        """
        if self._closed:
            return
        self._closed = True
        self._row = None  # the iteration that began will not be
        self._late_rows()
        waiting = tuple(self._waiting.values())
        began = int(self._iteration_start * 1e9)
        restart.leave(os.environ, restart.Handover(os.getpid(), self.id, began, waiting))
        for each in waiting if self.rank == 0 else ():
            reason = travelling(f"restarting from {where}", 300)
            self.desk.done.append(
                Outcome(id=each.command, stage="scheduled", step=self.step, code="restarting", reason=reason)
            )
        if self._link is not None and self.alive:
            self._link.leave()
        self.alive = False

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self.close()
        else:
            self.close(*_ending(error, "finished"))

    def abandon(self) -> None:
        """Do nothing any more, keep everything as it is: in a forked child."""
        self._agreement = Agreement(Single())
        self.unlink()

    # inside ------------------------------------------------------------------------------------------------------------

    def _late_rows(self) -> None:
        for _, step, row in self.settler.late():
            self.entries.append((self._stamp(), step, row))
            self.appended += 1

    def _last_row(self) -> None:
        try:
            self._end_iteration()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        log.warning("hoptui is off in this run: %s: %s. Training goes on.", type(error).__name__, error)
        self._row = None
        self.unlink()

    def _end_iteration(self) -> None:
        row = self._row
        if row is None:
            return
        self._row = None
        seconds = time.monotonic() - self._iteration_start
        row["iteration_s"] = round(seconds, MICROSECONDS)
        for path, spent in self.phases.take().items():
            row[f"phase/{path}"] = round(spent, MICROSECONDS)
        if seconds > 0:
            for name in COUNTS:
                if name in row:
                    rate = row[name] / seconds
                    row[f"{name}_per_s"] = round(rate, 3) if rate >= 1 else rate
        if self.alive:
            self._append(self._stamp(), row)

    def _append(self, t: int, row: dict[str, float]) -> None:
        if self.settler.waiting:
            for _, step, late in self.settler.late():
                self.entries.append((t, step, late))
                self.appended += 1
                t = self._stamp()
        self.entries.append((t, self.step, row))
        self.appended += 1
        link = self._link
        if link is not None and link.drowsy:
            link.drowsy = False
            link.wake()

    def _stamp(self) -> int:
        """Monotonic nanoseconds that rise with every row."""
        self._last_t = max(time.monotonic_ns(), self._last_t + 1)
        return self._last_t


def new_id() -> str:
    """Eight letters and digits that are hard to mistake for one another."""
    return "".join(secrets.choice("abcdefghjkmnpqrstuvwxyz23456789") for _ in range(8))


def _whole(number: Any) -> int | None:
    """A count as Python's own number, also where it is numpy's; None for what is none."""
    try:
        return None if number is None else int(number)
    except (TypeError, ValueError, OverflowError):
        return None


def _ending(error: BaseException | None, without: Ending) -> tuple[Ending, str]:
    """Why a run ends, and what is told of it, where this exception ends the script, or none."""
    if error is None:
        return without, ""
    if isinstance(error, KeyboardInterrupt):
        return "stopped", "interrupted from the keyboard"
    return "exception", f"{type(error).__name__}: {error}"


def _start_link(run: Run) -> Any:
    try:
        from hoptui.sdk.link import LinkThread

        link = LinkThread(run)
        link.start()
    except Exception as error:
        log.warning("hoptui is off in this run: %s: %s", type(error).__name__, error)
        return None
    _open.add(run)
    return link


_open: weakref.WeakSet[Run] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for run in list(_open):
        run.close()
