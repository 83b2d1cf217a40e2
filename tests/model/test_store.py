from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec import structs

from hoptui.domain.columns import Columns, pack
from hoptui.domain.facts import Fact, fact
from hoptui.model.store import MOST_COMMANDS, MOST_EVENTS, MOST_NAMES, Store
from hoptui.protocol.messages import (
    Buckets,
    Command,
    CommandRecord,
    Delta,
    Event,
    Origin,
    Vital,
)
from tests import factories
from tests.factories import SECOND

RUN = "run/abcd2345"


class Clock:
    def __init__(self) -> None:
        self.t = 5_000

    def __call__(self) -> int:
        return self.t


def make_delta(**fields: Any) -> Delta:
    return structs.replace(Delta(id=1, now=0, state=1), **fields)


def event(seq: int, text: str = "hello") -> Event:
    return factories.event(seq, text=text, wall=1.0)


def rows(source: str, first: int, *values: dict[str, float]) -> Columns:
    return pack(source, [(first + i, i, row) for i, row in enumerate(values)])


def make_command(**fields: Any) -> Command:
    plain = Command(id="c1", run="abcd2345", epoch=1, verb="set", knob="grad_accum", value=8)
    return structs.replace(plain, **fields)


def test_an_empty_store_knows_nothing() -> None:
    store = Store()
    assert store.node is None
    assert store.series("host", "cpu_percent") is None
    assert store.names("host") == []
    assert store.latest("host") == {}
    assert store.run("x") is None
    assert store.vital("x") is None


def test_rows_become_series() -> None:
    store = Store()
    store.apply(
        make_delta(columns=(rows("host", 1, {"cpu_percent": 1.0}, {"cpu_percent": 2.0, "load_1m": 0.5}),))
    )
    assert store.names("host") == ["cpu_percent", "load_1m"]
    assert store.latest("host") == {"cpu_percent": 2.0, "load_1m": 0.5}
    series = store.series("host", "cpu_percent")
    assert series is not None
    assert series.window(0, 10, 10).low == [1.0, 2.0]


def test_unknown_values_are_left_out_of_the_latest() -> None:
    store = Store()
    for t in range(1, 40):
        row = {"busy": 90.0, "dram": 30.0} if t < 10 else {"busy": 90.0}
        store.apply(make_delta(columns=(rows("gpu/x", t, row),)))
    assert store.latest("gpu/x") == {"busy": 90.0}
    assert store.names("gpu/x") == ["busy", "dram"]


def test_versions_rise_with_changes_only() -> None:
    store = Store()
    full = make_delta(
        node=factories.node(factories.run()),
        vitals={"abcd2345": Vital(state="live", step=3)},
        events=(event(1),),
        commands=(factories.change(),),
    )
    store.apply(full)
    first = (store.node_version, store.vitals_version, store.events_version, store.commands_version)
    assert min(first) > 0
    store.apply(full)
    assert (store.node_version, store.vitals_version, store.events_version, store.commands_version) == first
    store.apply(
        make_delta(vitals={"abcd2345": Vital(state="live", step=4)}, commands=(factories.change(step=9),))
    )
    assert store.vitals_version == first[1] + 1
    assert store.commands_version == first[3] + 1


def test_what_a_reader_holds_does_not_change_under_it() -> None:
    store = Store()
    store.apply(
        make_delta(events=(event(1),), commands=(factories.change("c1"),), vitals={"r": Vital(state="live")})
    )
    held = (store.events, store.commands, store.vitals)
    lengths = [len(h) for h in held]
    store.apply(
        make_delta(events=(event(2),), commands=(factories.change("c2"),), vitals={"s": Vital(state="live")})
    )
    assert [len(h) for h in held] == lengths


def test_events_come_once_and_stay_in_order() -> None:
    store = Store()
    store.apply(make_delta(events=(event(1), event(2))))
    store.apply(make_delta(events=(event(2), event(3))))
    assert [e.seq for e in store.events] == [1, 2, 3]


