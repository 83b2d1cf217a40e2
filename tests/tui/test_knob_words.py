"""The description of a knob: whole in the editor, in as many lines as there is room for on the run screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hoptui.domain.knobs import KnobState
from hoptui.tui.components import knobs
from hoptui.tui.screens.knob_editor import content
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line
from tests.tui.conftest import KNOBS, RUN

LONG = "pieces that a minibatch is computed in, more where memory runs out; 0 chooses the least that fits"
ACCUM = msgspec.structs.replace(KNOBS[2], spec=msgspec.structs.replace(KNOBS[2].spec, description=LONG))


def look(there: Any) -> View:
    store = there.client.store
    return View(store, there.client.link, store.run(RUN), store.vital(RUN), store.now(), 1_780_000_000.0, 0.0)


def said(lines: list[Line]) -> list[str]:
    return ["".join(span.text for span in line) for line in lines]


@pytest.fixture
def view(scene: Callable[..., Any]) -> View:
    return look(scene(gpus=1).live(history=False))


def test_the_editor_wraps_it_and_drops_it_where_there_is_no_room(view: View) -> None:
    wide = said(content.about(view, ACCUM, 8, 72, 20))
    assert " ".join(wide[:2]) == LONG
    assert max(map(len, wide[:2])) <= 72
    assert wide[2] == ""
    assert said(content.about(view, ACCUM, 8, 72, len(wide) - 1)) == wide[3:]
    undescribed = said(content.about(view, KNOBS[3], 1e-3, 72, 20))
    assert undescribed[0].startswith("in effect")


@pytest.mark.parametrize(("keeps", "lines"), [("", 2), ("minibatch_size", 1)])
def test_the_run_screen_gives_it_the_lines_that_nothing_else_needs(
    scene: Callable[..., Any], keeps: str, lines: int
) -> None:
    there = scene().live(history=False)
    there.record(ago_s=60.0, knob="grad_accum", before=2, wanted=4, effective=4, step=900)
    knob: KnobState = msgspec.structs.replace(ACCUM, spec=msgspec.structs.replace(ACCUM.spec, keeps=keeps))
    told = said(knobs.detail(look(there), knob, 56))
    assert len(told) == 8
    assert told[1 + lines].startswith("bounds")
    start = " ".join(told[1 : 1 + lines])
    assert LONG.startswith(start.removesuffix(" …"))
    assert start.endswith("…") == (lines == 1)
    assert told[-1].startswith("last")
