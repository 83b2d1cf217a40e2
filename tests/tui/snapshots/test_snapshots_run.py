"""What the run screen looks like in each of its states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from hoptui.client.client import Link
from hoptui.domain.columns import pack
from hoptui.domain.facts import fact
from hoptui.domain.line_counts import FoundLines
from hoptui.domain.phases import PhaseReadings
from hoptui.domain.targets import Target, TargetState
from hoptui.protocol.messages import Event
from hoptui.settings import Config, Remembered
from hoptui.tui.run_control import Seen
from tests import factories
from tests.tui.conftest import LINES, RUN, START, WALL, Scene, line

Snapshot = Callable[..., None]
SECOND = 1_000_000_000
ROOMY_FIRST = ((120, 40), (200, 50), (80, 24))
"""For keys that need room."""


def working(gpus: int = 1) -> Scene:
    """A run that goes on, on one GPU if there is any, with two changes of knobs behind it."""
    return Scene(gpus=gpus).live().history()


def with_readings(there: Scene) -> Scene:
    """Also what only some GPUs can tell."""
    return there.derived(
        mfu=41.2, energy_per_unit_j=1.263e-3, idle_power_w=120.3, memory_headroom_bytes=21.9 * (1 << 30)
    )


def test_run_live(snapshot: Snapshot) -> None:
    """It trains on one GPU; the last change made it faster."""
    snapshot(with_readings(working()).app())


def test_run_in_a_vast_terminal(snapshot: Snapshot) -> None:
    """Three columns: what the run achieves, what the hardware does, and the knobs."""
    snapshot(with_readings(working(2)).app(), sizes=((240, 60),))


def aimed(there: Scene) -> Scene:
    """Three targets of the run: one missed, one met, one whose reading is not known."""
    targets = (
        TargetState(
            target=Target(reading="power_w", value=600.0),
            standing="met",
            mean=642.0,
            gpu="GPU-0",
            seconds=31.0,
        ),
        TargetState(
            target=Target(reading="busy", value=90.0), standing="missed", mean=71.2, gpu="GPU-0", seconds=31.0
        ),
        TargetState(target=Target(reading="memory_temperature_c", value=95.0, side="most")),
    )
    there.update(run={"targets": targets})
    return there


def test_run_with_targets(snapshot: Snapshot) -> None:
    """Targets beside the readings: missed ones first."""
    snapshot(aimed(with_readings(working())).app())


def test_run_with_targets_on_many_gpus(snapshot: Snapshot) -> None:
    """The worst GPU of eight decides, and is named."""
    snapshot(aimed(with_readings(working(gpus=8))).app())


def test_run_with_gpu_readings_by_phase(snapshot: Snapshot) -> None:
    """How busy the GPU is during each phase that is long enough."""
    there = with_readings(working())
    known = {"rollout": 12.1, "rollout/env": 3.4, "update": 88.0}
    phases = tuple(
        PhaseReadings(phase=path, samples=24, readings={"sm_active": sm}) for path, sm in known.items()
    )
    there.update(vital={"phases": phases})
    snapshot(there.app())


def test_run_details(snapshot: Snapshot) -> None:
    """What the run is: where it comes from, its configuration and its results."""
    there = working()
    long = {f"data.augmentation.a_rather_long_name_{i}.probability": i / 10 for i in range(4)}
    details = factories.details()
    details = msgspec.structs.replace(
        details, config={**details.config, **long}, notes="A longer warmup, as in the run before. " * 4
    )
    there.client.store.apply_details(RUN, details)
    snapshot(there.app(), "i")


def test_run_details_unknown(snapshot: Snapshot) -> None:
    """An older run says nothing of itself."""
    there = working()
    there.client.store.apply_details(RUN, None)
    snapshot(there.app(), "i")


def test_run_connecting(snapshot: Snapshot) -> None:
    """The first frame: nothing is known but what was asked for."""
    snapshot(Scene().app())


def test_run_just_begun(snapshot: Snapshot) -> None:
    """No iteration has ended, nothing is logged, no knob is declared."""
    there = Scene(gpus=1).live(history=False)
    there.update(run={"knobs": (), "started_wall": WALL - 2.0}, vital={"step": 0, "iteration_s": None})
    snapshot(there.app())


def test_run_paused(snapshot: Snapshot) -> None:
    """Paused for a while; the metrics are old, the GPU's readings are not."""
    there = working()
    there.client.ns += 20 * SECOND
    there.gpu(busy=0.0, sm_active=0.0, power_w=121.0)
    there.update(vital={"state": "paused", "paused_left_s": 43.0, "progress_age_s": 20.0})
    snapshot(there.app())


