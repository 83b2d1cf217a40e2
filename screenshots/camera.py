"""The dashboard on a recording with a clock that stands still but where it is moved: the same steps give the
same picture."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import structs
from textual.pilot import Pilot
from textual.widgets import Input

from hoptui.client.client import Change, Client, Link
from hoptui.client.replay import Replay
from hoptui.domain.job_history import JobHistory
from hoptui.domain.knobs import KnobValue
from hoptui.model.recorded.store import RecordedStore
from hoptui.protocol.messages import RunState, Verb
from hoptui.recording import Recording
from hoptui.settings import read
from hoptui.tui.app import HoptuiApp
from hoptui.tui.app_protocol import StoreChanged
from hoptui.tui.hosts_app import FleetApp, Reached
from hoptui.tui.replay_app import ReplayApp
from screenshots import made_up_job, made_up_output

EXAMPLES = Path(__file__).parent.parent / "hoptui" / "examples"
RECORDING = EXAMPLES / "lm-h200.hoptui"
SLOW_START = EXAMPLES / "ppo-h200.hoptui"
HOME = "/home/me"
"""Of somebody who has set nothing."""
JOB, JOB_S, JOB_SHOWN_S = (32, 8), 200, 150
"""Nodes and ranks of the made-up job, for how many seconds it has run, and how many of them are known."""
SECOND = 1_000_000_000
SETTLE_S = 1.0  # what is drawn least often is drawn once a second

Seat = Literal["replay", "live", "hosts", "tuned", "slow start", "job"]
"""Who looks: somebody who plays the recording, or who sat there when it was made, alone or with another host
that is down; or when that of a slow start was made, for its tuner; somebody who plays that one; or as if the
run was one of several nodes, whose states are made up."""


class To(NamedTuple):
    """A step that goes to a moment of the recording, as `Replay.find` takes it."""

    moment: str


class Do(NamedTuple):
    """A step that does an action whose key the replay has for something else."""

    action: str


Step = str | To | Do
"""A key as Textual names it, or one of the others."""


class NeverGivenError(Exception):
    """A command was sent that nobody gave to the run when it was recorded."""


class ThenStore(RecordedStore):
    """The recording, and a run in it that can do what it could then."""

    def run(self, run_id: str) -> RunState | None:
        found = super().run(run_id)
        return structs.replace(found, can=self.chronicle.state.can) if found else None


class Then(Replay):
    """The recording as a live node. A command can be sent if it was really given: what became of it is in the
    recording."""

    read_only = False

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        super().__init__(path, clock=clock)
        self.store = ThenStore(self._recording)

    def start(self) -> None:
        """Nothing plays: moments are gone to."""

    def again(self) -> None:
        """It is there."""

    def fetch_output(self, run_id: str, rank: int) -> None:
        """Make the output up."""
        self.store.outputs = {run_id: made_up_output.output(run_id, rank)}

    def send(
        self,
        verb: Verb,
        run_id: str,
        *,
        knob: str = "",
        value: KnobValue | None = None,
        options: dict[str, int | bool] | None = None,
        expect_version: int | None = None,
        why: str = "",
        hold_s: float = 60.0,
    ) -> str:
        """The id of the command that was given.

        Raises:
            NeverGivenError: there was none like it.
        """
        for given in self.store.chronicle.commands:
            if (given.verb, given.knob, given.wanted) == (verb, knob, value):
                return given.id
        raise NeverGivenError(f"{verb} {knob} {value}")


class JobStore(ThenStore):
    """The recording, and a made-up job in the place of its run."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self._made_up: JobHistory | None = None

    def run(self, run_id: str) -> RunState | None:
        found = super().run(run_id)
        return structs.replace(found, world=JOB[0] * JOB[1]) if found else None

    def job(self, run_id: str) -> JobHistory | None:
        if self._made_up is None:
            self._made_up = JobHistory()
            last = self.now() / SECOND
            for second, state in made_up_job.states(*JOB, JOB_S, first=JOB_S - JOB_SHOWN_S, run=run_id):
                self._made_up.add(last - (JOB_S - 1 - second), state)
        return self._made_up


