"""What is said of the tuner: in a few lines, on its own screen, beside the knobs, and on the charts."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from hoptui.client.client import Link
from hoptui.domain.diagnosis import Advice, Diagnosis
from hoptui.domain.facts import fact
from hoptui.domain.tuning import Limits, TunerState
from hoptui.tui.components import help_page as help_content
from hoptui.tui.components import knobs, runs, tuner
from hoptui.tui.run_control import advised
from hoptui.tui.screens.tuner import content as tuner_content
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, lay, width_of
from tests.golden import Golden, sheet
from tests.tui.conftest import RUN, SECOND, START, Scene
from tests.tui.tuned_run import ADVICE, DIAGNOSIS, HOLDING, STATE, STOPPED, TRIED, tuned


def look(there: Scene) -> View:
    return there.app().view(RUN)


def said(lines: Iterable[Line]) -> list[str]:
    return ["".join(span.text.ljust(span.width) for span in line).rstrip() for line in lines]


def test_a_trial_in_three_lines(golden: Golden) -> None:
    golden(said(tuner.short(look(tuned()), 80)))


def test_the_energy_saved_and_the_throughput_lost(golden: Golden) -> None:
    assert TRIED[0].measured is not None
    joules = replace(TRIED[0].measured, metric="units_per_joule", before=900.0, after=955.0)
    slower = replace(TRIED[0].measured, gain=-0.04, after=461e3)
    kept = replace(TRIED[0], measured=joules, throughput=slower, units=3.2e9)
    view = look(tuned(replace(STOPPED, limits=Limits(objective="energy"), tried=(kept,))))
    shown = said(tuner.facts(view, 100))
    golden(sheet({"facts": shown, "trial": said(tuner.trial_detail(view, tuner.trials(view)[0], 80))}))
    assert [line.split()[0] for line in shown][4:7] == ["energy", "saved", "speed"]


def test_a_sentence_with_a_figure_at_its_end_is_not_cut(golden: Golden) -> None:
    why = "the next trial may cost more than the budget has left: 41 s"
    waiting = replace(STATE, stand="waiting", text=why, trial=None)
    golden(sheet({f"{width} columns": said(tuner.short(look(tuned(waiting)), width)) for width in (56, 80)}))


@pytest.mark.parametrize("width", [20, 30, 40, 56, 80])
def test_no_figure_of_a_trial_is_cut(width: int) -> None:
    assert STATE.trial is not None
    line = tuner.trial_line(STATE.trial, width)
    assert width_of(line) <= width
    assert said([line])[0].startswith("grad_accum 4 → 8")
    kept = tuner.ended(TRIED[0], width)
    assert width_of(kept) <= max(width, len("● kept grad_accum 2 → 4"))


def test_what_is_next_and_that_nothing_is(golden: Golden) -> None:
    waiting = replace(STATE, stand="waiting", text="", trial=None, tried=())
    states = {"waiting": waiting, "holding": HOLDING, "stopped": STOPPED, "no tuner": None}
    golden(sheet({name: said(tuner.short(look(tuned(state)), 60)) for name, state in states.items()}))


@pytest.mark.parametrize(
    ("state", "seen"), [(None, False), (STATE, True), (STOPPED, True), (TunerState(), False)]
)
def test_the_run_screen_shows_it_once_there_is_something(state: TunerState | None, seen: bool) -> None:
    assert tuner.to_be_seen(look(tuned(state))) is seen


def test_all_there_is_to_know(golden: Golden) -> None:
    views = {"all": look(tuned()), "no diagnosis": look(tuned(diagnosis=None))}
    widths = {"all": (100, 120, 80), "no diagnosis": (100,)}
    shown = {
        f"{what}, {w} columns": said(tuner.facts(view, w))
        for what, view in views.items()
        for w in widths[what]
    }
    golden(sheet(shown))


def test_more_than_the_budget_is_a_warning_and_no_budget_no_bar(golden: Golden) -> None:
    old = replace(STATE, lived_s=7200.0)
    golden([said(tuner.facts(look(tuned(old)), 100))[5]])
    for state, inks in ((replace(old, spent=0.06), True), (replace(STATE, spent=0.06), False)):
        line = tuner.facts(look(tuned(state)), 100)[5]
        assert ("warn" in {span.ink for span in line}) is inks, "a young one may use more of its time"
    none = tuner.facts(look(tuned(replace(STATE, limits=Limits(budget=0.0)))), 100)[5]
    assert "━" not in said([none])[0]


def test_a_pause_costs_nothing_of_the_budget(golden: Golden) -> None:
    paused = replace(STATE, spent=20 / 300, lived_s=300.0, started=STATE.started - 3600 * SECOND)
    line = tuner.facts(look(tuned(paused)), 100)[5]
    golden([said([line])[0]])
    assert "warn" not in {span.ink for span in line}


def test_trials_newest_first_with_what_they_did(golden: Golden) -> None:
    view = look(tuned())
    shown = tuner.trials(view)
    assert [one.word.text for one in shown] == ["running", "failed", "reverted", "kept"]
    cells = tuner.trial_columns(view, shown, 140)
    rows = said(tuner.trial_row(view, one, cells, 140, chosen=i == 1) for i, one in enumerate(shown))
    golden([*said([tuner.trial_head(cells)]), *rows])
    assert rows[1].startswith("› ")


@pytest.mark.parametrize("width", [56, 72, 78, 100, 130, 196])
def test_a_row_keeps_how_a_trial_ended_and_what_it_did(width: int) -> None:
    view = look(tuned())
    shown = tuner.trials(view)
    cells = tuner.trial_columns(view, shown, width)
    for one in shown:
        line = "".join(piece for piece, _ in lay(tuner.trial_row(view, one, cells, width), width))
        assert one.word.symbol in line
        assert one.changes in line
    kept = "".join(piece for piece, _ in lay(tuner.trial_row(view, shown[-1], cells, width), width))
    assert "▲ +6.1 %" in kept
    assert ("● kept" in kept) is (width >= 78)


def test_a_trial_whole(golden: Golden) -> None:
    view = look(tuned())
    golden(said(tuner.trial_detail(view, tuner.trials(view)[2], 60)))


def test_without_a_state_the_tuners_commands_are_listed() -> None:
    (only,) = tuner.trials(look(tuned(None)))
    assert (only.changes, only.word.text, only.step) == ("grad_accum 2 → 4", "applied", 1190)
    assert only.why == look(tuned(None)).store.commands["t1"].why != ""


def test_the_knobs_as_the_tuner_sees_them(golden: Golden) -> None:
    view = look(tuned())
    rows = said(tuner_content.rows(view, tuner_content.ordered(view), 0, 80))
    names = [row.removeprefix("› ").split()[0] for row in rows]
    assert rows[0].startswith("› num_envs")
    assert names[:3] == ["num_envs", "grad_accum", "precision"], "those first that it may turn"
    golden(rows)


def test_a_knob_whose_product_with_a_frozen_one_is_kept_is_left_alone_with_it(golden: Golden) -> None:
    shown = {}
    for frozen in ("rollout_len", "lr"):
        there = tuned(replace(HOLDING, frozen=(frozen,)))
        pair = [
            replace(k, spec=replace(k.spec, keeps="grad_accum × rollout_len", effect="speed"))
            for name in ("grad_accum", "rollout_len")
            if (k := look(there).knob(name)) is not None
        ]
        there.update(run={"knobs": tuple(pair)})
        view = look(there)
        rows = said(tuner_content.rows(view, tuner_content.ordered(view), 0, 80))
        shown[f"{frozen} is frozen"] = next(row for row in rows if "grad_accum" in row)
    golden(sheet(shown))


def test_a_knob_that_costs_a_restart_is_never_turned() -> None:
    knob = look(tuned()).knob("grad_accum")
    assert knob is not None
    spec = replace(knob.spec, cost="restart")
    assert tuner.turns(replace(STATE, limits=Limits(learning=("*",))), replace(knob, spec=spec)) is False


def test_the_list_of_knobs_says_what_the_tuner_does_with_them() -> None:
    there = tuned()
    there.client.ns += 60 * SECOND
    rows = said(knobs.rows(look(there), 60, 0))
    assert [row.partition("tuner: ")[2] for row in rows] == ["", "next", "trial", "left alone", "", "", ""]
    stopped = said(knobs.rows(look(tuned(STOPPED)), 60, 0))
    assert "tuner: " not in " ".join(stopped), "it is off: nothing is in its hands"


def test_marks_of_the_tuner_are_told_from_those_of_people() -> None:
    assert {mark.sign for mark in runs.change_marks(look(tuned()))} == {"", "T"}
    assert {mark.x: mark.sign for mark in runs.change_marks(look(tuned()))}[START - 20 * SECOND] == "T"


def test_advice_that_cannot_be_followed_is_passed_over() -> None:
    unknown, above, there = (
        Advice(knob="micro_batch", value=4),
        Advice(knob="grad_accum", value=4096),
        Advice(knob="grad_accum", value=4),
    )
    for passed in (unknown, above, there, Advice(fact=fact("advice.without_a_knob", verdict="env-bound"))):
        found = advised(look(tuned(diagnosis=replace(DIAGNOSIS, advice=(passed, ADVICE[1])))))
        assert found is not None
        assert found[0] is ADVICE[1], passed
    assert advised(look(tuned(diagnosis=Diagnosis()))) is None
    assert advised(look(tuned(diagnosis=None))) is None
    lost = tuned()
    lost.client.link = Link("lost", 0.0)
    assert advised(look(lost)) is None, "what was advised a while ago is not advised now"


def test_the_direction_alone_is_advice_too() -> None:
    found = advised(look(tuned(diagnosis=replace(DIAGNOSIS, advice=(Advice(knob="lr", direction="up"),)))))
    assert found is not None
    assert tuner.advice(*found) == "lr up"


def test_the_help_page_knows_what_it_says() -> None:
    for term in ("left alone", "spent", "interrupted", "◷ trial", "‖ waiting"):
        assert term in [name for name, _ in help_content.NOTES["tuner"]]


def test_where_there_is_little_room_the_words_are_shorter_and_whole() -> None:
    view = look(tuned())
    listed = tuner_content.ordered(view)
    for width in (35, 37, 40):
        for line in tuner_content.rows(view, listed, 0, width):
            assert "…" not in "".join(piece for piece, _ in lay(line, width))


def test_a_first_trial_that_runs_is_not_denied() -> None:
    first, waiting = replace(STATE, tried=()), replace(STATE, tried=(), trial=None)
    assert not any("no trial yet" in line for line in said(tuner.short(look(tuned(first)), 80)))
    assert "no trial yet" in said(tuner.short(look(tuned(waiting)), 80))[-1]
