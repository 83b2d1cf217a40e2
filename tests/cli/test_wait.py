"""`hoptui wait`, and what it waits for."""

from __future__ import annotations

import pytest
from msgspec import structs

from hoptui.domain.diagnosis import Diagnosis
from hoptui.domain.facts import fact
from hoptui.domain.tuning import Measured, TunerState
from hoptui.protocol.messages import CommandRecord, Vital
from tests import factories
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.golden import Golden

KNOWN = Measured(metric="env_steps_per_s", gain=0.061, interval=0.012, detectable=True, settled=True)


def test_what_has_happened_already_is_reported_at_once(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    told = hoptui("wait", "ppo", "--for", "iteration=1000", "--json")
    assert (told.code, told.json["happened"], told.json["detail"]) == (0, True, {"iteration": 1204})
    assert hoptui("wait", "ppo", "--for", "live", "--json").json["detail"] == {"state": "live"}


def test_what_does_not_happen_in_time_has_a_reason_and_an_exit_code(
    hoptui: Hoptui, ppo: FakeDaemon, golden: Golden
) -> None:
    for event in ("iteration", "paused", "hung", "ended", "verdict", "tuner", "event", "command"):
        told = hoptui("wait", "ppo", "--for", event, "--timeout", "0", "--json")
        assert (told.code, told.json["happened"], told.json["possible"]) == (3, False, True), event
        assert told.json["detail"] is None
    assert hoptui("wait", "ppo", "--for", "ended", "--timeout", "0").code == 3
    for event in ("nothing", "ended=3", "iteration=x", "iteration="):
        assert hoptui("wait", "ppo", "--for", event).code == 2
    assert hoptui("wait", "ppo", "--for", "live", "--timeout", "nan").code == 2
    assert hoptui("wait", "ppo", "--for", "effect").code == 3
    assert hoptui("wait", "ppo", "--for", "effect=c9").code == 3
    golden(hoptui.transcript())


def test_what_happens_while_it_waits(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    asked = ppo.answer

    def pause(message: object) -> None:
        """The run is paused once it is waited for."""
        if getattr(message, "wait_s", 0.0) > 0:
            ppo.vitals["abcd2345"] = Vital(state="paused", step=1205, last_t=ppo.now)
        asked(message)  # type: ignore[arg-type]

    ppo.answer = pause
    told = hoptui("wait", "ppo", "--for", "paused", "--timeout", "20", "--json")
    assert (told.code, told.json["detail"]) == (0, {"state": "paused"})


@pytest.mark.parametrize(
    ("record", "happened", "possible", "reason"),
    [
        (factories.change("c1", measured=KNOWN, seq=1), True, True, ""),
        (factories.change("c1", measured=structs.replace(KNOWN, settled=False), seq=1), False, True, "0 s"),
        (factories.change("c1", knob="lr", seq=1), False, False, "does not change the speed"),
        (
            factories.change("c1", stage="rejected", code="held_by_person", fields={"knob": "n"}, seq=1),
            False,
            False,
            "is rejected: a user set n",
        ),
    ],
)
def test_an_effect_is_measured_or_there_is_a_reason(
    hoptui: Hoptui, ppo: FakeDaemon, record: CommandRecord, happened: bool, possible: bool, reason: str
) -> None:
    ppo.commands = [factories.change("c0", measured=KNOWN, seq=0), record]
    told = hoptui("wait", "ppo", "--for", "effect=c1", "--timeout", "0", "--json").json
    assert (told["happened"], told["possible"]) == (happened, possible)
    assert reason in told["reason"]
    assert (told["detail"] or {}).get("measured", {}).get("gain") == (0.061 if happened else None)


def test_the_effect_of_the_newest_change_and_whether_others_contended(
    hoptui: Hoptui, ppo: FakeDaemon
) -> None:
    shared = structs.replace(KNOWN, remarks=(fact("effect.gpu_shared", gpu=1, pid=7),))
    ppo.commands = [factories.change("c0", seq=1), factories.change("c1", measured=shared, seq=2)]
    detail = hoptui("wait", "ppo", "--for", "effect", "--json").json["detail"]
    assert (detail["id"], detail["contended"]) == ("c1", True)


def test_a_run_that_is_over_ends_every_wait(hoptui: Hoptui, daemon: FakeDaemon) -> None:
    over = factories.run(exit_reason="finished", exited_wall=5.0)
    daemon.add(over, Vital(state="exited", step=9, last_t=daemon.now))
    daemon.start()
    told = hoptui("wait", "ppo", "--for", "ended", "--json")
    assert (told.code, told.json["detail"]["reason"]) == (0, "finished")
    never = hoptui("wait", "ppo", "--for", "iteration=99", "--json")
    assert (never.code, never.json["possible"]) == (3, False)
    assert "finished" in never.json["reason"]


def test_a_verdict_and_an_idle_tuner(hoptui: Hoptui, daemon: FakeDaemon) -> None:
    verdict = Diagnosis(verdict="launch-bound", confidence=0.9)
    daemon.add(factories.run(diagnosis=verdict, tuner=TunerState(stand="holding")))
    daemon.start()
    assert hoptui("wait", "ppo", "--for", "verdict", "--json").json["detail"]["verdict"] == "launch-bound"
    assert hoptui("wait", "ppo", "--for", "tuner", "--json").json["detail"]["stand"] == "holding"


@pytest.mark.parametrize(("ago_s", "code"), [(10, 3), (-10, 0)])
def test_what_the_head_reports_counts_if_it_came_after_the_wait_began(
    hoptui: Hoptui, ppo: FakeDaemon, ago_s: int, code: int
) -> None:
    """A node without rank 0 reads it later, and an event gets the next number then."""
    t = ppo.now - ago_s * factories.SECOND
    note = factories.event(5, run=factories.RUN, text="note", t=t, host="gpu00", host_wall=1.0)
    ended = factories.change("c1", seq=5, t=t, settled=t, host="gpu00")
    asked = ppo.answer

    def read(message: object) -> None:
        if getattr(message, "wait_s", 0.0) > 0:
            ppo.events, ppo.commands = [note], [ended]
        asked(message)  # type: ignore[arg-type]

    for event in ("event", "command"):
        ppo.events, ppo.commands = [], []
        ppo.answer = read
        told = hoptui("wait", "ppo", "--for", event, "--timeout", "0.6" if code else "20", "--json")
        assert (told.code, told.json["happened"]) == (code, not code), event
        ppo.answer = asked
