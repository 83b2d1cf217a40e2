"""The facts of a report: what a recording tells, and what it leaves unknown."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from hoptui.domain.columns import Columns, pack
from hoptui.domain.facts import Fact, fact
from hoptui.model import report
from hoptui.model.report import LONGEST_S, Report, ends, read
from hoptui.model.report_curves import MOST_POINTS
from hoptui.protocol.messages import Event
from hoptui.recording import Recording, RecordingError
from tests.model.recorded_run import COMMANDS, EVENTS, FIRST, ID, SECOND, STATE, at, command, event, write

EXAMPLE = Path(__file__).parents[1] / "recordings" / "ppo-h100.hoptui"
SHIPPED = sorted((Path(__file__).parents[2] / "hoptui" / "examples").glob("*.hoptui"))
NAN = float("nan")


def report_of(path: Path, **fields: Any) -> Report:
    with Recording.open(write(path, **fields)) as recording:
        return read(recording)


@pytest.fixture(scope="module")
def example() -> Report:
    with Recording.open(EXAMPLE, still=True) as recording:
        return read(recording)


def test_the_example_went_from_one_and_a_half_to_thirty_million_steps_a_second(example: Report) -> None:
    assert example.first is not None
    assert example.last is not None
    before, after = (stretch.figures["env_steps_per_s"] for stretch in (example.first, example.last))
    assert before == pytest.approx(1.59e6, rel=0.01)
    assert after == pytest.approx(31.7e6, rel=0.01)
    assert example.first.steps == (0, 1956)  # the first change took effect in iteration 1957
    assert example.last.steps[0] > 14_000
    assert example.first.figures["gpu/sm_active"] == pytest.approx(10.6, rel=0.1)
    assert [change.knob for change in example.changes][:2] == ["grad_accum", "num_envs"]
    assert example.knobs_at_first["num_envs"] == 256
    assert example.steps == 16_070


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_last_value_of_a_metric_is_known_where_later_rows_lack_it(path: Path) -> None:
    """In a recorded run of a language model, what it logs at the end has no metric of an iteration."""
    with Recording.open(path, still=True) as recording:
        found = {end.metric: end for end in read(recording).curves.ends}
    assert len(found) >= 3
    for end in found.values():
        assert end.least <= end.last <= end.greatest, end.metric


def test_iterations_that_wait_for_data_count_in_full(tmp_path: Path) -> None:
    """Seven of a hundredth of a second, and one that waits for 0.93 s: eight a second."""
    rows = []
    for i in range(960):
        seconds = 0.93 if i % 8 == 7 else 0.01
        rows.append(
            (at(i // 8 + 0.93 + 0.01 * (i % 8)), i, {"env_steps_per_s": 1 / seconds, "iteration_s": seconds})
        )
    found = report_of(tmp_path / "r.hoptui", rows=(pack(f"run/{ID}", rows),), commands=())
    assert found.last is not None
    assert found.last.figures["env_steps_per_s"] == pytest.approx(8.0)
    assert found.last.figures["iteration_s"] == pytest.approx(1 / 8)


def test_the_time_and_the_energy_of_the_example_add_up(example: Report) -> None:
    assert example.iterating_s is not None
    in_phases = sum(phase.seconds for phase in example.phases)
    assert in_phases <= example.iterating_s <= example.alive_s
    assert [phase.name for phase in example.phases] == ["update", "rollout"]
    assert sum(phase.share for phase in example.phases) == pytest.approx(in_phases / example.iterating_s)
    used = example.energy
    assert used.joules is not None
    assert used.watts is not None
    assert used.joules == pytest.approx(used.watts * example.alive_s, rel=0.05)
    assert used.idle is not None
    assert 0.6 < used.idle < 0.9
    assert used.per_unit_j == pytest.approx(used.joules / 2.156e9, rel=0.01)


def test_the_curve_spans_the_run_and_has_gaps_where_it_stood_still(example: Report) -> None:
    curve = example.curve
    assert curve is not None
    assert curve.metric == "env_steps_per_s"
    assert list(curve.t) == sorted(curve.t)
    assert len(curve.t) == len(curve.middle) <= MOST_POINTS * 1.1, "a gap has a bucket too"
    assert any(value != value for value in curve.middle)
    known = [i for i, value in enumerate(curve.middle) if value == value]
    assert all(curve.low[i] <= curve.middle[i] <= curve.high[i] for i in known)


def test_what_was_asked_for_and_the_minutes_before_and_after_it(tmp_path: Path) -> None:
    found = report_of(tmp_path / "r.hoptui")
    assert found.energy == (None, None, None, None)
    assert found.verdicts == ()
    assert [record.id for record in found.changes] == ["lr", "ga"]
    assert [record.id for record in found.refused] == ["no"]
    assert [record.verb for record in found.commands] == ["pause", "resume"]
    assert found.first is not None
    assert found.last is not None
    # a minute before the change at 202 s, and the last minute
    assert found.first.figures["env_steps_per_s"] == median(1000.0 + i for i in range(142, 202))
    assert found.last.figures["env_steps_per_s"] == median(1000.0 + i for i in range(539, 600))
    assert found.first.figures["phase/rollout"] == 0.6
    assert found.knobs_at_first == {"lr": 1e-3, "grad_accum": 4, "epochs": 10}


def test_a_run_that_never_came_to_an_iteration(tmp_path: Path) -> None:
    found = report_of(tmp_path / "r.hoptui", rows=(), commands=(), events=EVENTS[:1] + EVENTS[-1:], node=None)
    assert (found.curve, found.first, found.last, found.steps, found.iterating_s) == (None,) * 5
    assert found.phases == ()
    assert found.alive_s == 600


def test_nothing_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="nothing in it"):
        report_of(tmp_path / "r.hoptui", rows=(), commands=(), events=())


def rows(seconds: int, leave_out: range = range(0), **more: float) -> Columns:
    made = [
        (at(i + 1), i, {"env_steps_per_s": 500.0, "iteration_s": 1.0, **more})
        for i in range(seconds)
        if i not in leave_out
    ]
    return pack(f"run/{ID}", made)


def derived(seconds: int, watts: float = 400.0, idle: float = 100.0) -> Columns:
    made = [
        (
            at(i),
            -1,
            {"power_w": watts, "idle_power_w": idle if i > seconds / 4 else NAN, "energy_j": watts * i},
        )
        for i in range(seconds + 1)
    ]
    return pack(f"derived/{ID}", made)


def test_energy_for_a_unit_of_work(tmp_path: Path) -> None:
    found = report_of(tmp_path / "r.hoptui", rows=(rows(100), derived(100)), commands=())
    assert found.energy.joules == 40_000
    assert found.energy.watts == pytest.approx(400)
    assert found.energy.idle == pytest.approx(0.25)
    assert found.energy.per_unit_j == pytest.approx(40_000 / (100 * 500))


@pytest.mark.parametrize(
    ("world", "lost"),
    [(2, range(0)), (1, range(40, 60))],
    ids=["a GPU elsewhere", "iterations that were not recorded"],
)
def test_no_energy_for_a_unit_where_not_all_of_both_is_known(tmp_path: Path, world: int, lost: range) -> None:
    state = structs.replace(STATE, world=world)
    found = report_of(tmp_path / "r.hoptui", state=state, rows=(rows(100, lost), derived(100)), commands=())
    assert found.energy.joules == 40_000
    assert found.energy.per_unit_j is None


def test_idle_energy_is_unknown_where_it_is_known_for_the_lesser_part(tmp_path: Path) -> None:
    mostly = [
        (at(i), -1, {"power_w": 400.0, "idle_power_w": 90.0 if i > 80 else NAN, "energy_j": NAN})
        for i in range(101)
    ]
    found = report_of(
        tmp_path / "r.hoptui", rows=(rows(100), pack(f"derived/{ID}", mostly)), commands=()
    ).energy
    assert (found.joules, found.idle, found.per_unit_j) == (None, None, None)
    assert found.watts == pytest.approx(400)


def test_a_count_of_energy_that_ended_early_is_not_the_whole(tmp_path: Path) -> None:
    made = [
        (at(i), -1, {"power_w": 400.0, "idle_power_w": 90.0, "energy_j": 400.0 * i if i < 100 else NAN})
        for i in range(401)
    ]
    found = report_of(tmp_path / "r.hoptui", rows=(rows(400), pack(f"derived/{ID}", made)), commands=())
    assert (found.energy.joules, found.energy.per_unit_j) == (None, None)
    assert found.energy.watts == pytest.approx(400)


def test_a_run_that_went_back_to_a_checkpoint_has_done_that_work_twice(tmp_path: Path) -> None:
    made = [
        (at(i + 1), i if i < 50 else i - 10, {"env_steps_per_s": 500.0, "iteration_s": 1.0})
        for i in range(100)
    ]
    found = report_of(tmp_path / "r.hoptui", rows=(pack(f"run/{ID}", made), derived(100)), commands=())
    assert found.steps == 90
    assert found.energy.per_unit_j == pytest.approx(40_000 / (100 * 500))


def test_without_all_rows_no_sum_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "r.hoptui", rows=(rows(100), derived(100)), commands=())
    with Recording.create(path) as recording:
        recording.remember("thinned_before", str(at(30)))
    with Recording.open(path) as recording:
        found = read(recording)
    assert found.complete_from == at(30)
    assert (found.iterating_s, found.energy.per_unit_j) == (None, None)
    assert found.first is not None
    assert found.first.figures["env_steps_per_s"] == 500


def test_a_declared_rate_of_another_name_and_none_at_all(tmp_path: Path) -> None:
    state = structs.replace(STATE, headline="speed", units={"speed": "frames/s"})
    made = [(at(i + 1), i, {"speed": 30.0, "iteration_s": 1.0}) for i in range(30)]
    found = report_of(
        tmp_path / "a.hoptui", state=state, rows=(pack(f"run/{ID}", made), derived(30)), commands=()
    )
    assert found.curve is not None
    assert found.curve.metric == "speed"
    assert found.energy.per_unit_j == pytest.approx(400 * 30 / (30 * 30))
    bare = [(at(i + 1), i, {"iteration_s": 1.0}) for i in range(30)]
    found = report_of(tmp_path / "b.hoptui", rows=(pack(f"run/{ID}", bare),), commands=())
    assert found.curve is not None
    assert found.curve.metric == "iteration_s"


def test_several_gpus_are_one_figure_only_if_all_are_known(tmp_path: Path) -> None:
    state = structs.replace(STATE, gpus=("A", "B"))
    one = [(at(i), -1, {"busy": 40.0, "sm_active": 20.0}) for i in range(101)]
    two = [(at(i), -1, {"busy": 60.0}) for i in range(101)]
    found = report_of(
        tmp_path / "r.hoptui",
        state=state,
        rows=(rows(100), pack("gpu/A", one), pack("gpu/B", two)),
        commands=(),
    )
    assert found.last is not None
    assert found.last.figures["gpu/busy"] == 50
    assert found.last.figures["gpu/sm_active"] is None


def test_the_ends_lie_before_and_after_all_changes() -> None:
    first, last = at(0), at(300)
    changes = [command("a", 99, 100, took_s=5.0), command("b", 199, 200, took_s=7.0)]
    before, after = ends(first, last, changes)
    assert before == (at(100) - 1 - round(LONGEST_S * SECOND), at(100) - 1)
    assert after == (at(240), last)
    assert ends(first, at(203), changes)[1] is None  # it ended while it stood still for the last one
    assert ends(at(150), last, changes)[0] is None
    assert ends(first, at(90), []) == ((at(0), at(30)), (at(60), at(90)))
    assert ends(first, first, []) == (None, None)


def in_words(text: str) -> Fact:
    """A figure of a recording by hoptui 0.1."""
    return fact("diagnosis.text", text=text)


def test_a_verdict_holds_until_the_next_or_until_its_process_ends() -> None:
    of_facts = Event(
        seq=1,
        t=at(30),
        wall=0.0,
        kind="diagnosis",
        code="diagnosis.verdict",
        fields={"verdict": "compute-bound", "facts": [{"code": "gpu.at_power_limit", "fields": {}}]},
    )
    events = (
        event(0, "started", "started"),
        event(10, "diagnosis", "launch-bound: SM active 5 %; busy 100 %"),
        of_facts,
        event(40, "reconnected", "back"),
        event(50, "exited", "killed"),
        event(70, "restarted", "restarted"),
        event(80, "diagnosis", "launch-bound: SM active 7 %"),
        event(90, "diagnosis", "moon-bound"),
    )
    found = report.held(events, at(0), at(100))
    assert found == [
        ("launch-bound", 30.0, (in_words("SM active 7 %"),)),
        ("compute-bound", 20.0, (fact("gpu.at_power_limit"),)),
        ("unknown", 10.0, (in_words("moon-bound"),)),
        ("", 20.0, ()),
    ]
    assert report.alive_s(events, at(0), at(100)) == 80


def test_the_verdicts_of_a_recording(tmp_path: Path) -> None:
    more = (
        event(100.1, "diagnosis", "data-bound: data 60 %"),
        event(100.2, "tuner", "holding"),
        event(101, "shift", "slower"),
    )
    found = report_of(tmp_path / "r.hoptui", events=(*EVENTS, *more), commands=COMMANDS)
    assert [(one.verdict, one.facts) for one in found.verdicts] == [
        ("data-bound", (in_words("data 60 %"),)),
        ("", ()),
    ]
    assert [e.text for e in found.tuner_events] == ["holding"]
    assert [e.text for e in found.shifts] == ["slower"]
    assert {e.kind for e in found.events} == {"started", "note", "exited"}


KINDS = st.sampled_from(("started", "restarted", "reconnected", "exited", "diagnosis", "note"))
TEXTS = st.sampled_from(("healthy: all is well", "data-bound", "nonsense", ""))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 105), KINDS, TEXTS), max_size=12))
def test_verdicts_never_hold_for_longer_than_the_run_lived(told: list[tuple[int, str, str]]) -> None:
    events = [
        Event(seq=i, t=FIRST + s * SECOND, wall=0.0, kind=kind, text=text)
        for i, (s, kind, text) in enumerate(sorted(told, key=lambda one: one[0]))
    ]
    found = report.held(events, at(0), at(100))
    lived = report.alive_s(events, at(0), at(100))
    assert sum(one.seconds for one in found) == pytest.approx(lived)
    assert 0 <= lived <= 100
    assert len({one.verdict for one in found}) == len(found)
