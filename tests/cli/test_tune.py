"""`hoptui tune` against a fake daemon: what is asked for, what is printed, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from hoptui.domain.tuning import Change, Limits, Measured, Trial, Tune, Tuned, TunerState
from hoptui.protocol.messages import Fetch, FromViewer, RunState, ToViewer
from tests import factories
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.golden import Golden

RUN = factories.run()
UP = Change(knob="grad_accum", before=4, value=8)
MEASURED = Measured(
    metric="env_steps_per_s",
    before=5e5,
    after=5.3e5,
    gain=0.061,
    interval=0.012,
    detectable=True,
    iterations=30,
    settled=True,
)
KEPT = Trial(changes=(UP,), result="kept", t=11, iterations=30, seconds=40.0, measured=MEASURED, text="room")
BACK = Trial(changes=(Change(knob="grad_accum", before=8, value=16),), result="reverted", t=12, text="slower")
ON = TunerState(stand="baseline", text="measures: 3 of 15", started=5, user="ana")


class Tuning:
    """A fake daemon whose run is tuned; `states` come one a Fetch, after the answer to the request."""

    def __init__(self, daemon: FakeDaemon) -> None:
        self.daemon = daemon
        self.granted, self.reason, self.state = True, "", ON
        self.code = ""
        self.fields: dict[str, Any] = {}
        self.states: list[TunerState] = []
        self.run: RunState = RUN
        daemon.answer = self._answer

    def _answer(self, message: FromViewer) -> list[ToViewer] | None:
        if isinstance(message, Fetch) and not message.latest and self.states:
            self.put(self.states.pop(0))
        if not isinstance(message, Tune):
            return None
        answer = Tuned(
            id=message.id, run=message.run, granted=self.granted, state=self.state,
            code=self.code, fields=self.fields or ({"run": self.run.name} if self.code else {}),
            reason=self.reason,
        )  # fmt: skip
        return [answer]

    def put(self, state: TunerState) -> None:
        """The run's tuner stands so now."""
        self.run = structs.replace(self.run, tuner=state, epoch=self.run.epoch + 1)
        self.daemon.node = structs.replace(self.daemon.node, runs=(self.run,))

    @property
    def asked(self) -> list[Any]:
        return self.daemon.of(Tune)


@pytest.fixture
def tuning(ppo: FakeDaemon) -> Tuning:
    return Tuning(ppo)


def test_each_trial_is_a_line_and_the_end_ends_it(hoptui: Hoptui, tuning: Tuning, golden: Golden) -> None:
    trying = structs.replace(ON, stand="trial", trial=structs.replace(KEPT, result="running"))
    tuning.states = [
        ON,
        structs.replace(ON, text="measures: 9 of 15"),
        trying,
        structs.replace(ON, stand="holding", text="nothing is left", tried=(KEPT,)),
        structs.replace(ON, stand="off", text="stopped", tried=(KEPT, BACK)),
    ]
    ended = hoptui("tune", "ppo")
    assert ended.code == 0, ended.err
    golden(hoptui.transcript(), normalize={r"(?m)^\d\d:\d\d:\d\d": "TIME"})
    assert [(t.op, t.run, t.limits) for t in tuning.asked] == [("start", RUN.run, Limits())]


def test_trials_of_a_tuner_before_are_not_told_as_new(hoptui: Hoptui, tuning: Tuning) -> None:
    tuning.state = structs.replace(ON, tried=(BACK,))
    tuning.states = [structs.replace(ON, stand="off", text="stopped", tried=(BACK, KEPT))]
    assert [line for line in hoptui("tune", "ppo").out.splitlines() if "reverted" in line] == []
    tuning.granted, tuning.reason = False, "ppo is being tuned already: stop that first"
    tuning.state = structs.replace(ON, tried=(BACK,))
    assert "reverted" in hoptui("tune", "ppo").out, "but to who comes to watch"


def test_limits_as_they_are_typed(hoptui: Hoptui, tuning: Tuning) -> None:
    words = "--within memory=85% power=400 --budget 5% --objective energy --allow learning --detach"
    ended = hoptui("tune", "ppo", *words.split())
    assert ended.code == 0, ended.err
    wanted = Limits(memory=0.85, power_w=400.0, budget=0.05, objective="energy", learning=("*",))
    assert tuning.asked[0].limits == wanted
    assert hoptui("tune", "ppo", "--allow", "lr", "grad_accum", "--detach", "--json").json["run"] == RUN.run
    assert tuning.asked[1].limits.learning == ("lr", "grad_accum")