class OnNodes(Then):
    """The recording as a live node, with a made-up job in the place of its run."""

    def __init__(self, path: Path, *, clock: Callable[[], float]) -> None:
        super().__init__(path, clock=clock)
        self.store = JobStore(self._recording)


class Down(Client):
    """A host that cannot be reached: nothing is known of it."""

    NAME = "gpu08"

    def __init__(self) -> None:
        super().__init__()
        self.link = Link("lost", -40.0, f"{self.NAME}: No route to host", node=self.NAME)

    def start(self) -> None:
        """It is not even tried."""


class Clock:
    """Seconds, monotonic, that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Camera:
    """Takes the steps of one sitting at a dashboard, and its pictures."""

    def __init__(self, app: HoptuiApp, pilot: Pilot[None], replay: Replay, clock: Clock) -> None:
        self.app = app
        self.replay = replay
        self._pilot = pilot
        self._clock = clock

    async def take(self, *steps: Step, settle_s: float = SETTLE_S) -> None:
        """Take steps, each once the one before is on screen; then let time go by until all that is due is
        drawn."""
        for step in steps:
            if isinstance(step, To):
                self.replay.seek(self.replay.find(step.moment))
            elif isinstance(step, Do):
                await self.app.run_action(step.action)
            else:
                await self._pilot.press(step)
            await self.pass_time(0.0)
        await self.pass_time(settle_s)

    async def pass_time(self, seconds: float) -> None:
        """Let time go by and the dashboard draw what is due then. Cursors do not blink: that is a clock of
        Textual's."""
        await self._pilot.pause()
        self._clock.now += seconds
        self.app.tick()
        for entry in self.app.screen.query(Input):
            entry.cursor_blink = False
        await self._pilot.pause()

    def svg(self) -> str:
        """What is on screen."""
        return self.app.export_screenshot(title="hoptui")


def hosts(then: Then) -> dict[str, Callable[[Callable[[Change], None]], Reached]]:
    """How to connect to the recorded host and to one that is down."""
    node = then.store.node
    return {node.host if node else "here": lambda changed: then, Down.NAME: lambda changed: Down()}


@asynccontextmanager
async def sitting(
    seat: Seat = "replay", *, theme: str = "dark", size: tuple[int, int], moment: str
) -> AsyncIterator[Camera]:
    """Open the dashboard at a moment of the recording, which stands still, in a terminal of so many columns
    and rows."""
    clock, config = Clock(), read({"theme": theme}, {"HOME": HOME})
    path = SLOW_START if seat in ("tuned", "slow start") else RECORDING
    kinds: dict[str, type[Replay]] = {"replay": Replay, "slow start": Replay, "job": OnNodes}
    replay = kinds.get(seat, Then)(path, clock=clock)
    replay.seek(replay.find(moment))
    app: HoptuiApp
    if type(replay) is Replay:
        app = ReplayApp(replay, config=config, clock=clock, frames=False)
    elif isinstance(replay, Then) and seat == "hosts":
        app = fleet = FleetApp(hosts(replay), config=config, clock=clock, frames=False)
        fleet.wall = lambda: fleet.view(None).wall  # type: ignore[method-assign]  # somebody's whose clock was right
    else:
        run = replay.store.run_id
        app = HoptuiApp(lambda changed: replay, run, config=config, clock=clock, frames=False)
    app.animation_level = "none"
    app.preferences._remember = lambda **_: ""  # type: ignore[method-assign]  # a picture leaves nothing to the next
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        replay.pause()
        app.post_message(StoreChanged("node"))
        camera = Camera(app, pilot, replay, clock)
        await camera.take()
        yield camera
