"""Which iterations count for and against a change, and what changes that were made together share."""

from __future__ import annotations

import math

from msgspec import structs

from hoptui.daemon.state import command_log
from hoptui.domain.columns import Columns, pack
from hoptui.domain.facts import fact
from hoptui.domain.tuning import Change, Measured, Result, Trial, TunerState
from hoptui.protocol.messages import CommandRecord, Origin
from hoptui.tuner.effect import WARM_UP

METRIC = "tokens_per_s"


def rows(*levels: tuple[int, float]) -> Columns:
    """So many iterations at each level, one after the other, with a little noise that is the same every
    time."""
    values = [level * (1 + 0.01 * math.sin(i)) for count, level in levels for i in range(count)]
    return pack("run/r", [(step + 1, step, {METRIC: value}) for step, value in enumerate(values)])


def change(knob: str, step: int | None, **fields: object) -> CommandRecord:
    record = CommandRecord(id=knob, run="r", epoch=1, verb="set", knob=knob, stage="applied", step=step)
    return structs.replace(record, **fields)


def measured(
    records: list[CommandRecord], found: Columns, epoch: int = 1, tuner: TunerState | None = None
) -> dict[str, Measured]:
    applied, places = command_log.unsettled(records, epoch)
    return {
        record.knob: effect for record, effect in command_log.measured(applied, places, found, METRIC, tuner)
    }


def test_one_change_is_measured_against_what_was_before_it() -> None:
    found = measured([change("lr", 40)], rows((40, 100.0), (40, 120.0)))["lr"]
    assert found.detectable
    assert found.gain is not None
    assert abs(found.gain - 0.2) < 0.03
    assert found.remarks == ()


def test_changes_of_one_boundary_share_their_effect_and_say_so() -> None:
    found = measured(
        [change("lr", 40), change("accum", 40), change("envs", 40)], rows((40, 100.0), (40, 120.0))
    )
    assert {effect.gain for effect in found.values()} == {found["lr"].gain}
    assert found["lr"].gain is not None
    assert found["lr"].remarks == (fact("effect.shared", knobs=["accum", "envs"]),)
    assert found["envs"].remarks == (fact("effect.shared", knobs=["lr", "accum"]),)


def test_while_they_are_measured_they_say_so_too() -> None:
    found = measured([change("lr", 40), change("accum", 40)], rows((40, 100.0), (WARM_UP + 7, 120.0)))
    measuring, shared = found["lr"].remarks
    assert measuring == fact("effect.measuring", had=7, least=15)
    assert shared == fact("effect.shared", knobs=["accum"])
    assert not found["lr"].settled


def test_changes_at_different_boundaries_share_nothing() -> None:
    found = measured([change("lr", 40), change("accum", 80)], rows((40, 100.0), (40, 120.0), (40, 90.0)))
    assert found["lr"].gain is not None
    assert found["accum"].gain is not None
    assert found["lr"].gain > 0.1
    assert found["accum"].gain < -0.1
    assert not found["lr"].remarks


def test_a_change_too_soon_after_another_leaves_that_one_unmeasured() -> None:
    found = measured([change("lr", 40), change("accum", 45)], rows((40, 100.0), (40, 120.0)))
    assert found["lr"].settled
    assert (found["lr"].gain, found["lr"].remarks) == (None, (fact("effect.cut_short"),))


def test_as_many_changes_as_a_run_may_have_knobs_are_measured_together() -> None:
    records = [change(f"k{i}", 40) for i in range(20)]
    assert len(measured(records, rows((40, 100.0), (40, 120.0)))) == 20


def test_what_was_taken_back_counts_neither_for_nor_against_the_next_change() -> None:
    back = change("accum", 60, stage="reverted")
    found = measured([back, change("lr", 100)], rows((40, 100.0), (20, 50.0), (40, 100.0), (40, 100.0)))
    assert set(found) == {"lr"}
    assert found["lr"].before is not None
    assert abs(found["lr"].before - 100.0) < 2.0
    assert found["lr"].gain is not None
    assert abs(found["lr"].gain) < 0.02


def test_no_news_is_not_told_again() -> None:
    found = rows((40, 100.0), (40, 120.0))
    first = measured([change("lr", 40)], found)["lr"]
    again = change("lr", 40, measured=structs.replace(first, settled=False))
    assert set(measured([again], found)) == {"lr"}, "it is settled now"
    assert measured([change("lr", 40, measured=first)], found) == {}


def test_what_a_new_process_brought_is_measured_across_the_restart() -> None:
    wider = change("d_model", 40, code="restarted", before=64, effective=128)
    found = measured([wider], rows((40, 100.0), (40, 70.0)), epoch=2)["d_model"]
    assert found.gain is not None
    assert abs(found.gain + 0.3) < 0.03
    late = measured([change("lr", 32), wider], rows((40, 100.0), (40, 70.0)), epoch=2)["lr"]
    assert (late.settled, late.remarks) == (True, (fact("effect.cut_short"),))


