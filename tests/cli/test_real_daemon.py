"""The commands against a real daemon and a real run, once from end to end."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Hoptui
from tests.conftest import TestNode, until
from tests.golden import Golden


def test_a_run_from_start_to_end(hoptui: Hoptui, node: TestNode, golden: Golden) -> None:
    script = node.start()
    until(lambda: [run for run in hoptui("ls", "--json").json if run["iteration"]])
    [run] = hoptui("ls", "--json").json
    assert (run["name"], run["state"], run["pid"]) == ("toy", "live", script.pid)
    ended = hoptui("set", "toy", "grad_accum=8", "lr=1e-3", "--why", "faster")
    assert ended.code == 0
    assert hoptui("get", "toy", "--json").json["knobs"]["grad_accum"]["value"] == 8
    assert hoptui("set", "toy", "grad_accum=2", "--expect", "0").code == 1
    assert hoptui("set", "toy", "grad_accum=2", "--expect", "1").code == 0
    assert hoptui("checkpoint", "toy").code == 1
    golden(hoptui.transcript(), normalize={r"(iteration )\d+": r"\1N", r"\w+ \(pid \d+\)": "USER (pid PID)"})
    assert hoptui("pause", "toy").code == 0
    until(lambda: hoptui("status", "toy", "--json").json["state"] == "paused")
    assert hoptui("resume", "toy").code == 0
    assert hoptui("stop", "toy", "-y").code == 0
    ended = hoptui("watch", "toy", "--json")
    assert ended.code == 0
    assert "exited: stopped" in ended.err
    assert all(json.loads(line)["run"] == run["run"] for line in ended.out.splitlines())
    assert script.wait(10) == 0

    told = hoptui("history", "toy", "--json").json
    outcomes = [(c["verb"], c["knob"], c["effective"], c["stage"]) for c in told]
    assert outcomes == [
        ("set", "grad_accum", 8, "applied"),
        ("set", "lr", 1e-3, "applied"),
        ("set", "grad_accum", None, "rejected"),
        ("set", "grad_accum", 2, "applied"),
        ("checkpoint", "", None, "rejected"),
        ("pause", "", None, "applied"),
        ("resume", "", None, "applied"),
        ("stop", "", None, "applied"),
    ]
    [kept] = hoptui("ls", "--all", "--json").json
    assert (kept["state"], kept["exit"]["reason"], kept["problem"]) == ("exited", "stopped", "")
    assert 0 < kept["size_bytes"] < 10 << 20
    lines = [json.loads(line) for line in hoptui("export", "toy", "--format", "jsonl").out.splitlines()]
    types = {line["type"] for line in lines}
    assert types - {"stacks"} == {"run", "row", "event", "command"}  # only a run of some seconds has stacks
    last = max(
        line["step"] for line in lines if line["type"] == "row" and line["source"] == f"run/{run['run']}"
    )
    assert kept["iteration"] == last + 1
    [exited] = [line for line in lines if line.get("code") == "run.exited"]
    assert exited["step"] == last + 1
    assert hoptui("daemon", "stop").code == 0
    assert not node.daemon_pid()
    assert [c["id"] for c in hoptui("history", "toy", "--json").json] == [c["id"] for c in told]
    assert hoptui("rm", "toy", "--yes").code == 0
    assert not Path(kept["recording"]).exists()
    checks = {check["id"]: check["status"] for check in hoptui("doctor", "--json").json["checks"]}
    assert "failed" not in checks.values()
    assert (checks["sockets"], checks["sampler"], checks["recordings"]) == ("ok", "ok", "ok")
