from __future__ import annotations

import io
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hoptui.protocol.messages import Command, Delta, FromViewer, Lease, Outcome, Shutdown, Stage, ToViewer
from tests import factories
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.golden import Golden


def sent(daemon: FakeDaemon) -> list[tuple[str, str, object]]:
    return [(m.verb, m.knob, m.value) for m in daemon.of(Command) if isinstance(m, Command)]


def test_get(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    ended = hoptui("get", "ppo", "--json")
    assert list(ended.json) == ["run", "knobs"]
    assert list(ended.json["knobs"]) == ["grad_accum", "lr", "precision"]
    one = hoptui("get", "ppo", "lr", "--json").json["knobs"]
    assert one == {
        "lr": {
            "value": 3e-4,
            "version": 0,
            "min": 1e-6,
            "max": 0.1,
            "choices": [],
            "unit": "",
            "effect": "learning",
            "cost": "free",
            "took_s": None,
            "by": "",
        }
    }
    assert hoptui("get", "ppo", "lr").code == 0
    assert hoptui("get", "ppo", "lrr").code == 2
    golden(hoptui.transcript())


def test_set_waits_and_says_what_took_effect(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    ended = hoptui("set", "ppo", "grad_accum=8", "--why", "more per step", "--expect", "0")
    assert (ended.code, ended.err) == (0, "")
    golden(hoptui.transcript())
    [command] = ppo.of(Command)
    assert isinstance(command, Command)
    assert (command.run, command.epoch, command.value, command.expect_version) == ("abcd2345", 1, 8, 0)
    assert command.why == "more per step"


def test_who_holds_a_knob_is_shown_if_the_daemon_says_it(hoptui: Hoptui, daemon: FakeDaemon) -> None:
    daemon.add(factories.run(held={"lr": "ana (pid 4121)"}))
    daemon.start()
    knobs = hoptui("get", "ppo", "--json").json["knobs"]
    assert (knobs["lr"]["held_by"], knobs["grad_accum"]["held_by"]) == ("ana (pid 4121)", None)


@pytest.mark.parametrize("words", ["pause ppo", "resume ppo", "checkpoint ppo", "stop ppo --yes"])
def test_the_outcome_of_a_command_as_json(hoptui: Hoptui, ppo: FakeDaemon, words: str) -> None:
    ended = hoptui(*words.split(), "--json")
    assert (ended.code, ended.err) == (0, "")
    told = ended.json
    assert told["run"] == "abcd2345"
    assert (told["command"]["verb"], told["command"]["stage"]) == (words.split()[0], "applied")
    assert told["command"]["iteration"] == 1205


def test_set_waits_for_the_effect_if_that_is_asked_for(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    ended = hoptui("set", "ppo", "lr=1e-3", "grad_accum=8", "--measure", "0.2", "--json")
    lr, accum = ended.json["commands"]
    assert (ended.code, lr["measured"], accum["measured"]) == (0, None, None)
    assert accum["effect"] == "not measured yet"
    assert hoptui("set", "ppo", "grad_accum=8", "--measure", "nan").code == 2


@pytest.mark.guarantee("read-only")
def test_read_only_sends_nothing_and_says_who_set_it(
    hoptui: Hoptui, ppo: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setenv("HOPTUI_READ_ONLY", "1")
    for words in ("set ppo grad_accum=8", "pause ppo", "checkpoint ppo", "stop ppo", "daemon stop"):
        ended = hoptui(*words.split())
        assert (ended.code, ended.out) == (1, "")
        assert [m for kind in (Command, Lease, Shutdown) for m in ppo.of(kind)] == []
    golden(hoptui.transcript())
    assert hoptui("get", "ppo", "grad_accum").code == 0


def test_what_is_wrong_with_the_configuration_is_told_where_a_command_steers(
    hoptui: Hoptui, ppo: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    (tmp_path / "hoptui").mkdir()
    written = tmp_path / "hoptui/config.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    written.write_text("readonly = true\n")
    ended = hoptui("set", "ppo", "grad_accum=8")
    assert ended.code == 0
    assert f"{written} line 1" in ended.err
    written.write_text("[keys]\nread_only = true\n")
    ended = hoptui("set", "ppo", "grad_accum=8")
    assert ended.code == 1
    assert f"{written} line 2" in ended.err
    assert hoptui("get", "ppo", "grad_accum").err == "", "who only looks is not bothered"
    assert len(sent(ppo)) == 1
    golden(hoptui.transcript())


def test_several_knobs_go_in_order(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    ended = hoptui("set", "ppo", "lr=1e-4", "precision=fp32", "grad_accum=16")
    assert ended.code == 0
    assert sent(ppo) == [("set", "lr", 1e-4), ("set", "precision", "fp32"), ("set", "grad_accum", 16)]
    golden(hoptui.transcript())


def test_set_json(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    found = hoptui("set", "ppo", "grad_accum=8", "--json").json
    [command] = found["commands"]
    assert found["run"] == "abcd2345"
    assert command.pop("id")
    assert command == {
        "knob": "grad_accum",
        "from": 4,
        "to": 8,
        "stage": "applied",
        "effective": 8,
        "version": 1,
        "iteration": 1205,
        "code": "",
        "fields": {},
        "reason": "",
        "took_s": None,
        "unsaved": False,
    }


def test_a_value_read_back_that_is_another_is_told(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    reason = "not in effect as asked: this is the value read back"
    ppo.stages = (Outcome(id="", stage="applied", step=7, before=4, effective=6, reason=reason),)
    ended = hoptui("set", "ppo", "grad_accum=8")
    assert ": 6 " in ended.out
    assert ended.out.endswith(f": {reason}\n")
    golden(hoptui.transcript())


def test_what_came_to_nothing_is_exit_code_1(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    stages: tuple[tuple[Stage, str], ...] = (
        ("rejected", "the run has ended"),
        ("failed", "CUDA out of memory"),
        ("voided", "it ended"),
    )
    for stage, reason in stages:
        ppo.stages = (Outcome(id="", stage=stage, reason=reason),)
        ended = hoptui("set", "ppo", "grad_accum=8")
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.endswith(f"{stage}: {reason}\n")
        assert hoptui("set", "ppo", "grad_accum=8", "--json").json["commands"][0]["stage"] == stage
    golden(hoptui.transcript())


def test_a_bad_value_changes_nothing(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    out_of_bounds = ("grad_accum=800", "precision=fp8")
    no_value = ("grad_acum=8", "zzz=8", "lr=fast", "lr=nan", "lr=inf", "grad_accum=1.5", "grad_accum", "=8")
    for pair in (*out_of_bounds, *no_value):
        others = [] if pair.startswith("lr") else ["lr=1e-3"]
        ended = hoptui("set", "ppo", *others, pair)
        assert (ended.code, ended.out) == (1 if pair in out_of_bounds else 2, "")
        assert sent(ppo) == []
    golden(hoptui.transcript())


def test_bad_usage_of_set(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    for words in ("", "lr=1e-3 lr=1e-4", "lr=1e-3 grad_accum=2 --expect 1", "lr=1e-3 --timeout 0"):
        ended = hoptui("set", "ppo", *words.split())
        assert (ended.code, ended.out) == (2, "")
    golden(hoptui.transcript())


def test_a_refusal_is_json_too(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    ended = hoptui("set", "ppo", "grad_accum=800", "--json")
    assert ended.code == 1
    assert ended.json["commands"][0]["stage"] == "rejected"
    assert ended.json["commands"][0]["code"] == "out_of_range"


def test_no_outcome_in_time(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    ppo.stages = ppo.stages[:2]
    ended = hoptui("set", "ppo", "grad_accum=8", "--timeout", "0.1")
    assert (ended.code, ended.out) == (3, "")
    ppo.stages = ()
    ended = hoptui("set", "ppo", "grad_accum=8", "--timeout", "0.1")
    assert (ended.code, ended.out) == (3, "")
    golden(hoptui.transcript())


def test_ctrl_c_ends_the_waiting_only(
    hoptui: Hoptui, ppo: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    ppo.stages = ppo.stages[:2]
    monkeypatch.setattr("hoptui.cli.support.outcomes.SOON_S", 0.05)

    def interrupt(line: str) -> None:
        print(line, file=sys.stderr)
        if "Ctrl-C" in line:
            raise KeyboardInterrupt

    monkeypatch.setattr("hoptui.cli.support.outcomes.warn", interrupt)
    ended = hoptui("set", "ppo", "grad_accum=8")
    assert ended.code == 130
    golden(hoptui.transcript())


def test_an_exited_run_cannot_be_steered(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    ppo.add(factories.run("eeee5555", "old", exit_reason="finished"))
    for words in (("set", "old", "lr=1e-3"), ("pause", "old"), ("resume", "old"), ("stop", "old", "-y")):
        assert hoptui(*words).code == 3
    assert sent(ppo) == []
    golden(hoptui.transcript())


def test_a_pause_is_a_lease(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    ended = hoptui("pause", "ppo", "--for", "90")
    assert ended.code == 0
    golden(hoptui.transcript())
    [command] = ppo.of(Command)
    assert isinstance(command, Command)
    assert (command.verb, command.hold_s) == ("pause", 90.0)
    assert hoptui("pause", "ppo", "--for", "0").code == 2
    assert hoptui("pause", "ppo", "--for", "nan").code == 2


def test_the_way_to_end_a_pause_is_no_strangers_words(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    name = "b; rm -rf ~"
    ppo.add(factories.run("eeee5555", name))
    assert hoptui("pause", "eeee5555").out.endswith(f" hoptui resume {shlex.quote(name)}\n")


def test_a_held_pause_is_renewed_and_ends_with_a_resume(
    hoptui: Hoptui, ppo: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nap(seconds: float) -> None:
        if len(ppo.of(Lease)) >= 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("hoptui.cli.commands.pause.time.sleep", nap)
    ended = hoptui("pause", "ppo", "--hold")
    assert ended.code == 0
    assert [verb for verb, _, _ in sent(ppo)] == ["pause", "resume"]
    assert {(m.op, m.what, m.seconds) for m in ppo.of(Lease) if isinstance(m, Lease)} == {
        ("renew", "pause", 60.0)
    }


def test_a_refused_pause_is_not_held(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    ppo.stages = (Outcome(id="", stage="rejected", reason="the run has ended"),)
    assert hoptui("pause", "ppo", "--hold").code == 1
    assert ppo.of(Lease) == []


def test_resume_and_checkpoint(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    assert hoptui("resume", "ppo").code == 0
    ppo.stages = (Outcome(id="", stage="applied", step=9, reason="written to /tmp/x.pt"),)
    assert hoptui("checkpoint", "ppo").code == 0
    golden(hoptui.transcript())
    assert [verb for verb, _, _ in sent(ppo)] == ["resume", "checkpoint"]


def reports(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, text: str, **fields: Any) -> None:
    """The run puts this on the time axis once it has a command."""
    pushed = daemon._pushed

    def answer(command: Command, stage: Outcome) -> Delta:
        event = factories.event(len(daemon.events) + 1, text=text, run=command.run, **fields)
        daemon.events.append(event)
        return pushed(command, stage)

    monkeypatch.setattr(daemon, "_pushed", answer)


def test_profile_waits_for_the_trace_and_prints_where_it_is(
    hoptui: Hoptui, ppo: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    ppo.stages = (Outcome(id="", stage="applied", step=9, code="tracing", fields={"iterations": 5}),)
    ppo.events.append(factories.event(1, text="trace written: /old", run=ppo.node.runs[0].run))
    done = "trace written: /t/x.json.gz (22.1 MB, 5 iterations; training paused for 1.2 s)"
    reports(ppo, monkeypatch, done)
    ended = hoptui("profile", "ppo", "--timeout", "10")
    assert (ended.code, ended.out.splitlines()[-1], "/old" in ended.out) == (0, done, False)
    reports(ppo, monkeypatch, "no trace written: disk full", level="warning")
    assert hoptui("profile", "ppo", "--timeout", "10").code == 1


def test_profile_does_not_wait_longer_than_the_timeout(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    ppo.stages = (Outcome(id="", stage="applied", step=9, code="tracing", fields={"iterations": 5}),)
    ended = hoptui("profile", "ppo", "--timeout", "0.3")
    assert (ended.code, "not reported" in ended.err) == (0, True)


def test_profile_with_options(
    hoptui: Hoptui, ppo: FakeDaemon, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports(ppo, monkeypatch, "trace written: /t/x.json.gz")
    ppo.stages = (Outcome(id="", stage="applied", step=9, code="tracing", fields={"iterations": 5}),)
    [run] = ppo.node.runs
    ppo.node = structs.replace(ppo.node, runs=(structs.replace(run, can=("profile",)),))
    refused = hoptui("profile", "ppo", "--stacks")
    assert (refused.code, sent(ppo)) == (1, [])
    able = structs.replace(run, can=("profile", "profile.stacks", "profile.warmup", "profile.shapes"))
    ppo.node = structs.replace(ppo.node, runs=(able,))
    assert hoptui("profile", "ppo", "--steps", "5", "--warmup", "2", "--stacks", "--no-shapes").code == 0
    assert hoptui("profile", "ppo", "--warmup", "-1").code == 2
    assert hoptui("profile", "ppo", "--wait", "1001").code == 2
    (command,) = [message for message in ppo.received if isinstance(message, Command)]
    assert (command.value, command.options) == (5, {"warmup": 2, "stacks": True, "shapes": False})
    golden(hoptui.transcript())


def test_profile_asks_for_so_many_iterations(
    hoptui: Hoptui, ppo: FakeDaemon, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports(ppo, monkeypatch, "trace written: /t/x.json.gz")
    ppo.stages = (Outcome(id="", stage="applied", step=9, reason="tracing 20 iterations", took_s=0.0213),)
    ended = hoptui("profile", "ppo", "--steps", "20")
    assert (ended.code, ended.err) == (0, "")
    ended = hoptui("profile", "ppo", "--steps", "0")
    assert (ended.code, ended.out) == (2, "")
    assert sent(ppo) == [("profile", "", 20)]
    golden(hoptui.transcript())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_stop_asks_first(
    hoptui: Hoptui, ppo: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    ended = hoptui("stop", "ppo")
    assert ended.code == 2
    monkeypatch.setattr("hoptui.cli.commands.stop.interactive", lambda: True)
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    ended = hoptui("stop", "ppo")
    assert ended.code == 1
    golden(hoptui.transcript())
    assert sent(ppo) == []
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert hoptui("stop", "ppo").code == 0
    assert hoptui("stop", "ppo", "--yes").code == 0
    assert [verb for verb, _, _ in sent(ppo)] == ["stop", "stop"]


def declining(daemon: FakeDaemon, **reasons: str) -> None:
    run = daemon.node.runs[0]
    daemon.node = structs.replace(
        daemon.node, runs=(structs.replace(run, declined=reasons), *daemon.node.runs[1:])
    )


@pytest.mark.parametrize(
    "words", ["stop ppo", "stop ppo --yes", "profile ppo", "profile ppo --memory", "set ppo clip=2 --yes"]
)
@pytest.mark.parametrize("interactive", [True, False])
def test_what_is_not_offered_is_refused_before_anything_is_asked(
    hoptui: Hoptui, ppo: FakeDaemon, monkeypatch: pytest.MonkeyPatch, words: str, interactive: bool
) -> None:
    why = "nothing can do that from outside"
    declining(ppo, stop=why, profile=why, clip=why)
    monkeypatch.setattr("hoptui.cli.commands.stop.interactive", lambda: interactive)
    monkeypatch.setattr(sys, "stdin", Terminal(""))
    ended = hoptui(*words.split())
    offers = "clip cannot change in this run" if "clip" in words else f"this run offers no {words.split()[0]}"
    assert ended == (1, "", f"hoptui: {offers}: {why}\n")
    assert sent(ppo) == []


def test_a_knob_that_restarts_the_run_asks_first(
    hoptui: Hoptui, ppo: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of other shapes begin anew: that must not happen by one word."""
    run = ppo.node.runs[0]
    knobs = tuple(
        structs.replace(knob, spec=structs.replace(knob.spec, cost="restart"))
        if knob.spec.name == "grad_accum"
        else knob
        for knob in run.knobs
    )
    ppo.node = structs.replace(ppo.node, runs=(structs.replace(run, knobs=knobs), *ppo.node.runs[1:]))
    ended = hoptui("set", "ppo", "grad_accum=8", "lr=1e-4")
    assert (ended.code, "--yes" in ended.err, "weights" in ended.err) == (2, True, True)
    assert hoptui("set", "ppo", "grad_accum=8", "--json").code == 2
    monkeypatch.setattr("hoptui.cli.commands.set.interactive", lambda: True)
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert hoptui("set", "ppo", "grad_accum=8").code == 1
    assert sent(ppo) == []
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert "weights" in hoptui("set", "ppo", "grad_accum=8").out
    hoptui("set", "ppo", "grad_accum=8", "--yes")
    hoptui("set", "ppo", "lr=1e-4")
    assert sent(ppo) == [("set", "grad_accum", 8), ("set", "grad_accum", 8), ("set", "lr", 1e-4)]


def test_a_name_from_outside_cannot_move_the_cursor(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    ppo.add(factories.run("eeee5555", "a\x1b[2Jb"))
    ppo.stages = (Outcome(id="", stage="rejected", reason="no\x07\x9b"),)

    def printable(text: str) -> bool:
        return all(line.isprintable() for line in text.splitlines())

    for words in (("ls",), ("status", "eeee"), ("pause", "eeee"), ("stop", "eeee")):
        ended = hoptui(*words)
        assert printable(ended.out)
        assert printable(ended.err)


def test_a_daemon_that_dies_while_we_wait(
    hoptui: Hoptui, ppo: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost: the command is asked for again by its id, and a new daemon answers."""
    monkeypatch.setattr("hoptui.client.session.ASK_AGAIN_S", 0.05)
    done = ppo.stages
    ppo.stages = ppo.stages[:2]

    def restart(message: FromViewer) -> list[ToViewer] | None:
        if isinstance(message, Command) and len(ppo.of(Command)) == 2:
            ppo.forget()
            ppo.stages = done
        return None

    ppo.answer = restart
    assert hoptui("set", "ppo", "grad_accum=8").code == 0
    assert len({m.id for m in ppo.of(Command) if isinstance(m, Command)}) == 1


def test_a_dry_run_checks_and_sends_nothing(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    ended = hoptui("set", "ppo", "grad_accum=8", "--dry-run")
    assert ended.code == 0
    assert ended.out.startswith("would set grad_accum ")
    assert ended.out.endswith("nothing was changed\n")
    [would] = hoptui("set", "ppo", "grad_accum=8", "--dry-run", "--json").json["dry_run"]
    assert (would["knob"], would["to"], would["version"]) == ("grad_accum", 8, 0)
    assert set(would) == {"knob", "from", "to", "version", "effect", "cost"}
    assert hoptui("set", "ppo", "grad_accum=800", "--dry-run").code == 1
    assert hoptui("set", "ppo", "grad_accum=8", "--dry-run", "--expect", "7").code == 1
    assert sent(ppo) == []
