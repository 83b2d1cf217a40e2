"""Each alert fires once until it is good again, and not too many fire in an hour."""

from __future__ import annotations

import msgspec
import pytest

from hoptui.daemon.state.alert_book import HOUR_S, AlertBook, FiredAlerts
from hoptui.domain.alert_settings import AlertSettings
from hoptui.domain.alerts import KINDS, SUPPRESSED, TRIGGERS
from hoptui.domain.facts import Fact, fact

NOW = 1.7e9
FIELDS = {"run.exited": {"reason": "killed", "detail": ""}, "number.bad": {"metric": "loss"}}


def bad(metric: str = "loss") -> Fact:
    return fact("number.bad", metric=metric, value="NaN")


def good(metric: str = "loss") -> Fact:
    return fact("number.good", metric=metric, since=1)


@pytest.mark.parametrize("code", TRIGGERS)
def test_each_event_fires_once_until_it_is_good(code: str) -> None:
    book, trigger = AlertBook(), TRIGGERS[code]
    what = Fact(code, FIELDS.get(code, {}))
    assert [book.judge(what, "r1", 1.0) for _ in range(3)] == [trigger.kind, "", ""]
    assert book.judge(what, "r2", 1.0) == trigger.kind, "of another run"
    for code_of_good in trigger.good or ("run.started",):
        assert book.judge(Fact(code_of_good, FIELDS.get(code, {})), "r1", 1.0) == ""
        assert book.judge(what, "r1", 1.0) == trigger.kind


def test_every_kind_has_an_event() -> None:
    assert {trigger.kind for trigger in TRIGGERS.values()} | {"ended"} == set(KINDS)


@pytest.mark.parametrize(
    ("reason", "on", "kind"),
    [
        ("finished", {"ended", "crashed"}, "ended"),
        ("stopped", {"ended"}, "ended"),
        ("finished", {"crashed"}, ""),
        ("killed", {"ended", "crashed"}, "crashed"),
        ("exited", {"ended", "crashed"}, "crashed"),
        ("failed", {"ended"}, "ended"),
        ("failed", {"nan"}, ""),
    ],
)
def test_the_end_of_a_run(reason: str, on: set[str], kind: str) -> None:
    book = AlertBook()
    book.settings = AlertSettings(on=frozenset(on))
    assert book.judge(fact("run.exited", reason=reason, detail=""), "r1", 1.0) == kind


def test_a_run_is_good_when_all_its_numbers_are() -> None:
    book = AlertBook()
    assert [book.judge(bad(name), "r1", 1.0) for name in ("loss", "grad_norm")] == ["nan", ""]
    book.judge(good("grad_norm"), "r1", 1.0)
    assert book.judge(bad("grad_norm"), "r1", 1.0) == ""
    for name in ("loss", "grad_norm"):
        book.judge(good(name), "r1", 1.0)
    assert book.judge(bad(), "r1", 1.0) == "nan"


def test_above_the_limit_one_notice_fires_in_an_hour() -> None:
    book = AlertBook()
    book.settings = AlertSettings(most_per_hour=3)
    fired = [book.judge(bad(), f"r{i}", NOW + i) for i in range(10)]
    assert fired == ["nan"] * 3 + [SUPPRESSED] + [""] * 6
    assert book.judge(bad(), "later", NOW + 0.5 + HOUR_S) == "nan"
    assert book.judge(bad(), "again", NOW + 0.6 + HOUR_S) == "", "two are less than an hour old"


def test_a_later_daemon_fires_nothing_again() -> None:
    first = AlertBook()
    first.settings = AlertSettings(most_per_hour=2)
    first.judge(bad(), "r1", NOW)
    first.judge(fact("run.exited", reason="killed", detail=""), "r1", NOW + 1)
    kept = msgspec.json.decode(msgspec.json.encode(first.state), type=FiredAlerts)
    second = AlertBook()
    second.settings = first.settings
    second.restore(kept, NOW + 2)
    assert second.judge(bad(), "r1", NOW + 2) == ""
    assert second.judge(fact("run.exited", reason="killed", detail=""), "r1", NOW + 2) == ""
    assert second.judge(bad(), "r2", NOW + 3) == SUPPRESSED


def test_times_in_the_future_do_not_count() -> None:
    book = AlertBook()
    book.settings = AlertSettings(most_per_hour=1)
    book.restore(FiredAlerts(fired=[9e9], notice=9e9), NOW)
    assert book.judge(bad(), "r1", NOW) == "nan"
