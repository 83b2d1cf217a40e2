from __future__ import annotations

import json
import re

import pytest
from msgspec import structs

from hoptui.domain.columns import pack
from hoptui.domain.facts import fact
from hoptui.domain.outputs import OutputPart
from hoptui.domain.phases import PhaseReadings
from hoptui.domain.tuning import Measured
from hoptui.node import processes
from hoptui.presentation.numbers import duration
from hoptui.protocol.messages import Event, Fetch, FromViewer, Query, ToViewer, Vital
from tests import factories
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.factories import SECOND
from tests.golden import Golden

RUN = "run/abcd2345"


def test_ls_json_is_exactly_what_scripts_rely_on(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    ended = hoptui("ls", "--json")
    assert ended.code == 0
    [run] = ended.json
    knobs = run.pop("knobs")
    assert run == {
        "run": "abcd2345",
        "name": "ppo",
        "epoch": 1,
        "state": "live",
        "pid": 4121,
        "iteration": 1204,
        "metrics": {"env_steps_per_s": 512_345.0, "loss": 0.183, "iteration_s": 1.82},
        "tags": [],
        "job": None,
    }
    assert list(knobs) == ["grad_accum", "lr", "precision"]
    assert knobs["grad_accum"] == {
        "value": 4,
        "version": 0,
        "min": 1,
        "max": 64,
        "choices": [],
        "unit": "",
        "effect": "speed",
        "cost": "free",
        "took_s": None,
        "by": "",
    }
    assert knobs["precision"]["min"] is None


def test_ls_is_one_aligned_line_a_run(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    ppo.add(factories.run("eeee5555", "a-longer-name", total=None), Vital(state="busy", step=3))
    for i in range(7):
        gone = factories.run(f"x{i}", "old", exit_reason="finished", exited_wall=1_000_000.0 + i)
        ppo.add(gone, Vital(state="exited", step=9))
    assert hoptui("ls").code == 0
    golden(hoptui.transcript())
    assert len(hoptui("ls", "--all").out.splitlines()) == 9  # no recording of any


def test_ls_starts_the_daemon_and_without_runs_says_what_to_do(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    started: list[object] = []

    def start(where: object) -> None:
        started.append(where)
        daemon.start()

    monkeypatch.setattr(processes, "start_daemon", start)
    ended = hoptui("ls")
    assert (ended.code, ended.err, "hoptui demo" in ended.out) == (0, "", True)
    golden(hoptui.transcript())
    assert hoptui("ls", "--json") == (0, "[]\n", "")
    assert started == [daemon.where]


def test_a_daemon_just_started_gets_time_to_hear_from_its_runs(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.add(factories.run())
    silent = Vital(state="unresponsive", because=fact("state.not_connected"))
    daemon.vitals = {"abcd2345": silent}

    def answer(message: FromViewer) -> None:
        if isinstance(message, Fetch) and len(daemon.of(Fetch)) > 3:
            daemon.vitals = {"abcd2345": Vital(state="live", pulse_age_s=0.1)}

    daemon.answer = answer
    monkeypatch.setattr(processes, "start_daemon", lambda where: daemon.start())
    [run] = hoptui("ls", "--json").json
    assert run["state"] == "live"


def test_unknown_numbers_are_null(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    ppo.vitals = {}
    [run] = hoptui("ls", "--json").json
    assert run["state"] is None
    assert run["iteration"] is None
    assert hoptui("ls").out.startswith("– unknown")


def test_how_long_is_left_counts_evaluations_as_in_the_dashboard(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    vital, t, rows = ppo.vitals["abcd2345"], ppo.now - 400 * SECOND, []
    for step in range(vital.step - 99, vital.step + 1):
        t += 4 * SECOND if step % 10 == 5 else SECOND // 2
        rows.append((t, step, {"iteration_s": 0.5}))
    ppo.columns = [pack(RUN, rows)]
    ppo.vitals["abcd2345"] = structs.replace(vital, iteration_s=0.5, last_t=t)
    left = hoptui("status", "ppo", "--json").json["left_s"]
    assert left == pytest.approx((5000 - vital.step) * 0.85, rel=0.1)
    assert f" {duration(left)} to go" in hoptui("status", "ppo").out
    ppo.vitals["abcd2345"] = structs.replace(vital, state="unresponsive")
    assert hoptui("status", "ppo", "--json").json["left_s"] is None
    assert "to go" not in hoptui("status", "ppo").out


def test_a_run_whose_iterations_differ_shows_the_mean_of_them(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    """A rollout of 700 ms and four updates of 4 ms each."""
    vital, t, rows = ppo.vitals["abcd2345"], ppo.now - 60 * SECOND, []
    for step in range(vital.step - 79, vital.step + 1):
        spent = 0.704 if step % 4 == 0 else 0.004
        t += round(spent * SECOND)
        rows.append((t, step, {"iteration_s": spent}))
    ppo.columns = [pack(RUN, rows)]
    ppo.vitals["abcd2345"] = structs.replace(vital, iteration_s=0.004, last_t=t)
    found = re.search(r"(\d+) ms an iteration, 4.00 ms the median", hoptui("status", "ppo").out)
    assert found is not None
    assert float(found[1]) == pytest.approx(179, rel=0.1)
    even = [(ppo.now - SECOND // 250 * (79 - i), i, {"iteration_s": 0.004}) for i in range(80)]
    ppo.columns = [pack(RUN, even)]
    ppo.vitals["abcd2345"] = structs.replace(vital, iteration_s=0.004, last_t=ppo.now)
    assert ", 4.00 ms an iteration, " in hoptui("status", "ppo").out


def test_status(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    row = {"env_steps_per_s": 512_345.0, "loss": 0.183, "iteration_s": 2.0}
    phases = {"phase/rollout/env": 0.5, "phase/update": 0.8, "phase/rollout": 1.2}
    ppo.columns = [pack(RUN, [(ppo.now, 1204, row | phases)])]
    gain = Measured(gain=0.061, interval=0.012, detectable=True)
    ppo.commands = [factories.change(measured=gain)]
    ppo.events = [
        Event(seq=1, t=1, wall=2.0, kind="note", text="checkpoint\x1b[2J written", run="abcd2345"),
    ]
    ended = hoptui("status", "ppo")
    assert ended.code == 0
    assert "\x1b" not in ended.out
    golden(hoptui.transcript())


def test_status_tells_what_the_gpus_read_in_each_phase(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    update = PhaseReadings(phase="update", samples=24, readings={"sm_active": 71.2, "power_w": 512.4})
    ppo.vitals["abcd2345"] = structs.replace(ppo.vitals["abcd2345"], phases=(update,))
    ppo.columns.append(pack(RUN, [(ppo.now + 1, 1205, {"phase/rollout": 1.0, "phase/update": 0.8})]))
    assert "44 %  SM 71 %, 512 W (24 samples)" in hoptui("status", "ppo").out
    found = hoptui("status", "ppo", "--json").json
    assert found["gpu_by_phase"] == {"update": {"sm_active": 71.2, "power_w": 512.4, "samples": 24}}


def test_status_tells_what_happened_to_the_runs_gpus(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    ppo.add(factories.run("ffff6666", "lm", gpus=("GPU-a",)), Vital(state="live", step=7), {"loss": 0.5})
    ppo.events = [
        Event(seq=1, t=1, wall=3.0, kind="xid", text="Xid 79", source="gpu/GPU-a"),
        Event(seq=2, t=2, wall=4.0, kind="xid", text="a stranger's Xid", source="gpu/GPU-b"),
    ]
    assert [event["text"] for event in hoptui("status", "lm", "--json").json["events"]] == ["Xid 79"]
    out = hoptui("status", "lm").out
    assert "Xid 79" in out
    assert "stranger" not in out


@pytest.mark.parametrize("width", [80, 40])
def test_status_breaks_the_reasons_of_what_is_not_offered_between_words(
    hoptui: Hoptui, ppo: FakeDaemon, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    reasons = {"stop": " ".join(["interrupt the script itself"] * 10), "batch_size": "it is read once"}
    ppo.node = structs.replace(ppo.node, runs=(structs.replace(ppo.node.runs[0], declined=reasons),))
    if width != 80:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(width))
    shown = hoptui("status", "ppo").out.partition("not offered by the script\n")[2].split("\n\n")[0]
    lines = shown.splitlines()
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines if line[2] != " "] == ["stop", "batch_size"]
    assert " ".join(shown.split()) == " ".join(f"{name} {reason}" for name, reason in reasons.items())


def test_status_json(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    ppo.commands = [factories.change(), factories.change("c2", "else", seq=2)]
    found = hoptui("status", "abc", "--json").json
    assert found["total"] == 5000
    assert found["phases"] == {}
    assert found["exit"] is None
    assert [command["id"] for command in found["commands"]] == ["c1"]


def test_status_says_what_the_recording_lacks(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    lacks = "3 rows, events, commands or stack samples are missing"
    ppo.add(factories.run("eeee5555", "lossy", recording=lacks), Vital(state="live", step=7), {})
    assert f"recording: {lacks}" in hoptui("status", "lossy").out
    assert hoptui("status", "lossy", "--json").json["recording_problem"] == lacks
    assert hoptui("status", "ppo", "--json").json["recording_problem"] == ""


def test_an_exited_run_keeps_its_last_values(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    over = factories.run(
        "eeee5555", "old", exit_reason="exception", exit_detail="RuntimeError: no", exited_wall=1e6
    )
    ppo.add(over, Vital(state="exited", step=7), {"loss": 0.5})
    ended = hoptui("status", "old")
    assert (ended.code, over.exit_detail in ended.out) == (0, True)
    golden(hoptui.transcript())


def test_a_run_that_failed_shows_the_end_of_its_output(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    data = b"".join(b"line %d\n" % i for i in range(30)) + b"cuda \x1b[31merror\x1b[0m\n"
    part = OutputPart(stream="stderr", origin="file", source="a", path="/log", end=len(data), data=data)
    for run, reason in (("eeee5555", "killed"), ("ffff6666", "finished")):
        ppo.add(factories.run(run, run, exit_reason=reason, exited_wall=1e6), Vital(state="exited", step=7))
        ppo.outputs[run] = (part,)
    shown = hoptui("status", "eeee5555").out
    assert "the last lines of its output\n  line 21\n" in shown
    assert "  cuda error\n" in shown
    assert hoptui("status", "eeee5555", "--json").json["last_output"][-2:] == ["line 29", "cuda error"]
    assert "cuda error" not in hoptui("status", "ffff6666").out
    assert hoptui("status", "ffff6666", "--json").json["last_output"] is None
    ppo.outputs.clear()
    assert hoptui("status", "eeee5555", "--json").json["last_output"] == []


def test_a_run_that_is_not_there(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    for words in (
        ("status",),
        ("watch",),
        ("get",),
        ("set", "lr=1"),
        ("pause",),
        ("resume",),
        ("checkpoint",),
    ):
        ended = hoptui(words[0], "nope", *words[1:])
        assert (ended.code, ended.out) == (3, "")
    golden(hoptui.transcript())


def test_where_no_run_lives_it_is_told_where_to_look(
    hoptui: Hoptui, daemon: FakeDaemon, golden: Golden
) -> None:
    daemon.start()
    ended = hoptui("status", "nope")
    assert (ended.code, "hoptui ls --all" in ended.err) == (3, True)
    golden(hoptui.transcript())


def test_two_runs_of_one_name(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    ppo.add(factories.run("eeee5555", "ppo", pid=9))
    assert hoptui("status", "ppo").code == 3
    golden(hoptui.transcript())


def test_no_daemon_possible_is_one_sentence(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = "the daemon could not be started: no space left"

    def fail(where: object) -> None:
        raise processes.StartError(problem)

    monkeypatch.setattr(processes, "start_daemon", fail)
    assert hoptui("status", "ppo") == (3, "", f"hoptui: {problem}\n")


class Ending:
    """Feeds three rows and then ends the run, one Fetch at a time."""

    def __init__(self, daemon: FakeDaemon) -> None:
        self.daemon = daemon
        self.turns = 0

    def __call__(self, message: FromViewer) -> list[ToViewer] | None:
        if isinstance(message, Fetch) and not message.latest:
            self.turns += 1
            daemon, n = self.daemon, min(self.turns, 3)
            rows = [
                (daemon.now + i * SECOND // 2, 1204 + i, {"loss": 1.0 / i, "x": 2.0}) for i in range(1, n + 1)
            ]
            daemon.columns = [pack(RUN, rows)]
            if self.turns > 3:
                daemon.node = daemon.node.__class__(
                    **{f: getattr(daemon.node, f) for f in daemon.node.__struct_fields__ if f != "runs"},
                    runs=(factories.run(exit_reason="finished", epoch=2),),
                )
        return None


def test_watch_streams_rows_until_the_run_ends(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    ppo.answer = Ending(ppo)
    ended = hoptui("watch", "ppo", "--every", "0")
    assert ended.code == 0
    golden(hoptui.transcript())


def test_watch_json_prints_at_most_one_row_in_so_many_seconds(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    ppo.answer = Ending(ppo)
    rows = [json.loads(line) for line in hoptui("watch", "ppo", "--json", "--every", "1").out.splitlines()]
    assert [row["iteration"] for row in rows] == [1205, 1207]
    assert rows[0]["metrics"] == {"loss": 1.0, "x": 2.0}
    assert rows[0]["time"] == 1_000_000 + 2000.5


def test_watch_of_a_run_that_is_over_ends_at_once(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    over = factories.run("eeee5555", "old", exit_reason="finished")
    ppo.add(over, Vital(state="exited", step=7, last_t=1), {"loss": 0.5})
    assert hoptui("watch", "old").code == 0
    golden(hoptui.transcript())


def test_every_must_be_a_time(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    for bad in ("nan", "-1", "inf"):
        assert hoptui("watch", "ppo", f"--every={bad}").code == 2


def test_a_daemon_that_hangs_is_one_sentence(
    hoptui: Hoptui, ppo: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr("hoptui.cli.support.snapshot.ANSWER_S", 0.2)
    ppo.answer = lambda message: [] if isinstance(message, Fetch | Query) else None
    assert hoptui("ls").code == 3
    golden(hoptui.transcript())


def test_a_problem_of_history_is_shown_with_the_runs(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    assert hoptui("ls").err == ""
    ppo.node = structs.replace(ppo.node, history="the thread has ended\x1b[31m")
    for words in (("ls",), ("ls", "--all")):
        ended = hoptui(*words)
        assert ended.code == 0
        assert "history: the thread has ended" in ended.err
        assert "\x1b" not in ended.err