def test_a_change_before_the_restart_bounds_what_the_restart_is_measured_against() -> None:
    records = [change("accum", 20), change("d_model", 50, code="restarted")]
    found = measured(records, rows((20, 50.0), (30, 100.0), (40, 100.0)), epoch=2)["d_model"]
    assert found.before is not None
    assert abs(found.before - 100.0) < 2.0


def test_while_the_new_process_has_not_said_so_what_was_before_still_counts() -> None:
    records = [change("lr", 40), change("d_model", 45, stage="scheduled", code="restarting")]
    applied, places = command_log.unsettled(records, 2)
    assert ([record.knob for record in applied], places) == (["lr"], [0])
    assert list(command_log.lost(records, applied)) == []


def test_what_another_restart_has_cut_off_is_not_measured_and_says_so() -> None:
    known = Measured(metric=METRIC, gain=0.1, interval=0.2, iterations=15)
    begun = Measured(
        metric=METRIC, before=100.0, iterations=7, remarks=(fact("effect.measuring", had=7, least=15),)
    )
    records = [
        change("unknown", 40),
        change("begun", 40, measured=begun),
        change("told", 40, measured=known),
        change("new", 50, epoch=2),
    ]
    applied, places = command_log.unsettled(records, 2)
    assert ([record.knob for record in applied], places) == (["new"], [0])
    said = {record.knob: found for record, found in command_log.lost(records, applied)}
    assert set(said) == {"unknown", "begun", "told"}
    assert [said[knob].remarks for knob in ("unknown", "begun")] == [(fact("effect.restarted"),)] * 2
    assert said["begun"].before == 100.0
    assert said["told"] == structs.replace(known, settled=True)
    settled = [structs.replace(record, measured=said.get(record.knob)) for record in records]
    assert list(command_log.lost(settled, applied)) == []


def test_iterations_that_come_again_count_once() -> None:
    values = [(step, 100.0) for step in range(60)] + [(step, 200.0) for step in range(30, 80)]
    found = pack("run/r", [(t + 1, step, {METRIC: value}) for t, (step, value) in enumerate(values)])
    assert command_log.throughput(found, METRIC) == [(step, 200.0) for step in range(30, 80)]


def test_what_is_changed_together_with_readers_is_measured_as_long_as_they_are() -> None:
    found = measured([change("num_workers", 40), change("lr", 40)], rows((40, 100.0), (60, 120.0)))
    assert {effect.remarks[0].fields["had"] for effect in found.values()} == {55}
    assert {effect.remarks[0].fields["least"] for effect in found.values()} == {90}


# trials -----------------------------------------------------------------------------------------------------

FIGURE = Measured(metric="units_per_joule", gain=0.06, interval=0.01, iterations=30)


def own(wanted: int = 64, t: int = 100) -> CommandRecord:
    return change("lr", 40, wanted=wanted, t=t, origin=Origin(kind="tuner"))


def tried(result: Result, figure: Measured | None = FIGURE, t: int = 100) -> TunerState:
    """A tuner whose trial of `lr` 32 → 64 stands or ended so."""
    trial = Trial(changes=(Change(knob="lr", before=32, value=64),), t=t, result=result, measured=figure)
    return TunerState(trial=trial) if result == "running" else TunerState(tried=(trial,))


def test_a_change_of_a_trial_has_the_figure_of_the_trial_which_is_final_once_that_has_ended() -> None:
    seen = rows((40, 100.0), (40, 120.0))
    assert measured([own()], seen, tuner=tried("running"))["lr"] == FIGURE
    ended = structs.replace(FIGURE, settled=True)
    assert measured([own()], seen, tuner=tried("reverted"))["lr"] == ended


def test_a_trial_without_a_figure_is_measured_as_any_change_once_it_has_ended() -> None:
    seen = rows((40, 100.0), (40, 120.0))
    assert measured([own()], seen, tuner=tried("running", None)) == {}
    assert measured([own()], seen, tuner=tried("failed", None))["lr"].metric == METRIC


def test_what_undoes_a_trial_and_what_users_set_is_not_of_it() -> None:
    tuner = tried("reverted")
    assert command_log.trial_of(own(), tuner) == tuner.tried[0]
    assert command_log.trial_of(own(wanted=32), tuner) is None
    assert command_log.trial_of(own(t=99), tuner) is None
    assert (
        command_log.trial_of(change("lr", 40, wanted=64, t=100, origin=Origin(kind="person")), tuner) is None
    )
