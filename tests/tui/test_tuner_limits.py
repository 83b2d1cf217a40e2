"""The limits of the tuner as a form: its values are turned within what can be, and nothing is allowed by
accident."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hoptui.domain.tuning import Limits
from hoptui.tui.screens.tuner.content import LimitsDraft
from tests import factories

KNOBS = (
    factories.knob("micro_batch", 8, effect="speed"),
    factories.knob("lr", 1e-3, description="learning rate"),
    factories.knob("num_envs", 8, cost="shape", description="environments"),
    factories.knob("width", 64, cost="restart"),
)


def form(limits: Limits | None = None, *power: float | None) -> LimitsDraft:
    return LimitsDraft(limits or Limits(), KNOBS, power)


def turned(draft: LimitsDraft, name: str, by: int) -> str:
    """Turn a line, and what it says then."""
    names = [line.name for line in draft.lines()]
    draft.turn(names.index(name), by)
    return draft.lines()[names.index(name)].value


def test_only_what_could_be_turned_is_asked_about() -> None:
    names = [line.name for line in form().lines()]
    assert names == ["memory", "budget", "objective", "power", "dry run", "may change num_envs"]


def test_what_was_allowed_by_name_is_told_whatever_it_is() -> None:
    assert "may change lr" in [line.name for line in form(Limits(learning=("lr",))).lines()]


def test_nothing_that_learns_is_allowed_unless_it_is_asked_for() -> None:
    draft = form()
    assert draft.allowed() == []
    assert turned(draft, "may change num_envs", 1) == "yes"
    assert (draft.limits.learning, [k.spec.name for k in draft.allowed()]) == (("num_envs",), ["num_envs"])
    assert turned(draft, "may change num_envs", 1) == "no"
    assert draft.limits == Limits()


def test_every_knob_is_told_one_by_one() -> None:
    draft = form(Limits(learning=("*",)))
    assert draft.limits.learning == ("num_envs",)
    assert turned(draft, "may change num_envs", -1) == "no"


@pytest.mark.parametrize("name", ["memory", "budget", "power"])
@pytest.mark.parametrize("by", [1, -1])
def test_a_value_goes_to_its_end_and_stays(name: str, by: int) -> None:
    draft = form(None, 700.0)
    seen = [turned(draft, name, by) for _ in range(20)]
    assert seen[-1] == seen[-2]
    limits = draft.limits
    assert 0.5 <= limits.memory < 1.0
    assert 0.0 < limits.budget <= 0.2
    assert limits.power_w is None or 350.0 <= limits.power_w < 700.0


def test_values_from_the_command_line_find_their_neighbours() -> None:
    draft = form(Limits(memory=0.87, budget=0.007))
    assert draft.lines()[0].value == "87 %"
    assert turned(draft, "memory", 1) == "90 %"
    assert turned(form(Limits(memory=0.87)), "memory", -1) == "85 %"
    assert turned(draft, "budget", -1) == "0.5 % of the time: 18 s an hour"


def test_power_is_a_share_of_the_weakest_gpu_and_may_be_any() -> None:
    draft = form(None, 700.0, None, 350.0)
    assert draft.lines()[3].value == "any"
    assert turned(draft, "power", 1) == "any"
    assert turned(draft, "power", -1) == "330 W"
    assert turned(draft, "power", 1) == "any"
    assert turned(form(), "power", -1) == "660 W", "the GPU is not known: as if it were a usual one"


def test_objective_and_dry_run_go_round() -> None:
    draft = form()
    assert turned(draft, "objective", 1) == "energy"
    assert turned(draft, "objective", 1) == "throughput"
    assert turned(draft, "dry run", -1) == "yes"
    assert draft.limits == replace(Limits(), dry=True)
