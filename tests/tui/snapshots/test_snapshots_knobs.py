"""What changing knobs looks like: the editor step by step, questions, conflicts, staging; and what else is
asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hoptui.domain.devices import GpuProcess
from hoptui.domain.tuning import Measured
from hoptui.protocol.messages import Origin
from hoptui.tui.process_handle import ProcessHandle
from hoptui.tui.screens.overview import Endings
from tests.client import fake_daemon
from tests.tui.conftest import RUN, Scene

Snapshot = Callable[..., None]
ACCUM, LR = ("down", "down", "e"), ("down", "down", "down", "e")
BO = Origin(user="bo", pid=5, client="dashboard")


def settle(there: Scene, command: str, **fields: Any) -> Callable[[object], None]:
    """What became of a command that was sent."""
    return lambda app: fake_daemon.settle(there.client.store, command, there.client.ns, **fields)


def test_editor(snapshot: Snapshot) -> None:
    """The editor of a knob as it opens: bounds, effect, cost, what it implies."""
    snapshot(Scene(gpus=1).live().history().app(), "e")


def test_editor_typed(snapshot: Snapshot) -> None:
    """A value that may be sent."""
    snapshot(Scene().live(history=False).app(), *ACCUM, "8")


def test_editor_out_of_bounds(snapshot: Snapshot) -> None:
    """A value that the knob does not take."""
    snapshot(Scene().live(history=False).app(), *ACCUM, *"4096")


def test_editor_choices(snapshot: Snapshot) -> None:
    """A knob with a few words to choose from."""
    snapshot(Scene().live(history=False).app(), "end", "e", "down")


def test_editor_question(snapshot: Snapshot) -> None:
    """What changes what is learned is sent only after a yes."""
    snapshot(Scene().live(history=False).app(), *LR, "up", "enter")


def test_editor_on_its_way(snapshot: Snapshot) -> None:
    """Sent, accepted, and scheduled for a boundary: not yet in effect."""
    there = Scene().live(history=False)
    snapshot(there.app(), *ACCUM, "8", "enter", settle(there, "c0", stage="scheduled", step=1205))


def test_editor_applied(snapshot: Snapshot) -> None:
    """Applied: the value is read back and the effect is measured."""
    there = Scene().live(history=False)
    gain = Measured(
        metric="env_steps_per_s",
        before=480e3,
        after=509e3,
        gain=0.061,
        interval=0.012,
        detectable=True,
        iterations=15,
    )

    def applied(app: object) -> None:
        settle(there, "c0", step=1205, version=4, effective=8)(app)
        there.record(
            id="c0",
            ago_s=1.0,
            knob="grad_accum",
            before=4,
            wanted=8,
            effective=8,
            version=4,
            step=1205,
            measured=gain,
        )
        knobs = (
            *there.run.knobs[:2],
            msgspec.structs.replace(there.run.knobs[2], value=8, version=4),
            *there.run.knobs[3:],
        )
        there.update(run={"knobs": knobs})

    snapshot(there.app(), *ACCUM, "8", "enter", applied)


def overtaken(there: Scene) -> Callable[[object], None]:
    """Somebody else changes grad_accum meanwhile."""

    def happens(app: object) -> None:
        theirs = msgspec.structs.replace(there.run.knobs[2], value=16, version=4, by="bo (pid 5)")
        there.update(run={"knobs": (*there.run.knobs[:2], theirs, *there.run.knobs[3:])})

    return happens


def test_editor_conflict(snapshot: Snapshot) -> None:
    """Somebody else has set it meanwhile: the value is refused once."""
    there = Scene().live(history=False)
    snapshot(there.app(), *ACCUM, "8", overtaken(there), "enter")


def test_staged(snapshot: Snapshot) -> None:
    """Three changes that wait to be sent together; one was overtaken."""
    there = Scene().live(history=False)
    steps = (*ACCUM, "8", "a", "down", "e", "up", "a", "end", "e", "down", "insert")
    snapshot(there.app(), *steps, overtaken(there), "a")


def test_staged_sent(snapshot: Snapshot) -> None:
    """Of two that were sent together one failed."""
    there = Scene().live(history=False)
    sent = (*ACCUM, "8", "a", "down", "e", "up", "a", "a", "enter", "y")
    fates = (
        settle(there, "c0", step=1205, version=4),
        settle(there, "c1", stage="failed", reason="ValueError: no"),
    )
    snapshot(there.app(), *sent, *fates)


def test_stop_question(snapshot: Snapshot) -> None:
    """Stopping the run is asked about, over a full screen."""
    snapshot(Scene(gpus=1).live().history().app(), "s")


def test_stop_question_over_old_values(snapshot: Snapshot) -> None:
    """The same, over values that are dimmed because the run does not answer."""
    there = Scene(gpus=1).live().history()
    there.update(vital={"state": "unresponsive", "pulse_age_s": 12.0})
    snapshot(there.app(), "s")


class Shown:
    """A process that is only shown."""

    pid, user, started = 30102, "ana", 0.0
    command = "python serve.py --port 8000 --model checkpoints/step-1190.pt"

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def end(self, number: int) -> None:
        """It stays."""


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A node with one process on its GPU, of the run, that may be ended."""

    def hold(*_: object) -> ProcessHandle:
        return Shown()  # type: ignore[return-value]

    monkeypatch.setattr(Endings, "hold", hold)
    there = Scene(gpus=1).live()
    there.tell(
        processes=(GpuProcess(gpu="GPU-0", pid=30102, user="ana", command=Shown.command, run=RUN),),
        processes_version=1,
    )
    return there


def test_end_process(snapshot: Snapshot, process: Scene) -> None:
    """A process on a GPU is ended only after a box that names it."""
    snapshot(process.app(run=None), "shift+tab", "x")


def test_kill_process(snapshot: Snapshot, process: Scene) -> None:
    """It was asked to end twelve seconds ago and is still there."""

    def stays(app: object) -> None:
        process.client.ns += 12_000_000_000

    snapshot(process.app(run=None), "shift+tab", "x", "y", stays, "x")
