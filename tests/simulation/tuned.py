"""The knobs of a simulated script that the daemon's tuner may turn, and one that needs a new process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hoptui.domain.columns import Columns
from hoptui.domain.devices import FromSampler, Sample
from hoptui.domain.targets import Target
from hoptui.domain.tuning import TUNER
from hoptui.sdk.run import Run

BATCH, WIDTH = "batch", "width"
FIRST_BATCH, FIRST_WIDTH = 64, 100
LARGEST = 512


@dataclass(frozen=True)
class Chosen:
    """A command of a person for one of these knobs."""

    id: str
    run: str
    knob: str
    value: int
    at_s: float


@dataclass(frozen=True)
class Turned:
    """A value that a knob had after a boundary, and who had set it."""

    at_s: float
    value: int
    by: str


@dataclass(frozen=True)
class Request:
    """What was asked of the tuner of a run."""

    run: str
    op: str
    at_s: float


@dataclass
class Wish:
    """A target that somebody asked a daemon for. `granted_s` is None if no answer came."""

    run: str
    target: Target
    asked_s: float
    granted_s: float | None = None


@dataclass
class ServicesTruth:
    """What really happened to tuned knobs, readings and targets."""

    chosen: list[Chosen] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list)
    turned: dict[str, list[Turned]] = field(default_factory=dict)
    """Of `batch`, by run: each change."""
    widths: dict[str, list[int]] = field(default_factory=dict)
    """With which widths the processes of a run began."""
    readings: dict[str, dict[int, dict[str, float]]] = field(default_factory=dict)
    """By source and stamp."""
    handed_s: dict[tuple[str, int], float] = field(default_factory=dict)
    """When a daemon read them."""
    at_next_trial: Callable[[], object] | None = None
    """Called once, when the script has the next value that the tuner tries."""
    at_next_process: Callable[[], object] | None = None
    """Called once, when the next process has declared its knobs."""

    def read(self, part: Columns) -> None:
        """Note a reading of a sampler."""
        self.readings.setdefault(part.source, {}).update((t, values) for t, _, values in part.rows())

    def handed(self, said: Sequence[FromSampler], now_s: float) -> None:
        """Note what a daemon took from its sampler."""
        for message in said:
            for part in message.parts if isinstance(message, Sample) else ():
                self.handed_s.update(((part.source, t), now_s) for t in part.times())


class TunedKnobs:
    """The knobs of one process. A larger batch is faster by the sample, up to a point."""

    def __init__(self, truth: ServicesTruth, run: Run, values: dict[str, Any], now: Any) -> None:
        self._truth, self._run, self._now = truth, run, now
        self.batch = self.first = int(values.get(BATCH, FIRST_BATCH))
        self.width = int(values.get(WIDTH, FIRST_WIDTH))
        run.knob(
            BATCH,
            self.batch,
            min=1,
            max=LARGEST,
            effect="speed",
            apply=self._set_batch,
            read=lambda: self.batch,
        )
        run.knob(WIDTH, self.width, min=1, max=1 << 40, cost="restart")
        truth.widths.setdefault(run.id, []).append(self.width)
        if (call := truth.at_next_process) is not None:
            truth.at_next_process = None
            call()
        self.note()

    @property
    def pace(self) -> float:
        """How long an iteration takes, as a share of the longest."""
        return _work(self.batch) / _work(LARGEST)

    def note(self) -> None:
        """Look at the value after a boundary."""
        turned = self._truth.turned.setdefault(self._run.id, [])
        if not turned or turned[-1].value != self.batch:
            by = self._run._core.state.declarations.knobs[BATCH].by
            turned.append(Turned(self._now(), self.batch, by))
            if by == TUNER and (call := self._truth.at_next_trial) is not None:
                self._truth.at_next_trial = None
                call()

    def _set_batch(self, value: int) -> None:
        self.batch = value


def _work(batch: int) -> float:
    size = batch / FIRST_BATCH
    return 0.5 + 0.5 * size + 0.05 * size**2
