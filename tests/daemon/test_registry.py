"""Liveness and identity of runs, without I/O."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec import structs

from hoptui.daemon.state.registry import DuplicateRunError, Registry
from hoptui.domain.columns import pack
from hoptui.domain.facts import fact
from hoptui.domain.knobs import KnobSpec, KnobState
from hoptui.protocol.messages import Outcome, Pulse, RunHello
from tests.daemon.quiet_node import QuietNode

S = 1_000_000_000
BATCH = KnobSpec(name="batch", kind="int", default=32)


def hello(**fields: Any) -> RunHello:
    made: dict[str, Any] = {
        "protocol": 1,
        "run": "r",
        "name": "toy",
        "epoch": 1,
        "nonce": "n",
        "pid": 9,
        "started": 0,
    }
    return RunHello(**(made | fields))


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_a_run_is_starting_until_an_iteration_begins_or_a_row_comes(registry: Registry) -> None:
    run, _ = registry.hello(b"i", hello(), 100.0)
    run.pulse(Pulse(step=0, began=False, progress_age_s=90.0), now=10.0)
    assert (run.vital(10.0).state, run.vital(10.0).because) == ("busy", fact("state.starting"))
    run.pulse(Pulse(step=0), now=11.0)
    assert run.vital(11.0).state == "live"
    run.pulse(Pulse(step=0, began=False), now=12.0)
    run.rows(pack("run/r", [(S, 0, {"loss": 1.0})]))
    assert run.vital(12.0).state == "live"


def test_three_signals_never_merged(registry: Registry) -> None:
    run, _ = registry.hello(b"i", hello(), 100.0)
    assert run.vital(0.0).state == "unresponsive"
    run.rows(pack("run/r", [(i * S, i, {"iteration_s": 1.0}) for i in range(1, 9)]))
    run.pulse(Pulse(step=8, phase="rollout", progress_age_s=0.5), now=10.0)
    assert run.vital(10.5).state == "live"
    assert run.vital(10.5).iteration_s == 1.0
    run.pulse(Pulse(step=8, phase="checkpoint", progress_age_s=3.5, phase_age_s=140.0), now=14.0)
    vital = run.vital(14.0)
    assert (vital.state, vital.because) == (
        "busy",
        fact("state.in_phase", phase="checkpoint", age_s=140.0),
    )
    run.pulse(Pulse(step=8, paused=True, paused_left_s=60.0, progress_age_s=50.0), now=15.0)
    assert run.vital(16.0).state == "paused"
    assert run.vital(16.0).paused_left_s == 59.0
    vital = run.vital(21.0)
    assert (vital.state, vital.because) == ("unresponsive", fact("state.no_pulse", age_s=6.0))
    run.pulse(Pulse(step=9), now=22.0)
    assert run.vital(22.0).state == "live"
    run.exit("finished", "", 200.0)
    vital = run.vital(99.0)
    assert (vital.state, vital.because, vital.step) == ("exited", None, 9)


def test_the_typical_iteration_is_that_of_the_newest(registry: Registry) -> None:
    run, _ = registry.hello(b"i", hello(), 100.0)
    assert run.iteration_s() is None
    run.rows(pack("run/r", [(1 * S, 1, {"iteration_s": 1.0})]))
    assert run.iteration_s() == 1.0
    run.rows(pack("run/r", [(i * S, i, {"iteration_s": 3.0}) for i in (2, 3)]))
    assert (run.iteration_s(), run.vital(0.0).iteration_s) == (3.0, 3.0)
    odd = (math.inf, -1.0, 0.0, 1e308, math.nan)
    run.rows(pack("run/r", [(i * S, i, {"iteration_s": s}) for i, s in enumerate(odd, 4)]))
    assert run.iteration_s() == 3.0, "no iteration takes as long"


def test_the_throughput_counts_the_waits_and_begins_anew_with_a_changed_knob(registry: Registry) -> None:
    run, _ = registry.hello(b"i", hello(knobs=(KnobState(spec=BATCH, value=32),)), 100.0)
    assert run.vital(0.0).throughput is None
    rows = [
        (i * S, i, {"iteration_s": 0.1, "tokens_per_s": 2.5 if i % 8 == 0 else 100.0}) for i in range(1, 65)
    ]
    run.rows(pack("run/r", rows))
    assert run.vital(0.0).throughput == pytest.approx(8 / (7 / 100 + 1 / 2.5))
    run.outcome("batch", Outcome(id="a", stage="applied", effective=64, version=1), "ana")
    assert run.vital(0.0).throughput is None
    run.rows(pack("run/r", [(99 * S, 99, {"iteration_s": 0.1, "tokens_per_s": 7.0})]))
    assert run.vital(0.0).throughput == 7.0


def test_the_age_of_progress_goes_on_between_pulses(registry: Registry) -> None:
    run, _ = registry.hello(b"i", hello(), 100.0)
    run.pulse(Pulse(step=1, progress_age_s=1.0), now=10.0)
    assert run.vital(12.5).progress_age_s == pytest.approx(3.5)


def test_reconnecting_restarting_and_doubling(registry: Registry) -> None:
    first, kind = registry.hello(b"a", hello(), 1.0)
    assert kind == "new"
    same, kind = registry.hello(b"b", hello(), 2.0)
    assert (kind, same) == ("same", first)
    assert registry.of(b"a") is None
    assert registry.of(b"b") is first
    with pytest.raises(DuplicateRunError, match=r"toy.*pid 9"):
        registry.hello(b"c", hello(nonce="other", pid=10), 3.0)
    first.exit("killed", "", 4.0)
    after, kind = registry.hello(b"c", hello(nonce="other", pid=10), 5.0)
    assert (kind, after.state.epoch, after.state.pid) == ("epoch", 2, 10)
    assert registry.of(b"b") is None


def test_the_run_may_know_a_later_epoch_than_the_daemon(registry: Registry) -> None:
    first, _ = registry.hello(b"a", hello(), 1.0)
    first.exit("killed", "", 2.0)
    after, _ = registry.hello(b"b", hello(nonce="2", epoch=5), 3.0)
    assert after.state.epoch == 5


def test_the_value_read_back_is_the_knobs_value(registry: Registry) -> None:
    spec = KnobSpec(name="n", kind="int", default=4)
    run, _ = registry.hello(b"a", hello(knobs=(KnobState(spec=spec, value=4),)), 1.0)
    run.outcome(
        "n", Outcome(id="c", stage="applied", effective=32, version=1, reason="not in effect as asked"), "kim"
    )
    (knob,) = run.state.knobs
    assert (knob.value, knob.version, knob.in_effect, knob.by) == (32, 1, False, "kim")
    run.outcome("n", Outcome(id="d", stage="failed", effective=32, version=1, reason="no"), "lee")
    assert run.state.knobs[0].by == "kim"
    run.outcome("n", Outcome(id="e", stage="applied", effective=8, version=2, took_s=0.5), "kim")
    run.outcome("n", Outcome(id="e", stage="reverted", effective=4, version=3, reason="no memory"), "kim")
    (knob,) = run.state.knobs
    assert (knob.value, knob.version, knob.in_effect, knob.took_s) == (4, 3, True, 0.5)


def test_a_rank_belongs_to_the_run_with_its_nonce(registry: Registry) -> None:
    first = hello(world=2)
    second = structs.replace(first, rank=1, pid=10, run="another-name")
    assert registry.join(b"b", second, 10) is None  # before rank 0 is known it is nobody's
    run, _ = registry.hello(b"a", first, 1.0)
    assert registry.join(b"b", second, 10) is run
    assert run.pids == (first.pid, 10)
    found = registry.member(b"b")
    assert found is not None
    assert (found[0], found[1].rank) == (run, 1)
    assert registry.member(b"a") is None
    assert len(run.claims) == 2
    run.leave(1)
    assert registry.member(b"b") is None
    assert len(run.claims) == 1
    registry.join(b"c", second, 10)
    run.exit("finished", "", 2.0)
    assert registry.member(b"c") is None
    assert registry.join(b"d", second, 10) is None


def test_versions_rise_with_what_viewers_should_see(registry: Registry) -> None:
    before = registry.version
    run, _ = registry.hello(b"a", hello(), 1.0)
    assert registry.version > before
    registry.forget(["r"])
    assert list(registry) == []
    registry.restore(run)
    assert registry.get("r") is run


def test_a_run_that_said_so_may_restart_within_its_process(registry: Registry) -> None:
    first, _ = registry.hello(b"a", hello(), 1.0)
    first.restarting = True
    assert first.vital(99.0).state == "busy"
    assert first.vital(99.0).because == fact("state.restarting")
    with pytest.raises(DuplicateRunError):
        registry.hello(b"b", hello(nonce="other", pid=10), 2.0)
    after, kind = registry.hello(b"b", hello(nonce="other"), 2.0)
    assert (kind, after.state.epoch, after.restarting) == ("epoch", 2, False)
    registry.disconnect(after)  # as after a restart of the daemon, which has not heard it
    again, kind = registry.hello(b"c", hello(nonce="third"), 3.0)
    assert (kind, again.state.epoch) == ("epoch", 3)


def test_ages_count_from_when_a_pulse_was_sent_and_not_from_when_it_was_heard() -> None:
    quiet = QuietNode()
    quiet.hello()
    for sent_s, age in ((0.6, 0.6), (-1.0, 0.0), (1000.0, 0.0)):  # the last two are of another clock
        pulse = Pulse(step=3, t=quiet.now - round(sent_s * S), progress_age_s=0.25)
        quiet.runs.receive(b"n1", None, pulse)
        vital = quiet.run.vital(quiet.now / S)
        assert vital.pulse_age_s == pytest.approx(age)
        assert vital.progress_age_s == pytest.approx(0.25 + age)


def test_the_last_iteration_counts_though_no_pulse_follows_it(registry: Registry) -> None:
    run, _ = registry.hello(b"i", hello(total=20), 100.0)
    run.pulse(Pulse(step=19), now=20.0)
    assert run.vital(20.0).step == 19
    run.rows(pack("run/r", [(20 * S, 19, {"iteration_s": 1.0})]))
    assert run.vital(20.0).step == run.step == 20
    run.exit("finished", "", 200.0)
    assert run.vital(30.0).step == 20
    assert run.last_step == 19


def test_the_step_of_a_restored_run_is_that_of_its_process(registry: Registry) -> None:
    """The newest recorded row may be of an earlier process, which had come further."""
    run, _ = registry.hello(b"i", hello(), 100.0)
    run.rows(pack("run/r", [(9 * S, 2175, {"iteration_s": 1.0})]))
    registry.disconnect(run)
    again, kind = registry.hello(b"j", hello(step=40), 101.0)
    assert (again, kind) == (run, "same")
    again.pulse(Pulse(step=41), now=10.0)
    assert again.vital(10.0).step == 41


def test_a_row_before_the_first_iteration_counts_as_none(registry: Registry) -> None:
    run, _ = registry.hello(b"i", hello(total=1), 100.0)
    run.rows(pack("run/r", [(1 * S, 0, {"setup": 1.0})]))
    assert run.vital(1.0).step == 0


def test_outside_of_phases_a_run_is_busy_since_its_last_boundary(registry: Registry) -> None:
    run, _ = registry.hello(b"i", hello(), 100.0)
    run.pulse(Pulse(step=40, progress_age_s=4.0, phase_age_s=3600.0), now=10.0)
    vital = run.vital(11.0)
    assert (vital.because, vital.phase_age_s) == (fact("state.in_phase", phase="", age_s=5.0), 5.0)
    run.pulse(Pulse(step=40, progress_age_s=9.0, phase_age_s=4.0), now=15.0)  # a phase has ended since
    assert run.vital(15.0).because == fact("state.in_phase", phase="", age_s=4.0)