def test_run_busy(snapshot: Snapshot) -> None:
    """It has been writing a checkpoint for more than two minutes."""
    there = working()
    there.update(
        vital={"state": "busy", "phase": "checkpoint", "phase_age_s": 140.0, "progress_age_s": 141.0}
    )
    snapshot(there.app())


def test_run_not_answering(snapshot: Snapshot) -> None:
    """The process exists, but there is no pulse of it."""
    there = working()
    there.update(vital={"state": "unresponsive", "pulse_age_s": 12.0})
    snapshot(there.app())


def test_run_exited(snapshot: Snapshot) -> None:
    """It ended with an exception."""
    there = working()
    there.update(
        vital={"state": "exited"}, run={"exit_reason": "exception", "exit_detail": "CUDA out of memory"}
    )
    snapshot(there.app())


def test_run_restarted(snapshot: Snapshot) -> None:
    """Its second epoch began twelve seconds ago."""
    there = working()
    there.update(run={"epoch": 2, "started_wall": WALL - 12.0})
    snapshot(there.app())


def test_run_daemon_lost(snapshot: Snapshot) -> None:
    """The daemon does not answer any more; the last values stay, dimmed."""
    there = working()
    there.client.link = Link("lost", 88.0, "the daemon (pid 77) does not answer")
    snapshot(there.app())


def test_run_no_daemon(snapshot: Snapshot) -> None:
    """There is no daemon and none can be started."""
    there = Scene()
    there.client.link = Link("failed", 88.0, "/tmp/hoptui-1000 is a symlink: it must be a directory")
    snapshot(there.app())


def test_run_read_only(snapshot: Snapshot) -> None:
    """Somebody who only looks: no key that steers."""
    there = working()
    there.client.read_only = True
    snapshot(there.app())


def test_run_slow_link(snapshot: Snapshot) -> None:
    """The terminal takes what is written only slowly, and frames are left out."""
    there = working()

    def writes_wait(app: Any) -> None:
        app.pace.due(app.clock(), 9)

    snapshot(there.app(), writes_wait)


def test_run_no_gpu(snapshot: Snapshot) -> None:
    """A node without a GPU: the reason, and the host instead."""
    snapshot(working(gpus=0).app())


def test_run_eight_gpus(snapshot: Snapshot) -> None:
    """Eight GPUs; one is too hot, another fell off the bus."""
    there = (
        Scene(gpus=8).change_gpu(5, problem=fact("recorded", text="lost: fell off the bus")).live().history()
    )
    there.update(run={"gpus": tuple(gpu.uuid for gpu in there.gpus)})
    there.gpu(2, busy=100.0, sm_active=26.0, power_w=655.0, throttle=float(0x20))
    snapshot(there.app())


def test_run_gpu_in_trouble(snapshot: Snapshot) -> None:
    """Busy all the time, and yet most of the SMs idle; too hot; an Xid."""
    there = working().gpu(busy=100.0, sm_active=26.0, power_w=698.0, throttle=float(0x20 | 0x04))
    there.tell(
        events=(
            Event(
                seq=9,
                t=START - 9 * SECOND,
                wall=WALL - 9,
                kind="xid",
                text="page retirement (Xid 63)",
                source="gpu/GPU-0",
                level="alarm",
            ),
        )
    )
    snapshot(there.app())


def test_run_changes_under_way(snapshot: Snapshot) -> None:
    """One change is scheduled, one was refused, one value is not in effect, one is staged."""
    there = working()
    odd = msgspec.structs.replace(there.run.knobs[0], in_effect=False)
    there.update(run={"knobs": (odd, *there.run.knobs[1:])})
    there.record(id="p", ago_s=1.0, knob="grad_accum", before=4, wanted=8, stage="scheduled", step=1205)
    there.record(
        id="q", ago_s=2.0, knob="clip_range", before=0.2, wanted=3.0, stage="rejected", code="out_of_range"
    )

    def stage(app: Any) -> None:
        app.staging.add(RUN, there.run.knobs[3], 1e-3, Seen.of(there.run.knobs[3], 1))

    snapshot(there.app(), stage, "down", "down")


