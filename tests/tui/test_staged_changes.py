"""Changes that are collected and sent together: what is staged, and what is said of it before and after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hoptui.protocol.messages import CommandRecord
from hoptui.tui.components import knobs
from hoptui.tui.run_control import Seen, Staged, Staging
from hoptui.tui.screens.knob_editor import content as panel
from hoptui.tui.snapshot import View
from tests import factories
from tests.golden import Golden, sheet

MakeScene = Callable[..., Any]
RUN = "3f2a9c10"


def look(scene: Any) -> View:
    store = scene.client.store
    return View(store, scene.client.link, store.run(RUN), store.vital(RUN), store.now(), 0.0, 0.0)


def said(line: Any) -> str:
    return "".join(span.text.ljust(span.width) for span in line)


def test_what_is_staged_stands_beside_its_knob(scene: MakeScene) -> None:
    view, staging = look(scene().live()), Staging()
    lr = view.knob("lr")
    assert lr is not None
    assert "staged" not in " ".join(map(said, knobs.rows(view, 60, 0)))
    staging.add(RUN, lr, 0.03, Seen.of(lr, 1))
    rows = [said(line) for line in knobs.rows(view, 60, 0, staging.of(RUN))]
    assert [row for row in rows if "staged" in row] == [row for row in rows if " lr " in row]
    assert any("3.0e-4  staged → 0.03  not sent" in row for row in rows)
    assert any(
        "staged → 0.03, not sent" in said(line)
        for line in knobs.detail(view, lr, 60, staging.find(RUN, "lr"))
    )


def test_one_change_a_knob_in_the_order_of_adding(scene: MakeScene) -> None:
    view, staging = look(scene().live()), Staging()
    accum, lr = view.knob("grad_accum"), view.knob("lr")
    assert accum is not None
    assert lr is not None
    staging.add(RUN, accum, 8, Seen.of(accum, 1))
    staging.add(RUN, lr, 1e-3, Seen.of(lr, 1))
    staging.add(RUN, accum, 16, Seen.of(accum, 1))
    staging.add("another", lr, 1e-4, Seen.of(lr, 1))
    assert [(one.spec.name, one.before, one.value, one.seen.version) for one in staging.of(RUN)] == [
        ("grad_accum", 4, 16, 3),
        ("lr", 3e-4, 1e-3, 0),
    ]
    staging.add(RUN, accum, 4, Seen.of(accum, 1))
    assert [one.spec.name for one in staging.of(RUN)] == ["lr"], "what is in effect already is no change"
    staging.clear(RUN)
    assert staging.of(RUN) == []
    assert len(staging.of("another")) == 1


def test_a_change_that_was_overtaken_is_seen_and_may_be_kept(scene: MakeScene, golden: Golden) -> None:
    there = scene().live()
    staging = Staging()
    accum = look(there).knob("grad_accum")
    assert accum is not None
    staging.add(RUN, accum, 8, Seen.of(accum, 1))
    (one,) = staging.of(RUN)
    assert one.overtaken(look(there).run) is None
    theirs = msgspec.structs.replace(accum, value=16, version=4, by="bo (pid 5)")
    there.update(run={"knobs": (theirs,)})
    assert one.overtaken(look(there).run) == theirs
    told = said(panel.staged_rows(look(there), [one], {}, 90, 0)[0])
    golden([told.rstrip()])
    staging.keep(RUN, theirs, 1)
    (kept,) = staging.of(RUN)
    assert (kept.before, kept.value, kept.seen) == (16, 8, Seen(1, 4, 16))
    assert kept.overtaken(look(there).run) is None


@pytest.mark.parametrize(
    ("epoch", "version", "value", "overtaken"),
    [
        (1, 3, 4, False),
        (1, 4, 4, True),  # set to something else and back: somebody is at it
        (2, 3, 16, True),
        (2, 0, 4, False),
    ],
)
def test_across_a_restart_the_values_tell(
    scene: MakeScene, epoch: int, version: int, value: int, overtaken: bool
) -> None:
    there = scene().live()
    accum = there.run.knobs[2]
    now = msgspec.structs.replace(accum, version=version, value=value)
    there.update(run={"knobs": (now,), "epoch": epoch})
    assert Staged(accum.spec, 8, Seen.of(accum, 1)).overtaken(look(there).run) == (now if overtaken else None)


def test_two_knobs_of_one_invariant_are_warned_of(scene: MakeScene, golden: Golden) -> None:
    view, staging = look(scene().live()), Staging()
    accum = view.knob("grad_accum")
    assert accum is not None
    staging.add(RUN, accum, 8, Seen.of(accum, 1))
    shown = {"one knob": said(panel.staged_advice(view, staging.of(RUN)))}
    twin = msgspec.structs.replace(accum, spec=msgspec.structs.replace(accum.spec, name="twin"))
    staging.add(RUN, twin, 8, Seen.of(twin, 1))
    shown["its twin"] = said(panel.staged_advice(view, staging.of(RUN)))
    golden(sheet(shown))


def test_two_knobs_that_one_size_follows_from_are_not_warned_of(scene: MakeScene, golden: Golden) -> None:
    view, staging = look(scene().live()), Staging()
    for name in ("num_envs", "rollout_len"):
        knob = view.knob(name)
        assert knob is not None
        spec = msgspec.structs.replace(knob.spec, keeps="rollout = num_envs × rollout_len")
        staging.add(RUN, msgspec.structs.replace(knob, spec=spec), 128, Seen.of(knob, 1))
    assert len(staging.of(RUN)) == 2
    golden([said(panel.staged_advice(view, staging.of(RUN)))])


def record(stage: Any, step: int | None = 5) -> CommandRecord:
    return factories.record("x", RUN, stage=stage, step=step)


def test_the_fate_of_all_is_told(golden: Golden) -> None:
    shown = {}
    for records in (
        [record("sent"), record("scheduled")],
        [record("applied"), record("accepted")],
        [record("applied"), record("applied")],
        [record("applied"), record("applied", 6)],
        [record("applied"), record("rejected")],
        [record("failed"), record("expired")],
    ):
        stages = ", ".join(f"{one.stage} at {one.step}" for one in records)
        shown[stages] = said(panel.staged_summary(records, 2))
    golden(sheet(shown))
