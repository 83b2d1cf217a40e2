"""What really happened on the simulated node, kept apart from what hoptui says about it."""

from __future__ import annotations

from dataclasses import dataclass, field

Value = bool | int | float | str


@dataclass
class Setting:
    """A call of a knob's setter in a training process."""

    value: Value
    at_s: float
    epoch: int
    undo: bool = False
    raised: bool = False


@dataclass
class Call:
    """A call of a handler, for a checkpoint or a trace. `boundary` counts from 1 in its process."""

    verb: str
    boundary: int
    at_s: float
    epoch: int
    raised: bool = False


@dataclass
class Incarnation:
    """One training process of a run. `number` makes the values of its rows unlike those of all others."""

    number: int
    began_s: float
    run: str = ""
    pid: int = 0
    iteration_s: float = 0.0
    steps: int = 0  # rows that it logged, one for each iteration that ended
    settings: list[Setting] = field(default_factory=list)
    value: Value = 0.0
    rank: int = 0
    boundaries: int = 0
    trail: list[tuple[int, Value]] = field(default_factory=list)
    """The value after each boundary at which it changed."""
    waits: list[tuple[float, float]] = field(default_factory=list)  # boundaries that took long
    calls: list[Call] = field(default_factory=list)
    pauses: list[int] = field(default_factory=list)
    """The boundaries at which it was paused."""
    stopped_at: int | None = None
    """The boundary that told its loop to stop."""
    stopped_step: int | None = None
    stopped_epoch: int = 0
    """The restart that it was when it stopped."""
    suspended_s: float = 0.0
    dropped: int = 0  # as it counted them itself
    doubted: int = 0  # of which it cannot know whether they arrived
    unfinished: int = 0  # rows of iterations that did not end: they have no loss
    ended_s: float | None = None
    killed: bool = False
    closed: bool = False
    """Whether it said goodbye as finished."""


@dataclass
class Given:
    """A command of a person, or of a tuner."""

    id: str
    run: str
    epoch: int
    pid: int
    """The restart, and the process of rank 0, that the viewer showed as the command was given."""
    verb: str
    by: str
    value: Value | None
    viewer: str
    at_s: float
    hold_s: float = 0.0
    ttl_s: float = 600.0


@dataclass
class Truth:
    """Everything that happened."""

    processes: list[Incarnation] = field(default_factory=list)
    given: dict[str, Given] = field(default_factory=dict)
    disturbed: list[tuple[float, float]] = field(default_factory=list)
    """When faults were there, in seconds."""
    daemon_died_s: list[float] = field(default_factory=list)
    left_aside: list[tuple[float, str]] = field(default_factory=list)
    """When a daemon began that reported a recording as left aside, and the run of it."""
    lock_deleted_s: list[float] = field(default_factory=list)
    jumps: list[tuple[float, float]] = field(default_factory=list)
    """When the wall clock jumped, and by how many seconds."""
    kept: dict[tuple[str, str], bool] = field(default_factory=dict)
    """By command and stage: whether the recording had the outcome when a viewer showed it without a mark."""
    disk: list[tuple[float, float]] = field(default_factory=list)
    """When the disk was full, failing or slow, in seconds."""
    disk_refused: bool = False
    """Whether it was ever full or failing."""

    def of_another_node(self) -> Truth:
        """Return what happens on another node: with the same processes, faults and clock."""
        return Truth(processes=self.processes, disturbed=self.disturbed, jumps=self.jumps, disk=self.disk)

    def disturb(self, start_s: float, end_s: float) -> None:
        """Note that nothing need be quick in this time."""
        self.disturbed.append((start_s, end_s))

    def disk_failed(self, at_s: float | None = None, margin_s: float = 5.0) -> bool:
        """Return whether the disk had a fault at this time, or ever."""
        return any(at_s is None or s - margin_s <= at_s <= e + margin_s for s, e in self.disk)

    def daemon_died(self, start_s: float = 0.0, end_s: float = 1e9) -> bool:
        """Return whether a daemon was killed in this time."""
        return any(start_s <= at <= end_s for at in self.daemon_died_s)

    def calm(self, start_s: float, end_s: float) -> bool:
        """Return whether no fault was there."""
        return all(end < start_s or start > end_s for start, end in self.disturbed)