def test_run_events(snapshot: Snapshot) -> None:
    """The events, which a small terminal has behind a key; the last knob is chosen."""
    snapshot(working().app(), "tab", "end")


def test_run_frozen(snapshot: Snapshot) -> None:
    """The view is frozen while the run goes on."""
    there = working()

    def goes_on(app: Any) -> None:
        there.client.ns += 4 * SECOND
        there.rows(3)
        there.update(vital={"step": 1300})

    snapshot(there.app(), "space", goes_on, sizes=ROOMY_FIRST)


def test_run_throughput_alone(snapshot: Snapshot) -> None:
    """One panel has the whole screen."""
    snapshot(working().app(), "1", sizes=ROOMY_FIRST)


def test_run_hardware_alone(snapshot: Snapshot) -> None:
    """One panel has the whole screen: the GPU."""
    snapshot(with_readings(working()).app(), "3", sizes=ROOMY_FIRST)


def test_run_phases_alone(snapshot: Snapshot) -> None:
    """One panel has the whole screen: where an iteration goes."""
    snapshot(working().app(), "4", sizes=ROOMY_FIRST)


def test_run_knobs_alone(snapshot: Snapshot) -> None:
    """One panel has the whole screen: the knobs."""
    snapshot(working().app(), "5", sizes=ROOMY_FIRST)


def test_run_panels_hidden(snapshot: Snapshot) -> None:
    """Learning and phases are hidden."""
    hidden = Remembered(hidden=("run.learning", "run.phases"))
    config = replace(Config.of(theme="dark"), remembered=hidden)
    snapshot(working().app(config=config))


def test_run_in_little_room(snapshot: Snapshot) -> None:
    """Terminals that are smaller than usual, and one at the edge of the full screen."""
    snapshot(working().app(), sizes=((30, 8), (58, 14), (60, 16), (100, 32)))


def test_run_in_ascii(snapshot: Snapshot) -> None:
    """A terminal without UTF-8."""
    snapshot(working().app(plain=True))


def test_run_in_sixteen_colours(snapshot: Snapshot) -> None:
    """The terminal's own colours, and one of the states that are dimmed."""
    there = working()
    there.client.link = Link("lost", 88.0, "the daemon (pid 77) does not answer")
    snapshot(there.app(theme="ansi"), themes=("ansi",))


def test_run_without_colours(snapshot: Snapshot) -> None:
    """No colours at all: what matters is bold."""
    snapshot(working().app(theme="none"), themes=("none",))


def unphased() -> Scene:
    """A run that names no phases."""
    there = Scene(gpus=1).live(history=False)
    rows = [(there.client.ns - (60 - i) * SECOND, i, {"iteration_s": 1.0, "loss": 0.5}) for i in range(60)]
    there.tell(columns=(pack(f"run/{RUN}", rows),))
    return there


def test_run_without_phases(snapshot: Snapshot) -> None:
    """The lines of code in place of the phases."""
    snapshot(unphased().sampled(LINES).app())


def test_run_without_phases_or_samples(snapshot: Snapshot) -> None:
    """Neither phases nor stack samples, and why."""
    there = unphased()
    there.client.store.apply_lines(RUN, FoundLines())
    snapshot(there.app())


def test_run_with_samples_switched_off(snapshot: Snapshot) -> None:
    """The user wants no stack samples: the panel says so."""
    there = unphased()
    there.update(run={"stacks_off": True})
    there.client.store.apply_lines(RUN, FoundLines())
    snapshot(there.app())


def test_lines(snapshot: Snapshot) -> None:
    """Where the time goes, line by line, over three ranks of which one loads data."""
    there = working().sampled(LINES, LINES, {**LINES, line("input", 37, "augment", "rotate", "data.py"): 400})
    there.update(run={"world": 3})
    snapshot(there.app(), "w", "down")


def test_lines_of_the_whole_run_elsewhere(snapshot: Snapshot) -> None:
    """The recording is on another node."""
    there = working()
    there.client.link = Link("live", 0.0, node="gpu99")
    there.client.store.apply_lines(RUN, FoundLines(problem="elsewhere"), whole=True)
    snapshot(there.app(), "w", "a")
