"""A loss that becomes NaN or infinite is an event, at once and once."""

from __future__ import annotations

import json
import math

import pytest

from hoptui.daemon.state.bad_numbers import MOST_WATCHED, QUIET_S, BadNumber, BadNumbers
from hoptui.domain.columns import LOGGED_NAN, Columns, pack
from hoptui.domain.facts import Fact, fact
from tests.conftest import TestNode, until
from tests.daemon.quiet_node import RUN, SECOND, QuietNode

NAN = LOGGED_NAN


def rows(*values: float | None, name: str = "loss", first: int = 0) -> Columns:
    """Rows of a metric, one a second; None where it was not logged."""
    return pack(
        "run/r",
        [
            ((first + i + 1) * SECOND, first + i, {"other": 1.0} | ({} if v is None else {name: v}))
            for i, v in enumerate(values)
        ],
    )


def told(found: list[BadNumber]) -> list[tuple[str, int]]:
    return [(each.what.code, each.step) for each in found]


@pytest.mark.parametrize(("value", "spelled"), [(NAN, "NaN"), (math.inf, "inf"), (-math.inf, "-inf")])
@pytest.mark.parametrize("name", ["loss", "train/Loss", "grad_norm", "val_nll"])
def test_the_first_bad_value_is_told_with_its_iteration(name: str, value: float, spelled: str) -> None:
    watch = BadNumbers()
    assert watch.add(rows(0.5, 0.4, name=name)) == []
    assert watch.add(rows(0.3, value, value, name=name, first=2)) == [
        BadNumber(fact("number.bad", metric=name, value=spelled), 3, worse=True)
    ]
    assert watch.since == {name: 3}
    assert watch.add(rows(value, name=name, first=5)) == []


def test_a_metric_that_may_be_nothing_is_not_watched() -> None:
    assert BadNumbers().add(rows(NAN, name="return_mean")) == []


def test_a_value_that_was_not_logged_is_not_a_bad_one() -> None:
    watch = BadNumbers()
    assert watch.add(rows(0.5, None, None)) == []
    assert told(watch.add(rows(NAN, None, first=3))) == [("number.bad", 3)]
    assert watch.add(rows(None, None, first=5)) == []
    assert watch.since == {"loss": 3}


def test_a_loss_that_recovers_is_told() -> None:
    watch = BadNumbers()
    watch.add(rows(NAN))
    assert watch.add(rows(NAN, 0.5, first=1)) == [], "of the same rows"
    found = watch.add(rows(0.4, first=3))
    assert found == [BadNumber(fact("number.good", metric="loss", since=0), 3, worse=False)]
    assert watch.since == {}


def test_a_loss_that_flickers_is_told_once_a_minute() -> None:
    watch, bad, good = BadNumbers(), 0, 0
    for second in range(0, 240, 2):
        for found in (watch.add(rows(NAN, first=second)), watch.add(rows(0.5, first=second + 1))):
            bad += sum(each.worse for each in found)
            good += sum(not each.worse for each in found)
    assert bad == good == 240 / QUIET_S


def test_no_more_metrics_than_a_screen_shows_are_watched() -> None:
    watch = BadNumbers()
    for number in range(2 * MOST_WATCHED):
        watch.add(rows(NAN, name=f"loss_{number}"))
    assert len(watch.since) == MOST_WATCHED


def test_it_is_an_event_of_the_run(quiet: QuietNode) -> None:
    step = quiet.run.last_step + 1
    quiet.now += SECOND
    quiet.node.rows((pack(f"run/{RUN}", [(quiet.now, step, {"loss": NAN})]),))
    quiet.rows(100.0)
    (event,) = [each for each in quiet.node.events if each.kind == "number"]
    assert Fact(event.code, event.fields) == fact("number.bad", metric="loss", value="NaN")
    assert (event.run, event.step, event.level) == (RUN, step, "warning")


SCRIPT = """
import math, time, hoptui
run = hoptui.connect("toy")
for step in run.iterations():
    time.sleep(0.02)
    run.log(loss=math.nan if step >= 10 else 0.5)
"""


def test_a_user_sees_it_in_status(node: TestNode) -> None:
    node.start(SCRIPT)
    viewer = node.viewer()
    run = viewer.run()
    event = until(
        lambda: next((each for each in viewer.fetch().events if each.kind == "number"), None),
        what="the event",
    )
    assert (event.run, event.step) == (run.run, 10)
    status = json.loads(node.hoptui("status", "toy", "--json").stdout)
    assert [each["code"] for each in status["events"] if each["kind"] == "number"] == ["number.bad"]
    assert "loss is NaN" in node.hoptui("status", "toy").stdout
