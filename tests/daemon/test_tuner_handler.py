"""The desk for tuners: requests, commands, what is told and kept. The tuner is a script."""

from __future__ import annotations

import math

import msgspec
import pytest
from msgspec import structs

from hoptui.daemon.handlers.tuners import BROKE
from hoptui.daemon.tuning import DISK_NS, trial_ended
from hoptui.domain.devices import GpuInfo, GpuProcess
from hoptui.domain.facts import Fact, fact, nested
from hoptui.domain.tuning import Change, Limits, Measured, Trial
from hoptui.protocol.messages import Bye, Origin
from hoptui.tuner.observation import PriorResult
from hoptui.tuner.rollback import unfinished
from tests.daemon.quiet_node import LR, MICRO, PURPOSE, RUN, SECOND, UP, QuietNode
from tests.domain.test_job_stragglers import job

NO_WARP = fact("unknown_knob", run="lm", knob="warp", known=["micro_batch", "lr"])
BEN = Origin(user="ben", pid=8, client="dashboard")


# requests ---------------------------------------------------------------------------------------------------


def test_it_is_started_and_says_so_to_everybody(quiet: QuietNode) -> None:
    version = quiet.node.version
    answer = quiet.tune(limits=Limits(budget=0.05))
    assert answer.granted
    assert (answer.state.stand, answer.state.user, answer.state.limits.budget) == ("baseline", "ana", 0.05)
    assert quiet.tuner == answer.state
    assert quiet.node.version > version
    assert quiet.said() == [fact("tuner.started", by="ana (pid 7)", dry=False)]
    assert quiet.keeper.states[-1].tuner == answer.state  # on its way to the disk