def test_what_makes_no_sense_is_bad_usage(hoptui: Hoptui, tuning: Tuning, golden: Golden) -> None:
    for words in (
        "--within memory=90",
        "--within vram=90%",
        "--within power=lots",
        "--within power=nan",
        "--budget 0",
        "--stop --status",
        "--stop --budget 3%",
        "--freeze lr --detach",
        "--dry-run --detach",
        "--freeze grad_acum",
        "--allow lr2 --detach",
        "--objective fun",
    ):
        ended = hoptui("tune", "ppo", *words.split())
        assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
        assert not tuning.asked
    golden(hoptui.transcript())


def test_one_that_is_on_already_is_watched(hoptui: Hoptui, tuning: Tuning) -> None:
    tuning.granted, tuning.reason = False, "ppo is being tuned already, started by ana: stop that first"
    tuning.states = [structs.replace(ON, stand="off", text="the run has ended: finished")]
    ended = hoptui("tune", "ppo")
    assert ended.code == 0
    assert ended.out.startswith("watching ppo: ")
    other = hoptui("tune", "ppo", "--budget", "5%")  # but not with other limits than were asked for
    assert (other.code, other.err) == (1, f"hoptui: {tuning.reason}\n")


def test_a_refusal_is_one_sentence(hoptui: Hoptui, tuning: Tuning) -> None:
    reason = "ppo has no speed knob"
    tuning.granted, tuning.reason, tuning.state = False, reason, TunerState()
    assert hoptui("tune", "ppo") == (1, "", f"hoptui: {reason}\n")


def test_energy_that_cannot_be_measured_is_said_at_once(hoptui: Hoptui, tuning: Tuning) -> None:
    tuning.granted, tuning.code, tuning.state = False, "tune.fewer_gpus", TunerState()
    tuning.fields = {"run": "ppo", "ranks": 4, "gpus": 2}
    ended = hoptui("tune", "ppo", "--objective", "energy")
    said = "energy cannot be measured: the 4 ranks of ppo use 2 GPU(s) of this machine"
    assert ended == (1, "", f"hoptui: {said}\n")
    assert [one.limits.objective for one in tuning.asked] == ["energy"]


def test_a_run_without_a_speed_knob_shows_what_the_script_would_need(hoptui: Hoptui, tuning: Tuning) -> None:
    tuning.granted, tuning.code, tuning.state = False, "tune.nothing_to_turn", TunerState()
    tuning.run = structs.replace(RUN, declined={"stop": "press Ctrl-C", "num_workers": "add two lines"})
    tuning.put(TunerState())
    code, out, err = hoptui("tune", "ppo")
    first, last = err.splitlines()
    assert (code, out, first) == (1, "", "  num_workers: add two lines")
    assert last.startswith("hoptui: ppo has no speed knob")


def test_ctrl_c_ends_the_watching_only_and_says_so(hoptui: Hoptui, tuning: Tuning, golden: Golden) -> None:
    tuning.states = [ON]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hoptui.presentation.tuner.standing", _interrupt)
        ended = hoptui("tune", "ppo")
    assert (ended.code, "--stop" in ended.err) == (130, True)
    golden(hoptui.transcript())
    assert [t.op for t in tuning.asked] == ["start"]


def _interrupt(state: TunerState) -> str:
    raise KeyboardInterrupt


def test_a_dry_run_says_what_it_would_try_and_leaves_nothing_behind(
    hoptui: Hoptui, tuning: Tuning, golden: Golden
) -> None:
    found = "it would set grad_accum 8: memory is free"
    next_ = structs.replace(ON, stand="holding", next=(UP,), text=found)
    tuning.states = [ON, next_]
    ended = hoptui("tune", "ppo", "--dry-run")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[-1] == found
    assert [(t.op, t.limits.dry) for t in tuning.asked] == [("start", True), ("stop", False)]
    tuning.state = next_
    told = hoptui("tune", "ppo", "--dry-run", "--json").json
    assert told["next"] == [{"knob": "grad_accum", "before": 4, "value": 8}]
    tuning.state = structs.replace(ON, stand="holding", text="nothing is left")
    tuning.granted = False  # one that is no dry run is on
    assert hoptui("tune", "ppo", "--dry-run").out.endswith(f": {tuning.state.text}\n")
    tuning.reason = "ppo is being tuned already, started by ana: stop that first"
    other = hoptui("tune", "ppo", "--dry-run", "--allow", "lr")  # what that one would do is no answer
    assert (other.code, other.out, other.err) == (1, "", f"hoptui: {tuning.reason}\n")
    tuning.granted = True
    assert hoptui("tune", "ppo", "--dry-run").out == f"{tuning.state.text}\n"
    golden(hoptui.transcript(), normalize={r"(?m)^\d\d:\d\d:\d\d": "TIME"})


