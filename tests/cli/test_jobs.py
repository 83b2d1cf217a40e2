"""A run on several nodes on the command line: its size, spread, findings, and where a rank is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hoptui.cli import launcher
from hoptui.cli.agent import observation
from hoptui.domain.columns import pack as pack_rows
from hoptui.domain.diagnosis import Diagnosis
from hoptui.domain.jobs import HeadReports
from hoptui.domain.stacks import Stack, StackFrame, pack
from hoptui.domain.targets import Target, TargetState
from hoptui.domain.tuning import TunerState
from hoptui.protocol.messages import RankStacks
from hoptui.tui import replay_app
from screenshots.made_up_job import state
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.factories import SECOND
from tests.golden import Golden
from tests.model.node_recordings import write_node

RUN = "abcd2345"
READ: Stack = (StackFrame("/job/data.py", "read", 37),)


@pytest.fixture
def job(ppo: FakeDaemon) -> FakeDaemon:
    """`ppo` runs on ten nodes with two ranks each; this is the first node."""
    runs = [structs.replace(run, world=20) if run.run == RUN else run for run in ppo.node.runs]
    ppo.node = structs.replace(ppo.node, runs=tuple(runs))
    ppo.jobs[RUN] = state(10, 2, 100.0, run=RUN)
    return ppo


def test_status_has_the_spread_what_differs_and_silent_nodes(
    hoptui: Hoptui, job: FakeDaemon, golden: Golden
) -> None:
    assert hoptui("status", "ppo").code == 0
    assert hoptui("ls").code == 0
    assert hoptui("ls", "--all").code == 0
    golden(hoptui.transcript())


def test_json_has_the_job(hoptui: Hoptui, job: FakeDaemon) -> None:
    found = hoptui("status", "ppo", "--json").json["job"]
    assert found["world"] == 20
    assert found["conditions"] == {"live": 8, "silent": 1, "missing": 1}
    assert [node["condition"] for node in found["nodes"]][7:] == ["live", "silent", "missing"]
    assert found["nodes"][8]["ranks"] == [16, 17]
    assert found["spread"]["own_s"]["highest"]["rank"] == 13
    assert found["totals"]["gpus"] == 16
    assert "job.own_time" in [one["code"] for one in found["findings"]]
    listed = next(one for one in hoptui("ls", "--json").json if one["run"] == RUN)["job"]
    assert listed == {key: found[key] for key in ("world", "conditions", "findings")}


AWAY = HeadReports(
    host="gpu00",
    diagnosis=Diagnosis(verdict="data-bound", confidence=0.9),
    targets=(TargetState(target=Target(reading="busy", value=90.0), standing="missed", mean=71.0),),
    since=5 * SECOND,
    left_out={"events": 12, "commands": 1},
)


def without_rank_0(job: FakeDaemon, head: HeadReports | None, **fields: Any) -> None:
    """This is the second node."""
    fields |= {"rank": 2, "head": head}
    runs = [structs.replace(run, **fields) if run.run == RUN else run for run in job.node.runs]
    job.node = structs.replace(job.node, runs=tuple(runs))
    job.jobs[RUN] = structs.replace(job.jobs[RUN], here=1)
    job.columns.append(pack_rows(f"head/{RUN}", [(job.now, 9, {"val_loss": 0.5})]))


def test_status_shows_what_the_head_says_and_what_it_alone_knows(hoptui: Hoptui, job: FakeDaemon) -> None:
    without_rank_0(job, AWAY)
    out = hoptui("status", "ppo").out
    assert "val_loss" in out
    assert "rank 0 is on gpu00; metrics and the tuner above are what it reports" in out
    assert "gpu00: data-bound" in out
    assert "busy ≥ 90 %" in out
    assert "gpu00 alone knows 12 events, 1 command and metrics before " in out
    found = hoptui("status", "ppo", "--json").json
    assert found["metrics"]["val_loss"] == 0.5
    assert found["head"]["known"] is True
    assert (found["head"]["host"], found["head"]["metrics"]) == ("gpu00", ["val_loss"])
    assert found["head"]["left_out"] == {"events": 12, "commands": 1}
    assert found["head"]["diagnosis"]["verdict"] == "data-bound"
    assert [one["standing"] for one in found["head"]["targets"]] == ["missed"]
    assert found["head"]["since"] == pytest.approx((job.node.wall_offset_ns + 5 * SECOND) / 1e9)
    assert hoptui("target", "ppo", "--json").json["head"][0]["reading"] == "busy"
    assert "on gpu00, for its GPUs" in hoptui("target", "ppo").out


@pytest.mark.parametrize("age_s", [40.0, 1.0])
def test_what_a_silent_head_has_said_has_its_age(hoptui: Hoptui, job: FakeDaemon, age_s: float) -> None:
    without_rank_0(job, AWAY, tuner=TunerState(stand="holding", started=1), headline="val_loss")
    job.vitals[RUN] = structs.replace(job.vitals[RUN], head_age_s=age_s)
    old, said = age_s == 40.0, "as of 40 s ago"
    shown = hoptui("status", "ppo").out
    lines = {
        start: next(line for line in shown.splitlines() if start in line)
        for start in ("metrics and the tuner above", "gpu00: data-bound", "gpu00 alone knows")
    }
    lines["tuner"] = shown.partition("the tuner\n")[2].splitlines()[0]
    lines["tune"] = hoptui("tune", "ppo", "--status").out.splitlines()[0]
    lines["report"] = hoptui("tune", "ppo", "--report").out.splitlines()[0]
    lines["target"] = hoptui("target", "ppo").out
    assert {name: said in line for name, line in lines.items()} == dict.fromkeys(lines, old)
    assert ("0.5" in hoptui("ls").out) != old, "a list has no room for the age"
    assert ("0.500 val_loss" in shown.splitlines()[2]) != old
    found = hoptui("status", "ppo", "--json").json
    assert (found["head"]["age_s"], found["head"]["stale"]) == (age_s, old)
    [listed] = [one for one in hoptui("ls", "--json").json if one["run"] == RUN]
    for one in (
        listed,
        hoptui("tune", "ppo", "--status", "--json").json,
        hoptui("target", "ppo", "--json").json,
    ):
        assert (one["head_age_s"], one["head_stale"]) == (age_s, old)
    brief = observation.status("ppo")
    assert brief["tuner"] == (None if old else "holding")
    assert ("val_loss" not in brief["metrics"] and brief["throughput"]["value"] is None) == old
    assert hoptui("wait", "ppo", "--for", "tuner", "--timeout", "0").code == (3 if old else 0)


def test_a_record_of_the_head_that_is_not_valid_is_told(hoptui: Hoptui, job: FakeDaemon) -> None:
    without_rank_0(job, AWAY)
    job.jobs[RUN] = structs.replace(job.jobs[RUN], head_problem="a record is damaged")
    assert "what gpu00 says cannot be read: a record is damaged" in hoptui("status", "ppo").out
    assert hoptui("status", "ppo", "--json").json["job"]["head_problem"] == "a record is damaged"


def test_what_an_older_head_does_not_say_is_unknown(hoptui: Hoptui, job: FakeDaemon) -> None:
    without_rank_0(job, None)
    assert "what the node of rank 0 says of the run is not known on this node" in hoptui("status", "ppo").out
    found = hoptui("status", "ppo", "--json").json["head"]
    assert (found["known"], found["host"], found["since"], found["left_out"]) == (False, None, None, None)
    ended = hoptui("tune", "ppo", "--status")
    assert (ended.code, ended.out) == (3, "")
    assert "not known on this node" in ended.err


def test_the_node_of_rank_0_has_no_other_head(hoptui: Hoptui, job: FakeDaemon) -> None:
    assert hoptui("status", "ppo", "--json").json["head"] is None
    assert "rank 0 is on" not in hoptui("status", "ppo").out


def test_the_report_of_the_tuner_is_not_made_of_some_of_its_trials(hoptui: Hoptui, job: FakeDaemon) -> None:
    without_rank_0(job, structs.replace(AWAY, left_out={"trials": 3}), tuner=TunerState(stand="holding"))
    ended = hoptui("tune", "ppo", "--report")
    assert (ended.code, ended.out) == (3, "")
    assert "gpu00 alone knows 3 trials of the tuner" in ended.err
    assert hoptui("tune", "ppo", "--status").code == 0


def test_a_run_on_one_node_has_no_job(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    assert hoptui("status", "ppo", "--json").json["job"] is None
    assert "on all nodes" not in hoptui("status", "ppo").out


@pytest.mark.parametrize("command", ["where", "stack"])
def test_a_rank_of_another_node_is_seen_there(hoptui: Hoptui, job: FakeDaemon, command: str) -> None:
    ended = hoptui(command, "ppo", "--rank", "5")
    assert ended.code == 3
    assert f"rank 5 is on gpu02: ssh gpu02 hoptui {command} ppo --rank 5" in ended.err
    silent = hoptui(command, "ppo", "--rank", "16")
    assert "rank 16 is on gpu08, which has been silent for 1 m 28 s" in silent.err
    assert "gpu" not in hoptui(command, "ppo", "--rank", "99").err


def test_rank_0_is_not_another_one_where_it_is_on_another_node(hoptui: Hoptui, job: FakeDaemon) -> None:
    """Rank 2 represents the run on the second node. It is shown only without a number."""
    runs = [structs.replace(run, rank=2) if run.run == RUN else run for run in job.node.runs]
    job.node = structs.replace(job.node, runs=tuple(runs))
    job.jobs[RUN] = structs.replace(job.jobs[RUN], here=1)
    samples = pack({READ: 20}, 1, 2_000_000_001)
    job.stacks[RUN] = (RankStacks(rank=2, samples=samples),)
    asked = hoptui("where", "ppo", "--rank", "0")
    assert (asked.code, asked.out) == (3, "")
    assert "rank 0 is on gpu00: ssh gpu00 hoptui where ppo --rank 0" in asked.err
    assert hoptui("where", "ppo", "--rank", "0", "--json").code == 3
    assert hoptui("where", "ppo", "--json").json["rank"] == 2
    assert hoptui("where", "ppo", "--rank", "2", "--json").json["rank"] == 2
    assert hoptui("stack", "ppo", "--rank", "2").code == 0
    assert "not known on this node" not in hoptui("stack", "ppo", "--rank", "2").out
    assert "not known on this node" in hoptui("stack", "ppo").out


def test_ranks_elsewhere_that_wait_are_one_group(hoptui: Hoptui, job: FakeDaemon) -> None:
    """As in a hung run: rank 5 is the odd one. Those that wait have no line, as that is one that does not."""
    found, nodes = job.jobs[RUN], []
    for node in found.nodes:
        summary = node.summary
        if summary is not None:
            waits = tuple(
                structs.replace(each, waiting=1.0, line="", kind="", line_share=None)
                if each.rank != 5
                else structs.replace(each, waiting=0.0)
                for each in summary.ranks
            )
            node = structs.replace(node, summary=structs.replace(summary, ranks=waits))
        nodes.append(node)
    job.jobs[RUN] = structs.replace(found, nodes=tuple(nodes))
    shown = hoptui("stack", "ppo").out
    assert "rank 5 on gpu02 is most in" in shown
    assert "15 ranks on 8 other nodes mostly wait for other ranks" in shown
    assert "sent no stack samples" not in shown


def test_the_rate_of_rank_0_has_its_unit(hoptui: Hoptui, job: FakeDaemon) -> None:
    """The run declares no headline, and its first rate counts."""
    runs = [structs.replace(run, headline="", units={}) if run.run == RUN else run for run in job.node.runs]
    job.node = structs.replace(job.node, runs=tuple(runs))
    assert "rank 0 reports 781 k env steps/s" in hoptui("status", "ppo").out


def test_a_name_that_is_no_host_is_in_no_command(hoptui: Hoptui, job: FakeDaemon) -> None:
    found = job.jobs[RUN]
    node = found.nodes[2]
    assert node.summary is not None
    evil = structs.replace(node, summary=structs.replace(node.summary, host="-oProxyCommand=x"))
    job.jobs[RUN] = structs.replace(found, nodes=(*found.nodes[:2], evil, *found.nodes[3:]))
    ended = hoptui("where", "ppo", "--rank", "5")
    assert "rank 5 is on -oProxyCommand=x" in ended.err
    assert "ssh" not in ended.err


def test_stacks_name_the_lines_of_ranks_on_other_nodes(hoptui: Hoptui, job: FakeDaemon) -> None:
    ended = hoptui("stack", "ppo")
    assert "rank 13 on gpu06 is most in data.py:37 augment" in ended.out
    assert "15 ranks on 8 other nodes are most in train.py:120 step" in ended.out
    found = hoptui("stack", "ppo", "--json").json["elsewhere"]
    assert [one["rank"] for one in found] == list(range(2, 18))
    assert found[-1] == {
        "rank": 17, "host": "gpu08", "condition": "silent", "kind": "compute", "line": "train.py:120 step",
        "share": 0.81, "waiting": pytest.approx(0.437, abs=0.001),
    }  # fmt: skip


def test_a_replay_joins_only_recordings_of_one_run(
    hoptui: Hoptui, ppo: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_drawable", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    one = write_node(tmp_path / "a.hoptui", 0)
    other = write_node(tmp_path / "b.hoptui", 1, run="job02")
    ended = hoptui("replay", str(one), str(other))
    assert ended.code == 2
    assert "only recordings of one run are joined" in ended.err
    shown: list[tuple[str, ...]] = []

    def play(*paths: str, config: object) -> int:
        shown.append(paths)
        return 0

    monkeypatch.setattr(replay_app, "replay", play)
    same = write_node(tmp_path / "c.hoptui", 1)
    assert hoptui("replay", str(one), str(same)).code == 0
    assert shown == [(str(one), str(same))]
    assert hoptui("replay", "--example", "ppo-h200", str(one)).code == 2
