"""Figures that several panels share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hoptui.domain.columns import pack
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
