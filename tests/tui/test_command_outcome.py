"""What is said of a change in little room: whole parts are left out, and no number is ever cut."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hoptui.domain.facts import fact
from hoptui.domain.tuning import Measured
from hoptui.presentation import vocabulary
from hoptui.protocol.messages import Event
from hoptui.tui.components import events, knobs
from hoptui.tui.screens.history import content
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, lay
from tests.golden import Golden, sheet
from tests.tui.conftest import START, WALL

MakeScene = Callable[..., Any]
RUN = "3f2a9c10"
GAIN = Measured(
    metric="env_steps_per_s", gain=1.108, interval=0.427, detectable=True, iterations=15, settled=True
)
NUMBER = re.compile(r"\d+(?: \d{3})*(?:[.:]\d+)*")


def look(there: Any) -> View:
    store = there.client.store
    return View(store, there.client.link, store.run(RUN), store.vital(RUN), store.now(), 1_780_000_000.0, 0.0)


def said(line: Line, width: int) -> str:
    return "".join(piece for piece, _ in lay(line, width)).rstrip()


@pytest.fixture
def there(scene: MakeScene) -> Any:
    found = scene().live(history=False)
    found.record(
        id="a",
        ago_s=12.0,
        knob="num_envs",
        before=2048,
        wanted=16384,
        effective=16384,
        step=1498,
        measured=GAIN,
    )
    return found


def test_parts_give_way_in_the_order_of_what_they_are_worth(there: Any, golden: Golden) -> None:
    record = there.client.store.commands["a"]
    shown = {f"{w} columns": said(events.course(record, w), w) for w in (40, 30, 24, 14, 12, 4)}
    golden(sheet(shown))


@pytest.mark.parametrize("width", range(24, 130, 3))
def test_no_width_shows_a_part_of_a_number(there: Any, width: int) -> None:
    there.record(
        id="b", ago_s=2.0, knob="rollout_len", before=64, wanted=1024, stage="scheduled", step=1_234_567
    )
    view = look(there)
    knob = view.knob("num_envs")
    assert knob is not None

    def all_lines(width: int) -> list[str]:
        lines = [*events.lines(view, 9, width), *knobs.rows(view, width, 0), *knobs.detail(view, knob, width)]
        return [said(line, width) for line in (*lines, events.last_change(view, width))]

    whole = set(NUMBER.findall(" ".join(all_lines(400))))
    for line in all_lines(width):
        assert set(NUMBER.findall(line)) <= whole, line


@pytest.mark.parametrize(
    ("note", "which"), [("", "the last change"), ("together with lr", "the last changes")]
)
def test_a_knob_with_a_long_name_is_told_as_the_last_change(there: Any, note: str, which: str) -> None:
    name = "exploration_fraction_of_all_steps"
    measured = msgspec.structs.replace(GAIN, note=note)
    there.record(id="n", ago_s=1.0, knob=name, before=1, wanted=2, effective=2, measured=measured)
    assert said(events.last_change(look(there), 44), 44) == f"▲ +110.8 % ± 42.7 since {which}"
    assert said(events.last_change(look(there), 30), 30) == "▲ +110.8 % ± 42.7"


def test_the_load_of_other_processes_is_no_other_change(there: Any) -> None:
    load = fact("effect.load_changed", before=0.2, after=0.6)
    knobs = fact("effect.shared", knobs=["lr"])
    for ago_s, name, remarks, which in ((2.0, "n", (load,), ""), (1.0, "m", (load, knobs), " and others")):
        measured = msgspec.structs.replace(GAIN, remarks=remarks)
        there.record(id=name, ago_s=ago_s, knob=name, before=1, wanted=2, effective=2, measured=measured)
        assert said(events.last_change(look(there), 48), 48).endswith(f" since {name}{which}")


def test_who_gave_a_command_is_left_out_before_what_it_did(there: Any, golden: Golden) -> None:
    view = look(there)
    shown = {f"{w} columns": said(events.lines(view, 1, w)[0], w) for w in (90, 72, 58, 48, 46)}
    golden(sheet(shown))


def test_bounds_without_room_leave_out_the_lower_one(there: Any) -> None:
    rows = {width: said(knobs.rows(look(there), width, -1)[1], width) for width in (51, 49, 47)}
    assert [row.partition("shape")[2].strip() for row in rows.values()] == ["8 … 1 024", "≤ 1 024", ""]


def test_an_event_is_told_to_its_end_where_there_are_lines_for_it(there: Any, golden: Golden) -> None:
    text = "throughput -35% since iteration 312, and no knob was turned: the host is busier (CPUs 56% → 94%)"
    there.tell(
        events=(
            Event(seq=9, t=START, wall=WALL, kind="shift", level="warning", text=text, run=RUN, step=387),
        )
    )

    def told(most: int, width: int) -> list[str]:
        return [said(line, width)[10:].rstrip() for line in events.lines(look(there), most, width)]

    assert told(3, 140)[0] == f"⚠ {text}  iteration 387"
    assert told(3, 116)[0] == f"⚠ {text}", "the iteration goes first"
    assert told(3, 60)[0].endswith("…"), "no room for more lines"
    shown = {"an event, 60 columns": told(9, 60)}
    assert len(told(6, 60)) <= 6
    reason = "restarting from /tmp/trainer-restart/ppo-000009107.ckpt"
    there.record(
        id="r",
        ago_s=-1.0,
        knob="hidden",
        before=64,
        wanted=32,
        stage="scheduled",
        step=1_009_107,
        reason=reason,
    )
    shown["a restart, 64 columns"] = told(9, 64)
    assert told(3, 60)[0].endswith("…")
    together = msgspec.structs.replace(GAIN, note="together with lr and grad_accum")
    there.record(
        id="t", ago_s=-2.0, knob="num_envs", before=256, wanted=128, effective=128, measured=together
    )
    shown["a shared effect, 60 columns"] = told(9, 60)
    golden(sheet(shown))


@pytest.mark.parametrize("reason", ["", "exception"], ids=["killed", "exception"])
def test_what_was_being_measured_when_the_run_ended_is_not_measured_any_more(
    there: Any, reason: str, golden: Golden
) -> None:
    def told() -> str:
        shown = [*events.lines(look(there), 1, 120), *knobs.rows(look(there), 120, 0)]
        return "\n".join(said(line, 120) for line in shown)

    note = "measuring: 7 of 15 iterations"
    begun = Measured(metric="env_steps_per_s", iterations=7, note=note)
    there.record(
        id="m", ago_s=1.0, knob="lr", before=1e-3, wanted=3e-4, effective=3e-4, step=1500, measured=begun
    )
    assert told().count(note) == 2
    there.update(vital={"state": "exited"}, run={"exit_reason": reason})
    command = look(there).command("m")
    assert command is not None
    effect = vocabulary.effect_text(command.measured)
    golden([effect])
    assert "measuring" not in told()
    assert told().count(effect) == 2
    story = [said(line, 80) for line in content.story(look(there), command, 80, {})]
    assert f"effect      {effect}" in story
    assert look(there).command("a") == there.client.store.commands["a"], "what was measured stays"
    assert look(there).command("gone") is None