def test_events_of_another_node_come_late_and_stand_at_their_times() -> None:
    store = Store()
    times = (*range(1, MOST_EVENTS + 1), 10.5, MOST_EVENTS + 1)
    for seq, wall in enumerate(times, 1):
        store.apply(make_delta(events=(factories.event(seq, text=f"{seq}", wall=float(wall)),)))
        if wall == 10.5:
            assert store.events[9].wall == wall, "what has just come stays"
    walls = [each.wall for each in store.events]
    assert walls == sorted(walls)
    assert len(walls) == MOST_EVENTS
    assert max(each.seq for each in store.events) == len(times), "what comes next goes on from here"


def test_an_event_of_the_head_is_known_by_the_time_that_the_head_gave_it() -> None:
    """A new daemon estimates anew when it was."""
    store = Store()
    there = factories.event(1, text="note", host="gpu00", host_wall=50.0, wall=7.0)
    store.apply(make_delta(events=(there,)))
    store.apply(make_delta(events=(structs.replace(there, seq=2, wall=7.5, t=9),)))
    store.apply(make_delta(events=(structs.replace(there, seq=3, host_wall=51.0),)))
    assert [each.seq for each in store.events] == [1, 3]


def test_memory_is_bounded() -> None:
    store = Store()
    store.apply(make_delta(events=tuple(event(i, f"{i}") for i in range(MOST_EVENTS + 10))))
    store.apply(make_delta(commands=tuple(factories.change(f"c{i}") for i in range(MOST_COMMANDS + 10))))
    store.apply(make_delta(columns=(rows("run/r", 1, {f"m{i}": 1.0 for i in range(MOST_NAMES + 10)}),)))
    assert len(store.events) == MOST_EVENTS
    assert next(iter(store.commands)) == "c10"
    assert len(store.names("run/r")) == MOST_NAMES
    assert store.left_out("run/r") == 10


def test_runs_that_are_gone_are_forgotten() -> None:
    store = Store()
    here = make_delta(
        node=factories.node(factories.run("a", "one"), factories.run("b", "two")),
        vitals={"a": Vital(state="live"), "b": Vital(state="exited")},
        columns=tuple(rows(s, 1, {"x": 1.0}) for s in ("run/a", "process/b", "derived/b", "host")),
    )
    store.apply(here)
    store.apply(make_delta(node=factories.node(factories.run("a", "one"))))
    assert set(store.vitals) == {"a"}
    assert store.latest("run/a") == store.latest("host") == {"x": 1.0}
    assert store.latest("process/b") == store.latest("derived/b") == {}


def test_now_is_the_nodes_clock_carried_on_by_ours() -> None:
    clock = Clock()
    store = Store(clock)
    assert store.now() == 5_000
    store.apply(make_delta(now=100 * SECOND))
    clock.t += 250
    assert store.now() == 100 * SECOND + 250
    store.apply(make_delta(now=100 * SECOND + 100))  # this answer took longer on its way
    assert store.now() == 100 * SECOND + 250
    store.apply(make_delta(now=10 * SECOND))  # another boot
    assert store.now() == 10 * SECOND


def test_an_own_command_is_shown_from_the_moment_it_is_sent() -> None:
    store = Store()
    store.apply(make_delta(node=factories.node(factories.run())))
    store.sent(make_command(origin=Origin(user="ana")))
    record = store.commands["c1"]
    assert (record.stage, record.before, record.wanted, record.origin.user) == ("sent", 4, 8, "ana")
    store.expire("unheard", "nobody answered")
    store.expire("c1", "nobody answered")
    expired = store.commands["c1"]
    assert (list(store.commands), expired.stage, expired.reason) == (["c1"], "expired", "nobody answered")
    store.expire("c1", "once more")
    assert store.commands["c1"] == expired


