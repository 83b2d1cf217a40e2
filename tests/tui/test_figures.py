"""Figures that several panels share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from hoptui.cli.support.recordings import EXAMPLES
from hoptui.client.client import Link
from hoptui.domain.columns import LOGGED_NAN, pack
from hoptui.model.recorded.store import RecordedStore
from hoptui.model.store import MOST_NAMES
from hoptui.presentation.numbers import UNKNOWN
from hoptui.recording import Recording
from hoptui.tui.components import runs
from hoptui.tui.components.figures import DEFINED_S, headline, recent
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


def test_a_metric_that_is_not_defined_yet_is_unknown_and_later_has_its_last_value(scene: MakeScene) -> None:
    """No episode has ended, or none in the newest iterations. That is no NaN of the training."""
    there = scene().live(history=False)
    store, first = there.client.store, there.client.ns - 20 * SECOND

    def shown(*rows: tuple[float, float]) -> tuple[str, str]:
        """The first words, and the value of a headline, after more rows of a second and a return."""
        log = [(first + int(s * SECOND), int(10 * s), {"episode_return": v, "loss": 2.0}) for s, v in rows]
        there.tell(columns=(pack(f"run/{RUN}", log),))
        run = structs.replace(store.run(RUN), headline="episode_return")
        link = there.client.link
        view = View(store, link, run, store.vital(RUN), there.client.ns, 1_780_000_000.0, 100.0)
        value = headline(view).value
        return (
            text_of(runs.learning_lines(view, "episode_return", 100)[0]),
            UNKNOWN if value is None else f"{value:g}",
        )

    assert shown((1, LOGGED_NAN), (2, LOGGED_NAN)) == ("– episode return", UNKNOWN)
    assert shown((3, 20.0), (3.5, 30.0)) == ("30.0 episode return", "25")
    assert shown((4, LOGGED_NAN)) == ("30.0 episode return", "25")
    assert shown((3.6 + DEFINED_S, LOGGED_NAN)) == ("– episode return", UNKNOWN)
    assert shown((15, math.inf)) == ("inf episode return", "inf")


def test_the_example_shows_no_nan_before_an_episode_has_ended() -> None:
    with Recording.open(EXAMPLES / "ppo-h200.hoptui", still=True) as recording:
        store = RecordedStore(recording)
        store.seek(store.span[0] + 4 * SECOND)
        view = View(
            store,
            Link("live", 0.0),
            store.run(store.run_id),
            store.vital(store.run_id),
            store.now(),
            0.0,
            0.0,
        )
        assert math.isnan(store.latest(view.source)["episode_return"])
        assert text_of(runs.learning_lines(view, "episode_return", 100)[0]).startswith("– episode return")
