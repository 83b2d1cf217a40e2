"""What is said of the tuner: in a few lines, on its own screen, beside the knobs, and on the charts."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from hoptui.client.client import Link
from hoptui.domain.tuning import Advice, Diagnosis, Limits, TunerState
from hoptui.tui.components import knobs, throughput, trials, tuner
from hoptui.tui.run_control import advised
from hoptui.tui.screens.help import content as help_content
from hoptui.tui.screens.tuner import content as tuner_content
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, lay, width_of
from tests.tui.conftest import RUN, SECOND, START, Scene
from tests.tui.tuned_run import ADVICE, DIAGNOSIS, HOLDING, STATE, STOPPED, TRIED, tuned


def look(there: Scene) -> View:
    return there.app().view(RUN)


def said(lines: Iterable[Line]) -> list[str]:
    return ["".join(span.text.ljust(span.width) for span in line).rstrip() for line in lines]


def test_a_trial_in_three_lines() -> None:
    assert said(tuner.short(look(tuned()), 80)) == [
        "◷ trial  trying grad_accum 8: half of the memory is unused",
        "grad_accum 4 → 8  23 iterations, 20 s  so far ▲ +4.1 % ± 2.0",
        "✕ failed precision bf16 → fp32",
    ]


def test_a_sentence_with_a_figure_at_its_end_is_not_cut() -> None:
    why = "the next trial may cost more than the budget has left: 41 s"
    waiting = replace(STATE, stand="waiting", text=why, trial=None)
    assert said(tuner.short(look(tuned(waiting)), 56)) == [
        "‖ waiting  the next trial may cost more than the budget",
        "           has left: 41 s",
        "✕ failed precision bf16 → fp32",
    ]
    assert said(tuner.short(look(tuned(waiting)), 80))[:2] == [
        f"‖ waiting  {why}",
        "next rollout_len 64 → 128",
    ]


@pytest.mark.parametrize("width", [20, 30, 40, 56, 80])
def test_no_figure_of_a_trial_is_cut(width: int) -> None:
    assert STATE.trial is not None
    line = tuner.trial_line(STATE.trial, width)
    assert width_of(line) <= width
    assert said([line])[0].startswith("grad_accum 4 → 8")
    kept = tuner.ended(TRIED[0], width)
    assert width_of(kept) <= max(width, len("● kept grad_accum 2 → 4"))


def test_what_is_next_and_that_nothing_is() -> None:
    waiting = replace(STATE, stand="waiting", text="", trial=None, tried=())
    assert said(tuner.short(look(tuned(waiting)), 60)) == [
        "‖ waiting  it cannot go on now",
        "next rollout_len 64 → 128",
        "nothing was tried yet",
    ]
    assert said(tuner.short(look(tuned(HOLDING)), 60))[:2] == [
        "● holding  nothing better was found in 9 trials",
        "1 kept, 1 reverted, 1 failed",
    ]
    assert said(tuner.short(look(tuned(STOPPED)), 60)) == [
        "◌ off  stopped by ana",
        "✕ failed precision bf16 → fp32",
    ]
    assert said(tuner.short(look(tuned(None)), 60)) == [
        "◌ off  it turns nothing on this run; t leads to its start"
    ]


@pytest.mark.parametrize(
    ("state", "seen"), [(None, False), (STATE, True), (STOPPED, True), (TunerState(), False)]
)
def test_the_run_screen_shows_it_once_there_is_something(state: TunerState | None, seen: bool) -> None:
    assert tuner.to_be_seen(look(tuned(state))) is seen


def test_all_there_is_to_know() -> None:
    told = said(tuner.facts(look(tuned()), 100))
    assert told == [
        "tuner    ◷ trial  trying grad_accum 8: half of the memory is unused",
        "trial    grad_accum 4 → 8  23 iterations, 20 s  so far ▲ +4.1 % ± 2.0",
        "why      larger pieces, fewer launches",
        "next     rollout_len 64 → 128",
        "limits   memory up to 92 % · 2 % of the time · for throughput · also num_envs",
        told[5],
        "limit    launch-bound: kernels are too small, or launched too slowly, to fill the GPU, 90 % sure",
        "         SM active 12 % · busy 99 %",
        "advice   grad_accum 4 → 2 (takes effect at once)  o does it",
        "advice   num_envs 2 048 → 4 096 (learning)",
    ]
    assert told[5] == "spent    ━━────────────  13 % of the budget: 10 s of 1 m 12 s (2 % of the first hour)"
    wider, narrower = (said(tuner.facts(look(tuned()), width))[5] for width in (120, 80))
    assert wider.startswith(f"{told[5]}   since ")
    assert wider.endswith(" for ana")
    assert narrower == "spent    ━━────────────  13 %: 10 s of 1 m 12 s (2 % of the first hour)"
    bare = said(tuner.facts(look(tuned(diagnosis=None)), 100))
    assert bare[-1].startswith("limit    ▸ ")


def test_more_than_the_budget_is_a_warning_and_no_budget_no_bar() -> None:
    old = replace(STATE, lived_s=7200.0)
    assert (
        "40 % of the budget: 58 s of 2 m 24 s (2 % of the time)  "
        in said(tuner.facts(look(tuned(old)), 100))[5]
    )
    for state, inks in ((replace(old, spent=0.03), True), (replace(STATE, spent=0.03), False)):
        line = tuner.facts(look(tuned(state)), 100)[5]
        assert ("warn" in {span.ink for span in line}) is inks, "a young one may use more of its time"
    none = tuner.facts(look(tuned(replace(STATE, limits=Limits(budget=0.0)))), 100)[5]
    assert "━" not in said([none])[0]


def test_a_pause_costs_nothing_of_the_budget() -> None:
    paused = replace(STATE, spent=20 / 300, lived_s=300.0, started=STATE.started - 3600 * SECOND)
    line = tuner.facts(look(tuned(paused)), 100)[5]
    assert "28 % of the budget: 20 s of 1 m 12 s (2 % of the first hour)" in said([line])[0]
    assert "warn" not in {span.ink for span in line}


def test_trials_newest_first_with_what_they_did() -> None:
    view = look(tuned())
    shown = trials.listed(view)
    assert [one.word.text for one in shown] == ["running", "failed", "reverted", "kept"]
    cells = trials.columns(view, shown, 140)
    rows = said(trials.row(view, one, cells, 140, chosen=i == 1) for i, one in enumerate(shown))
    assert said([trials.head(cells)])[0].split() == [
        "time",
        "result",
        "changes",
        "at",
        "took",
        "throughput",
        "effect",
    ]
    told = " ".join(rows[0].split()[1:])
    assert told == "◷ running grad_accum 4 → 8 1 190 20 s 480 k → 500 k env steps/s ▲ +4.1 % ± 2.0"
    assert rows[1].startswith("› ")
    assert " ".join(rows[1].split()).endswith("fp32 1 010 3 s not measured")
    assert "↶ reverted" in rows[2]
    assert "no detectable change (± 1.8 %)" in rows[2]


@pytest.mark.parametrize("width", [56, 72, 78, 100, 130, 196])
def test_a_row_keeps_how_a_trial_ended_and_what_it_did(width: int) -> None:
    view = look(tuned())
    shown = trials.listed(view)
    cells = trials.columns(view, shown, width)
    for one in shown:
        line = "".join(piece for piece, _ in lay(trials.row(view, one, cells, width), width))
        assert one.word.symbol in line
        assert one.changes in line
    kept = "".join(piece for piece, _ in lay(trials.row(view, shown[-1], cells, width), width))
    assert "▲ +6.1 %" in kept
    assert ("● kept" in kept) is (width >= 78)


def test_a_trial_whole() -> None:
    view = look(tuned())
    told = said(trials.detail(view, trials.listed(view)[2], 60))[1:]
    assert told[0].startswith("↶ reverted  rollout_len 64 → 128, grad_accum 4 → 2  ")
    assert told[1:] == [
        "480 k → 480 k env steps/s  no detectable change (± 1.8 %)  (30 iterations)",
        "no gain beyond 2 %: the smaller setting is preferred",
    ]


def test_without_a_state_the_tuners_commands_are_listed() -> None:
    (only,) = trials.listed(look(tuned(None)))
    assert (only.changes, only.word.text, only.step) == ("grad_accum 2 → 4", "applied", 1190)
    assert only.why == "half of the memory is unused"


def test_the_knobs_as_the_tuner_sees_them() -> None:
    view = look(tuned())
    rows = said(tuner_content.rows(view, tuner_content.ordered(view), 0, 80))
    stands = {row.removeprefix("› ").split()[0]: row.split("  ")[-1].strip() for row in rows}
    assert rows[0].startswith("› num_envs")
    assert list(stands)[:3] == ["num_envs", "grad_accum", "precision"], "those first that it may turn"
    assert stands == {
        "num_envs": "may be turned",
        "grad_accum": "◷ trial",
        "precision": "may be turned",
        "rollout_len": "◷ next",
        "lr": "✕ frozen",
        "clip_range": "left alone: changes what is learned",
        "entropy_coef": "left alone: changes what is learned",
    }


@pytest.mark.parametrize(
    ("frozen", "told"), [("rollout_len", "left alone with rollout_len"), ("lr", "may be turned")]
)
def test_a_knob_whose_product_with_a_frozen_one_is_kept_is_left_alone_with_it(frozen: str, told: str) -> None:
    there = tuned(replace(HOLDING, frozen=(frozen,)))
    pair = [
        replace(k, spec=replace(k.spec, keeps="grad_accum × rollout_len", effect="speed"))
        for name in ("grad_accum", "rollout_len")
        if (k := look(there).knob(name)) is not None
    ]
    there.update(run={"knobs": tuple(pair)})
    view = look(there)
    rows = said(tuner_content.rows(view, tuner_content.ordered(view), 0, 80))
    assert next(row for row in rows if "grad_accum" in row).endswith(told)


def test_a_knob_that_costs_a_restart_is_never_turned() -> None:
    knob = look(tuned()).knob("grad_accum")
    assert knob is not None
    spec = replace(knob.spec, cost="restart")
    assert tuner.turns(replace(STATE, limits=Limits(learning=("*",))), replace(knob, spec=spec)) is False


def test_the_list_of_knobs_says_what_the_tuner_does_with_them() -> None:
    there = tuned()
    there.client.ns += 60 * SECOND
    rows = said(knobs.rows(look(there), 60, 0))
    assert [row.partition("tuner: ")[2] for row in rows] == ["", "next", "trial", "frozen", "", "", ""]
    stopped = said(knobs.rows(look(tuned(STOPPED)), 60, 0))
    assert "tuner: " not in " ".join(stopped), "it is off: nothing is in its hands"


def test_marks_of_the_tuner_are_told_from_those_of_people() -> None:
    assert {mark.sign for mark in throughput.marks(look(tuned()))} == {"", "T"}
    assert {mark.x: mark.sign for mark in throughput.marks(look(tuned()))}[START - 20 * SECOND] == "T"


def test_advice_that_cannot_be_followed_is_passed_over() -> None:
    unknown, above, there = (
        Advice(knob="micro_batch", value=4),
        Advice(knob="grad_accum", value=4096),
        Advice(knob="grad_accum", value=4),
    )
    for passed in (unknown, above, there, Advice(text="nothing helps")):
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
    for term in ("frozen", "spent", "interrupted", "◷ trial", "‖ waiting"):
        assert term in [name for name, _ in help_content.NOTES["tuner"]]


def test_where_there_is_little_room_the_words_are_shorter_and_whole() -> None:
    view = look(tuned())
    listed = tuner_content.ordered(view)
    for width in (35, 37, 40):
        for line in tuner_content.rows(view, listed, 0, width):
            assert "…" not in "".join(piece for piece, _ in lay(line, width))