def test_a_command_that_a_daemon_has_had_is_unknown_while_no_daemon_answers() -> None:
    store = Store()
    store.sent(make_command())
    scheduled = structs.replace(store.commands["c1"], stage="scheduled")
    store.apply_records((scheduled,))
    store.expire("c1", "nobody answered")
    record = store.commands["c1"]
    assert (record.stage, record.code) == ("voided", "fate_unknown")
    store.apply_records((scheduled,))
    assert store.commands["c1"].stage == "scheduled", "the next daemon knows more"


@pytest.mark.parametrize(
    ("why", "kept"),
    [(fact("run_ended", reason="exited"), True), (fact("no_such_run", run="abcd2345"), False), (None, True)],
)
def test_an_unknown_end_stays_unless_its_daemon_did_not_know_the_run(why: Fact | None, kept: bool) -> None:
    """The next daemon finds an earlier stage in the recording."""
    store = Store()
    store.sent(make_command())
    sent = store.commands["c1"]
    unknown = fact("fate_unknown", why=why) if why is not None else fact("fate_unknown")
    end = structs.replace(sent, stage="voided", code=unknown.code, fields=unknown.fields)
    store.apply_records((end,))
    store.apply_records((sent,))
    assert store.commands["c1"] == (end if kept else sent)
    applied = structs.replace(sent, stage="applied", effective=8)
    store.apply_records((applied,))
    assert store.commands["c1"] == applied, "a later end is news"


def test_the_daemons_record_replaces_ours() -> None:
    store = Store()
    store.sent(make_command())
    pushed: CommandRecord = factories.change("c1", stage="scheduled", effective=None, seq=0)
    store.apply_records((pushed,))
    assert store.commands["c1"] == pushed
    theirs: CommandRecord = factories.change("c1", stage="superseded", effective=None)
    store.apply(make_delta(commands=(theirs,)))
    assert store.commands["c1"] == theirs


def test_seeds_and_forgetting() -> None:
    store = Store()
    store.apply(make_delta(columns=(rows(RUN, 100, {"loss": 1.0}),)))
    store.forget(RUN)
    assert store.latest(RUN) == {"loss": 1.0}
    part = rows(RUN, 10, {"loss": 3.0}, {"loss": 2.0})
    store.apply_buckets(
        Buckets(
            id=1,
            source=RUN,
            names=part.names,
            t=part.t,
            step=part.step,
            low=part.values,
            high=part.values,
            mean=part.values,
        )
    )
    series = store.series(RUN, "loss")
    assert series is not None
    assert series.window(0, 200, 200).low == [3.0, 2.0]
    assert not math.isnan(series.last)


def test_metrics_of_the_head_are_those_of_the_run() -> None:
    store = Store(lambda: 0)
    own = pack("run/r1", [(1, 1, {"iteration_s": 0.1, "tokens_per_s": 100.0})])
    head = pack("head/r1", [(2, 1, {"loss": 0.5, "tokens_per_s": 400.0}), (3, 2, {"loss": 0.25})])
    store.apply(Delta(id=1, now=3, state=1, columns=(own, head)))
    assert store.names("run/r1") == ["iteration_s", "tokens_per_s", "loss"]
    assert store.latest("run/r1") == {"iteration_s": 0.1, "tokens_per_s": 400.0, "loss": 0.25}
    loss, rate = store.series("run/r1", "loss"), store.series("run/r1", "tokens_per_s")
    assert loss is not None
    assert rate is not None
    assert (loss.first_t, loss.last_t, rate.last) == (2, 3, 400.0)
    assert store.names("rank/r1/3") == []
    assert store.names("head/r1") == ["loss", "tokens_per_s"]


def test_an_event_of_another_node_that_a_new_daemon_dates_anew_is_the_same() -> None:
    store = Store(lambda: 0)
    saved = Event(seq=7, t=5, wall=1.5e9, kind="note", text="saved", run="r1", host="gpu00")
    for number, t in enumerate((5, 6)):
        again = structs.replace(saved, seq=7 + number, t=t)
        store.apply(Delta(id=number, now=9, state=1, events=(again,)))
    assert [one.t for one in store.events] == [5]
