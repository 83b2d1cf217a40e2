"""A run on several nodes on the command line: its size, spread, findings, and where a rank is."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from hoptui.cli import launcher
from hoptui.tui import replay_app
from screenshots.made_up_job import state
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.golden import Golden
from tests.model.node_recordings import write_node

RUN = "abcd2345"


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
        "share": 0.81,
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