def test_how_it_stands(hoptui: Hoptui, tuning: Tuning, golden: Golden) -> None:
    assert hoptui("tune", "ppo", "--status").code == 0
    tuning.put(structs.replace(ON, tried=(KEPT,), frozen=("lr",), spent=0.011, lived_s=7200.0, next=(UP,)))
    assert hoptui("tune", "ppo", "--status").code == 0
    tuning.put(structs.replace(ON, spent=0.3, lived_s=180.0))
    assert hoptui("tune", "ppo", "--status").code == 0
    golden(hoptui.transcript())
    tuning.put(structs.replace(ON, tried=(KEPT,)))
    assert hoptui("tune", "ppo", "--status", "--json").json["tuner"]["tried"][0]["result"] == "kept"
    assert not tuning.asked


def test_the_report_has_trials_costs_and_values_to_copy(
    hoptui: Hoptui, tuning: Tuning, golden: Golden
) -> None:
    tried = (KEPT, structs.replace(BACK, measured=structs.replace(MEASURED, gain=-0.05)))
    knobs = tuple(structs.replace(k, value=8) if k.spec.name == "grad_accum" else k for k in RUN.knobs)
    tuning.run = structs.replace(RUN, knobs=knobs)
    done = structs.replace(ON, stand="holding", text="done", tried=tried, spent=0.01, lived_s=600.0)
    tuning.put(structs.replace(done, regret_units=1.5e6, best_rate=5e5))
    text, found = hoptui("tune", "ppo", "--report"), hoptui("tune", "ppo", "--report", "--json").json
    golden(text.out)
    assert (text.code, found["gain"], found["gain_interval"]) == (
        0,
        pytest.approx(0.061),
        pytest.approx(0.012),
    )
    assert (found["energy"], found["throughput"], found["copy"]) == (None, None, "grad_accum=8")
    assert (found["values"], found["lost_units"]) == ({"grad_accum": 8}, 6.0 * 5e5)
    assert found["regret"] == {"share": pytest.approx(0.005), "units": 1.5e6, "seconds": 600.0}


def test_the_report_of_energy(hoptui: Hoptui, tuning: Tuning, golden: Golden) -> None:
    joules = structs.replace(MEASURED, metric="units_per_joule", before=1000.0, after=1061.0)
    slower = structs.replace(MEASURED, gain=-0.04, after=4.8e5)
    kept = structs.replace(KEPT, measured=joules, throughput=slower, units=3e9)
    limits = Limits(objective="energy")
    tuning.put(structs.replace(ON, stand="holding", text="done", limits=limits, tried=(kept,), lived_s=600.0))
    golden(hoptui("tune", "ppo", "--report").out)
    found = hoptui("tune", "ppo", "--report", "--json").json
    energy, throughput = found["energy"], found["throughput"]
    assert found["regret"] is None
    assert energy["before"] == 1e-3
    assert energy["share"] == pytest.approx(1 - 1 / 1.061)
    assert energy["joules"] == pytest.approx(3e6 * (1 - 1 / 1.061))
    assert 0 < energy["joules_interval"] < energy["joules"]
    assert (throughput["metric"], throughput["gain"]) == ("env_steps_per_s", pytest.approx(-0.04))
    assert throughput["interval"] == pytest.approx(0.012)


def test_stop_freeze_and_release_are_asked_for(hoptui: Hoptui, tuning: Tuning, golden: Golden) -> None:
    tuning.state = structs.replace(ON, stand="off", text="stopped")
    for words in ("--stop", "--freeze lr", "--release lr"):
        assert hoptui("tune", "ppo", *words.split()).code == 0
    golden(hoptui.transcript())
    assert [(t.op, t.knob) for t in tuning.asked] == [("stop", ""), ("freeze", "lr"), ("release", "lr")]


def test_read_only_sends_nothing(
    hoptui: Hoptui, tuning: Tuning, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setenv("HOPTUI_READ_ONLY", "1")
    for words in ([], ["--stop"], ["--dry-run"]):
        ended = hoptui("tune", "ppo", *words)
        assert (ended.code, "HOPTUI_READ_ONLY" in ended.err) == (1, True)
    golden(hoptui.transcript())
    assert hoptui("tune", "ppo", "--status").code == 0
    assert not tuning.asked
