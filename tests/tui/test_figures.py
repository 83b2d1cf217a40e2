"""Figures that several panels share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from hoptui.domain.columns import LOGGED_NAN, pack
from hoptui.model.store import MOST_NAMES
from hoptui.tui.components import runs
from hoptui.tui.components.figures import headline, recent
from hoptui.tui.snapshot import View

MakeScene = Callable[..., Any]
RUN = "3f2a9c10"
SECOND = 1_000_000_000


def test_a_rate_is_all_work_over_all_time(scene: MakeScene) -> None:
    """Seven iterations of 10 ms and one of 330 ms that waits for data: 20 a second, and most of them take a
    hundredth."""
    there = scene().live(history=False)
    rows, t = [], there.client.ns - 4 * SECOND
    for i in range(80):
        seconds = 0.33 if i % 8 == 7 else 0.01
        t += int(seconds * SECOND)
        rows.append((t, i, {"env_steps_per_s": 50 / seconds, "iteration_s": seconds}))
    there.tell(columns=(pack(f"run/{RUN}", rows),))
    store = there.client.store
    view = View(
        store, there.client.link, store.run(RUN), store.vital(RUN), there.client.ns, 1_780_000_000.0, 100.0
    )
    told = headline(view)
    assert told.name == "env_steps_per_s"
    assert told.value == pytest.approx(1000.0, rel=0.02)
    assert recent(view, f"run/{RUN}", "nothing", 2.0) is None


def text_of(line: Any) -> str:
    return "".join(span.text for span in line)


def test_learning_shows_a_nan_that_was_logged_and_what_was_lost(scene: MakeScene) -> None:
    there = scene().live(history=False)
    known = dict.fromkeys((f"m{i}" for i in range(MOST_NAMES + 5)), 1.0)
    there.tell(columns=(pack(f"run/{RUN}", [(there.client.ns, 1, {"loss": LOGGED_NAN} | known)]),))
    store = there.client.store
    vital = structs.replace(store.vital(RUN), bad_values=3)
    view = View(store, there.client.link, store.run(RUN), vital, there.client.ns, 1_780_000_000.0, 100.0)
    head, others = map(text_of, runs.learning_lines(view, "loss", 100))
    assert head.startswith("NaN loss")
    assert others.startswith(f"3 logged values were no numbers  {store.left_out(f'run/{RUN}')} more metrics:")
    assert store.left_out(f"run/{RUN}") > 5