@pytest.mark.parametrize(
    ("asked", "refusal"),
    [
        ({"run": "nobody12"}, fact("tune.no_live_run", run="nobody12")),
        ({"op": "stop"}, fact("tune.off", run="lm")),
        ({"op": "freeze", "knob": "lr"}, fact("tune.off", run="lm")),
        ({"op": "freeze", "knob": "warp"}, NO_WARP),
        ({"op": "release", "knob": "warp"}, NO_WARP),
        ({"limits": Limits(memory=2.0)}, fact("tune.bad_limits", limits=Limits(memory=2.0))),
        ({"limits": Limits(budget=0.0)}, fact("tune.bad_limits", limits=Limits(budget=0.0))),
        ({"limits": Limits(power_w=-1.0)}, fact("tune.bad_limits", limits=Limits(power_w=-1.0))),
        ({"limits": Limits(learning=("warp",))}, NO_WARP),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(
    quiet: QuietNode, asked: dict[str, object], refusal: Fact
) -> None:
    answer = quiet.tune(**({"op": "start"} | asked))  # type: ignore[arg-type]
    assert (answer.granted, Fact(answer.code, answer.fields)) == (False, refusal)
    assert not quiet.scripts


def test_a_run_whose_rank_0_is_on_another_node_is_tuned_there(quiet: QuietNode) -> None:
    quiet.run.state = structs.replace(quiet.run.state, rank=2, world=4)
    assert (quiet.tune().code, quiet.tune().fields) == ("tune.away", {"run": "lm", "host": ""})
    quiet.run.job = job()
    assert quiet.tune().fields == {"run": "lm", "host": "gpu00"}


def test_a_limit_that_is_no_number_is_refused(quiet: QuietNode) -> None:
    answer = quiet.tune(limits=Limits(memory=math.nan))
    assert (answer.granted, answer.code) == (False, "tune.bad_limits")
    assert not quiet.scripts


def test_a_run_without_a_knob_of_effect_speed_has_to_be_allowed_another() -> None:
    quiet = QuietNode()
    quiet.hello(knobs=())
    assert (quiet.tune().code, quiet.tune().fields) == ("tune.no_knobs", {"run": "lm"})
    quiet.hello(knobs=(LR,))
    assert quiet.tune().code == "tune.nothing_to_turn"
    assert quiet.tune(limits=Limits(learning=("*",))).code == "tune.nothing_to_turn", "it is not for speed"
    assert quiet.tune(limits=Limits(learning=("lr",))).granted


@pytest.mark.parametrize("limits", [Limits(power_w=400.0), Limits(objective="energy")])
def test_power_is_no_matter_for_a_run_without_a_gpu_once_that_is_known(
    quiet: QuietNode, limits: Limits
) -> None:
    assert quiet.tune(limits=limits).granted, "the sampler has not answered yet"
    quiet.tune("stop")
    quiet.node.sampler_problems = ()
    refused = quiet.tune(limits=limits)
    assert (refused.granted, refused.code, refused.fields) == (False, "tune.no_gpu", {"run": "lm"})
    assert quiet.tune(limits=Limits()).granted
    quiet.tune("stop")
    quiet.node.gpus = (GpuInfo(uuid="A", index=0, name="H100"),)
    assert quiet.tune(limits=limits).granted, "it may be on that one: nobody knows"


def test_the_energy_of_ranks_that_share_a_gpu_is_refused_at_once(quiet: QuietNode) -> None:
    quiet.run.state = structs.replace(quiet.run.state, world=2, gpus=("A",))
    refused = quiet.tune(limits=Limits(objective="energy"))
    assert (refused.code, refused.fields) == ("tune.fewer_gpus", {"run": "lm", "ranks": 2, "gpus": 1})
    assert quiet.tune().granted, "the throughput is that of all ranks"


A = GpuInfo(uuid="A", index=3, name="H100")
NO_COUNTER = fact("reading.not_supported")


def on(gpu: str, pid: int, run: str = "", busy: float | None = 50.0) -> GpuProcess:
    return GpuProcess(gpu=gpu, pid=pid, run=run, sm_percent=busy)


@pytest.mark.parametrize(
    ("gpu", "processes", "refusal"),
    [
        (structs.replace(A, parent="GPU-1"), (), fact("tune.energy_of_instance", gpu=3)),
        (
            structs.replace(A, missing_because={"energy": NO_COUNTER}),
            (),
            fact("tune.no_energy_counter", gpu=3, why=NO_COUNTER),
        ),
        (
            structs.replace(A, missing_because={"power_w": NO_COUNTER}),
            (),
            fact("tune.no_energy_counter", gpu=3, why=NO_COUNTER),
        ),
        (A, (on("A", 7, RUN), on("A", 8)), fact("tune.gpu_shared", gpu=3, pid=8)),
        (A, (on("A", 7, RUN), on("A", 8, "other123")), fact("tune.gpu_shared", gpu=3, pid=8)),
        (A, (on("A", 7, RUN, None), on("A", 8, busy=None)), fact("tune.gpu_shared", gpu=3, pid=8)),
        (A, (on("A", 7), on("A", 8)), fact("tune.gpu_shared", gpu=3, pid=7)),
    ],
)
def test_energy_that_cannot_be_measured_is_refused_at_once(
    quiet: QuietNode, gpu: GpuInfo, processes: tuple[GpuProcess, ...], refusal: Fact
) -> None:
    quiet.run.state = structs.replace(quiet.run.state, gpus=("A",))
    quiet.node.gpus, quiet.node.processes = (gpu,), processes
    refused = quiet.tune(limits=Limits(objective="energy"))
    assert (refused.granted, Fact(refused.code, refused.fields)) == (False, refusal)
    assert quiet.tune().granted


@pytest.mark.parametrize(
    "processes",
    [
        (),
        (on("A", 7, RUN), on("B", 8)),
        (on("A", 7, RUN), on("A", 8, busy=None)),  # it only holds memory
        (on("A", 7, busy=None),),  # of a container: it may be the run's own
    ],
)
def test_energy_is_measured_where_the_run_has_its_gpu_alone(
    quiet: QuietNode, processes: tuple[GpuProcess, ...]
) -> None:
    quiet.run.state = structs.replace(quiet.run.state, gpus=("A",))
    quiet.node.gpus, quiet.node.processes = (A,), processes
    assert quiet.tune(limits=Limits(objective="energy")).granted


def test_a_second_start_is_refused_unless_the_first_was_dry(quiet: QuietNode) -> None:
    assert quiet.tune(limits=Limits(dry=True)).granted
    assert quiet.tune(who=BEN).granted
    again = quiet.tune()
    assert (again.granted, again.code) == (False, "tune.on_already")
    assert again.fields == {"run": "lm", "user": "ben"}
    assert again.state.user == "ben"
    assert len(quiet.scripts) == 2


def test_what_a_tuner_before_has_tried_is_told_on_and_undone_no_more(trying: QuietNode) -> None:
    trying.script.end("reverted", fact("trial.harmful"))
    trying.look()
    trying.tune("stop")
    said = len(trying.said())
    trying.now += 1
    answer = trying.tune(limits=Limits(dry=True))
    assert [trial.result for trial in answer.state.tried] == ["reverted"]
    assert answer.state.started == trying.now
    begun = fact("tuner.started", by="ana (pid 7)", dry=True)
    assert trying.said()[said:] == [begun], "and told as news only once"
    assert unfinished(answer.state) is None


def test_a_tuner_that_is_started_again_goes_on_with_the_account_of_the_run(quiet: QuietNode) -> None:
    quiet.tune()
    quiet.script.put(spent=0.02, lived_s=1800.0)
    quiet.look()
    quiet.tune("stop")
    answer = quiet.tune()
    assert (answer.state.spent, answer.state.lived_s) == (0.02, 1800.0)
    quiet.tune("stop")
    assert (quiet.tuner.spent, quiet.tuner.lived_s) == (0.02, 1800.0), "nor is it lost where it never looks"


def test_what_people_have_set_is_left_alone_until_it_is_released(quiet: QuietNode) -> None:
    quiet.person("micro_batch", 48)
    quiet.tune()
    assert quiet.script.state.frozen == ("micro_batch",)
    quiet.script.propose(structs.replace(UP, before=48))
    quiet.look()
    assert quiet.node.book.of(RUN)[-1].code == "held_by_person"
    assert quiet.tune("release", knob="micro_batch").granted
    assert not quiet.script.state.frozen
    quiet.script.propose(structs.replace(UP, before=48))
    quiet.look()
    assert [command.value for command in quiet.commands] == [64]


def test_an_agent_may_start_the_tuner_and_not_release_what_a_person_holds(quiet: QuietNode) -> None:
    agent = Origin(kind="agent", user="ana", pid=9, client="coder")
    quiet.person("lr", 1e-3)
    for refused in (
        quiet.tune("release", who=agent, knob="lr"),
        quiet.tune(who=agent, limits=Limits(learning=("lr",))),
    ):
        assert (refused.granted, refused.code, refused.fields["knob"]) == (False, "held_by_person", "lr")
    assert quiet.node.book.held(RUN) == {"lr"}
    assert quiet.tune("release", who=agent, knob="micro_batch").granted
    assert quiet.tune(who=agent).granted


def test_what_was_released_before_the_start_is_not_seen_as_set(quiet: QuietNode) -> None:
    quiet.person("micro_batch", 48)
    assert quiet.tune("release", knob="micro_batch").granted
    quiet.look()
    quiet.tune()
    assert quiet.script.state.frozen == ()
    quiet.person("lr", 1e-3)
    quiet.look()
    assert [record.knob for record in quiet.script.scenes[-1].records] == ["lr"]


def test_knobs_are_released_together(quiet: QuietNode) -> None:
    quiet.person("micro_batch", 48)
    quiet.person("lr", 1e-3)
    quiet.tune()
    assert quiet.script.state.frozen == ("lr", "micro_batch")
    quiet.tuners.release(quiet.run, quiet.node.book.held(RUN), BEN)
    assert (quiet.tuner.frozen, quiet.node.book.held(RUN)) == ((), frozenset())


def test_a_knob_that_the_limits_name_is_released(quiet: QuietNode) -> None:
    quiet.person("micro_batch", 48)
    quiet.person("lr", 1e-3)
    state = quiet.tune(limits=Limits(learning=("lr",))).state
    assert state.frozen == ("micro_batch",), "nobody has asked for that one"
    assert fact("tuner.may_change", knobs=["lr"], by="ana (pid 7)") in quiet.said()


def test_knobs_that_the_limits_name_are_reported_once(quiet: QuietNode) -> None:
    quiet.person("micro_batch", 48)
    quiet.person("lr", 1e-3)
    quiet.tune(limits=Limits(learning=("micro_batch", "lr")))
    assert quiet.said() == [
        fact("tuner.may_change", knobs=["lr", "micro_batch"], by="ana (pid 7)"),
        fact("tuner.started", by="ana (pid 7)", dry=False),
    ]


def test_a_knob_is_frozen_and_everybody_is_told(quiet: QuietNode) -> None:
    quiet.tune()
    assert quiet.tune("freeze", knob="lr").state.frozen == ("lr",)
    assert quiet.said()[-1] == fact("tuner.frozen", knob="lr", by="ana (pid 7)")


# commands ---------------------------------------------------------------------------------------------------


def test_a_proposal_goes_the_way_of_everybodys_commands(quiet: QuietNode) -> None:
    quiet.tune()
    quiet.script.propose(UP, Change(knob="lr", before=3e-4, value=1e-3))
    quiet.look()
    first, second = quiet.commands
    assert (first.knob, first.value, first.epoch, first.expect_version) == ("micro_batch", 64, 1, 0)
    assert (first.origin.kind, first.origin.user, first.purpose) == ("tuner", "ana", (PURPOSE,))
    assert second.knob == "lr"
    assert quiet.script.ids == {"micro_batch": first.id, "lr": second.id}
    quiet.outcome(first)
    quiet.look()
    records = {record.id: record.stage for record in quiet.script.scenes[-1].records}
    assert records == {first.id: "applied", second.id: "sent"}
    assert quiet.run.state.knobs[0].by == "the tuner"


def test_a_trial_is_on_the_disk_before_the_run_hears_of_it(quiet: QuietNode) -> None:
    quiet.tune()
    quiet.script.propose(UP)
    quiet.keeper.log.clear()
    quiet.look()
    log = quiet.keeper.log
    assert log.index("run trial") < log.index("keep") < log.index("send micro_batch=64")
    kept = quiet.keeper.states[-1].tuner
    assert kept is not None
    assert kept.trial is not None
    assert kept.trial.changes == (UP,)


# telling ----------------------------------------------------------------------------------------------------


def test_nothing_is_told_without_news_and_progress_once_a_second(trying: QuietNode) -> None:
    trying.look()
    version, kept = trying.node.version, len(trying.keeper.states)
    trying.look(0.4)
    assert trying.node.version == version
    for step in range(1, 6):
        assert trying.script.state.trial is not None
        trial = structs.replace(trying.script.state.trial, iterations=step)
        trying.script.put(trial=trial, facts=(fact("tuner.measures", changes=[UP], iterations=step),))
        trying.look(0.4)
    assert trying.node.version in (version + 2, version + 3)
    assert len(trying.keeper.states) == kept  # that alone is not worth a write


@pytest.mark.parametrize("detectable", [True, False])
def test_an_event_has_the_evidence(detectable: bool) -> None:
    measured = Measured(gain=0.061, interval=0.012, detectable=detectable)
    trial = Trial(t=7, changes=(UP,), result="kept", measured=measured, why=(PURPOSE,))
    found = trial_ended(trial).fields
    assert (found["t"], found["result"], found["changes"]) == (7, "kept", [msgspec.to_builtins(UP)])
    assert (found["gain"], found["interval"], found["detectable"]) == (0.061, 0.012, detectable)
    assert found["why"] == [msgspec.to_builtins(PURPOSE)]


def test_each_ended_trial_is_one_event(trying: QuietNode) -> None:
    trying.script.end("kept", PURPOSE)
    for _ in range(3):
        trying.look()
    assert trying.said()[-1] == trial_ended(trying.tuner.tried[-1])
    assert len(trying.said()) == 2


def test_it_is_stopped_and_a_trial_taken_back(trying: QuietNode) -> None:
    assert trying.tune("stop", who=BEN).state.stand == "off"
    stopped, ended = trying.said()[-2:]
    assert stopped == fact("tuner.stopped", by="ben (pid 8)")
    assert (ended.code, ended.fields["result"]) == ("trial.ended", "interrupted")
    assert nested(ended.fields["why"][-1]) == fact("trial.tuner_stopped")
    trying.outcome(trying.commands[-1])
    assert trying.value() == 32
    looks = len(trying.script.scenes)
    trying.look()
    assert len(trying.script.scenes) == looks
    assert trying.tune().granted


def test_a_tuner_that_breaks_costs_itself_and_nothing_else(trying: QuietNode) -> None:
    trying.script.plan.append(ZeroDivisionError())
    trying.look()
    assert (trying.tuner.stand, trying.tuner.tried[-1].result) == ("off", "unfinished")
    assert trying.tuner.facts == (BROKE,)
    assert any(e.level == "warning" and e.code == BROKE.code for e in trying.node.events)
    assert trying.commands[-1].value == 32
    trying.look()
    assert trying.tune().granted


def test_a_fault_is_not_met_again_every_second(quiet: QuietNode, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def broken(*_: object) -> None:
        looks.append(quiet.now)
        raise ZeroDivisionError

    monkeypatch.setattr("hoptui.daemon.handlers.tuners.observe", broken)
    for _ in range(60):
        quiet.look()
    assert len(looks) == 1
    assert quiet.run.state.tuner is None


# memory -----------------------------------------------------------------------------------------------------


def test_the_next_run_of_the_kind_starts_from_what_was_found(quiet: QuietNode) -> None:
    quiet.tune()
    assert quiet.script.known is None
    for peak in (100, 105, 109):  # it grows a little all the time
        quiet.script.rests = PriorResult({"micro_batch": 128}, peak=peak)
        quiet.look()
    assert [result.peak for result in quiet.keeper.settled] == [100]
    quiet.script.rests = PriorResult({"micro_batch": 128}, peak=120)
    quiet.look()
    quiet.tune("stop")
    quiet.tune()
    assert quiet.script.known == PriorResult({"micro_batch": 128}, peak=120)
    quiet.tune("stop")
    quiet.tune(limits=Limits(objective="energy"))
    assert quiet.script.known is None


def test_what_was_found_with_other_values_of_what_it_may_not_turn_is_no_start(quiet: QuietNode) -> None:
    both = PriorResult({"micro_batch": 128, "lr": 1e-3}, peak=100)
    quiet.tune(limits=Limits(learning=("lr",)))
    quiet.script.rests = both
    quiet.look()
    quiet.tune("stop")
    quiet.tune()
    assert quiet.script.known is None
    quiet.tune("stop")
    quiet.person("lr", 1e-3)
    quiet.tune()
    assert quiet.script.known == both


# what its trials did ----------------------------------------------------------------------------------------


def measures(quiet: QuietNode, gain: float | None, **fields: object) -> None:
    """What the tuner has measured of its trial so far."""
    assert quiet.script.state.trial is not None
    found = Measured(metric="tokens_per_s", gain=gain, interval=0.01, **fields)  # type: ignore[arg-type]
    quiet.script.put(trial=structs.replace(quiet.script.state.trial, measured=found))


def test_the_command_of_a_trial_carries_its_figure_and_no_other(trying: QuietNode) -> None:
    so_far = (fact("effect.measuring", had=7, least=15),)
    measures(trying, None, remarks=so_far)
    trying.look()
    trying.rows(*[500.0] * 60)
    (record,) = trying.node.book.of(RUN)
    assert record.measured is not None
    assert (record.measured.remarks, record.measured.settled) == (so_far, False)
    measures(trying, 0.06)
    trying.script.end("kept")
    trying.look()
    told = trying.tuner.tried[-1].measured
    assert told is not None
    assert (told.gain, told.settled) == (0.06, True), "as the history has it"
    trying.rows(*[500.0] * 60)
    (record,) = trying.node.book.of(RUN)
    assert record.measured is not None
    assert (record.measured.gain, record.measured.settled) == (0.06, True)


def test_a_trial_that_ends_without_a_figure_is_measured_as_any_change(quiet: QuietNode) -> None:
    quiet.rows(*[100.0] * 40)
    quiet.tune()
    quiet.script.propose(UP)
    quiet.look()
    quiet.outcome(quiet.commands[0])
    quiet.rows(*[120.0] * 60)
    (record,) = quiet.node.book.of(RUN)
    assert record.measured is None
    quiet.script.end("interrupted", fact("trial.user_set", knobs=["lr"]))
    quiet.look()
    quiet.rows(120.0)
    (record,) = quiet.node.book.of(RUN)
    assert record.measured is not None
    assert record.measured.gain == pytest.approx(0.2, abs=0.01)


def test_knobs_of_one_trial_say_that_they_share_its_figure() -> None:
    quiet = QuietNode()
    quiet.hello(knobs=(MICRO, LR))
    quiet.tune(limits=Limits(learning=("lr",)))
    quiet.script.propose(UP, Change(knob="lr", before=3e-4, value=6e-4))
    quiet.look()
    for command in quiet.commands:
        quiet.outcome(command)
    measures(quiet, 0.06)
    quiet.script.end("reverted")
    quiet.look()
    quiet.rows(500.0)
    found = [r.measured and (r.measured.gain, r.measured.remarks) for r in quiet.node.book.of(RUN)]
    assert found == [(0.06, (fact("effect.shared", knobs=[other]),)) for other in ("lr", "micro_batch")]


def test_what_users_set_is_measured_unless_it_is_a_coefficient() -> None:
    quiet = QuietNode()
    quiet.hello(knobs=(MICRO, LR))
    quiet.rows(*[100.0] * 40)
    quiet.person("micro_batch", 64)
    quiet.person("lr", 1e-3)
    quiet.rows(*[120.0] * 60)
    found = {r.knob: r.measured for r in quiet.node.book.of(RUN)}
    assert found["lr"] is None
    assert found["micro_batch"] is not None


def test_a_tuner_waits_until_the_run_has_told_what_users_have_set(quiet: QuietNode) -> None:
    quiet.tune()
    quiet.look()
    seen = len(quiet.script.scenes)
    quiet.hello()
    quiet.now += SECOND
    quiet.tuners.tend()
    assert len(quiet.script.scenes) == seen, "outcomes that this daemon lacks are on their way"
    quiet.look()
    assert len(quiet.script.scenes) == seen + 1


# a trial begins once it is on disk --------------------------------------------------------------------------


def test_a_trial_is_on_disk_before_the_run_gets_its_value(quiet: QuietNode) -> None:
    # A daemon that is killed in it leaves it to the next one, which undoes what it finds on disk.
    quiet.tune()
    quiet.keeper.on_disk = False
    quiet.script.propose(UP)
    quiet.look(0.5)
    assert quiet.keeper.states[-1].tuner == quiet.tuner
    assert unfinished(quiet.tuner) is not None
    quiet.look(0.5)
    assert (quiet.commands, quiet.script.ids) == ([], {})
    quiet.keeper.on_disk = True
    quiet.look(0.5)
    assert [command.value for command in quiet.commands] == [64]
    assert quiet.script.ids == {"micro_batch": quiet.commands[0].id}
    quiet.look()
    assert len(quiet.commands) == 1


def test_a_tuner_says_that_it_waits_for_a_slow_disk_and_looks_again_later(quiet: QuietNode) -> None:
    quiet.tune()
    quiet.keeper.on_disk = False
    quiet.script.propose(UP)
    quiet.look(0.5)
    looks = len(quiet.script.scenes)
    assert quiet.tuner.stand == "trial"
    quiet.look(1.0)
    assert (quiet.tuner.stand, quiet.tuner.facts) == ("waiting", (fact("wait.disk"),))
    assert len(quiet.script.scenes) == looks
    quiet.look(DISK_NS / SECOND)
    assert len(quiet.script.scenes) == looks + 1
    assert quiet.commands == []


def test_a_trial_that_waits_for_the_disk_is_dropped_for_what_a_user_sets(quiet: QuietNode) -> None:
    quiet.tune()
    quiet.keeper.on_disk = False
    quiet.script.propose(UP)
    quiet.look(0.5)
    quiet.person("micro_batch", 16, effective=16, version=1)
    quiet.keeper.on_disk = True
    looks = len(quiet.script.scenes)
    quiet.look(0.5)
    assert quiet.commands == []
    assert len(quiet.script.scenes) == looks + 1


def test_a_trial_that_waits_for_the_disk_does_not_begin_in_another_process(quiet: QuietNode) -> None:
    quiet.tune()
    quiet.keeper.on_disk = False
    quiet.script.propose(UP)
    quiet.look(0.5)
    quiet.run.restarting = True
    quiet.hello(nonce="n2")
    quiet.keeper.on_disk = True
    quiet.look(0.5)
    assert quiet.commands == []
    assert quiet.script.scenes[-1].epoch == 2


@pytest.mark.parametrize("end", ["stop", "finish", "leave", "crash"])
def test_a_trial_that_waits_for_the_disk_never_begins_after_the_end(quiet: QuietNode, end: str) -> None:
    quiet.tune()
    quiet.keeper.on_disk = False
    quiet.script.propose(UP)
    quiet.look(0.5)
    if end == "stop":
        assert quiet.tune("stop").granted
    elif end == "leave":
        quiet.tuners.close()
    else:
        quiet.runs.receive(b"n1", None, Bye(reason="finished" if end == "finish" else "exception"))
    quiet.keeper.on_disk = True
    quiet.script.plan.clear()
    quiet.look(0.5)
    assert quiet.commands == []


def test_what_undoes_a_trial_does_not_wait_for_the_disk(trying: QuietNode) -> None:
    trying.keeper.on_disk = False
    trying.script.end("reverted")
    trying.script.propose(Change(knob="micro_batch", before=64, value=32))
    trying.script.rolls_back = True
    trying.look(0.5)
    assert [command.value for command in trying.commands] == [64, 32]
