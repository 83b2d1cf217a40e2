"""Daemon, runs and viewers of the newest and of the previous release understand each other."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from hoptui.node import processes
from tests.compat.conftest import MixedNode, Release
from tests.conftest import until
from tests.tui.test_terminal import MOUSE_OFF, Screen

pytestmark = pytest.mark.slow

MIXES = [
    ("previous", "newest", "newest"),
    ("newest", "previous", "newest"),
    ("newest", "newest", "previous"),
]
"""Daemon, run and viewer. Any two of them meet in each mix; two of the previous release met before."""
IDS = ["-".join(mix) for mix in MIXES]


@pytest.mark.guarantee("other-release")
@pytest.mark.parametrize(("daemon", "run", "viewer"), MIXES, ids=IDS)
def test_a_run_is_seen_and_steered_from_start_to_end(
    mixed: MixedNode, daemon: Release, run: Release, viewer: Release
) -> None:
    pid = mixed.daemon(daemon)
    training = mixed.run(run)
    until(lambda: [r for r in mixed.json(viewer, "ls") if r["iteration"]], what="the run")
    [seen] = mixed.json(viewer, "ls")
    assert (seen["name"], seen["state"], seen["pid"]) == ("toy", "live", training.pid)

    mixed.done(viewer, "set", "toy", "grad_accum=8", "lr=1e-3", "--why", "faster")
    knobs = mixed.json(viewer, "get", "toy")["knobs"]
    assert (knobs["grad_accum"]["value"], knobs["lr"]["value"]) == (8, 1e-3)
    assert mixed.hoptui(viewer, "set", "toy", "grad_accum=2", "--expect", "0").returncode == 1
    mixed.done(viewer, "checkpoint", "toy")
    mixed.done(viewer, "pause", "toy")
    until(lambda: mixed.json(viewer, "status", "toy")["state"] == "paused", what="the pause")
    mixed.done(viewer, "resume", "toy")
    mixed.done(viewer, "stop", "toy", "-y")
    iterations = mixed.ended(training, run)
    assert processes.lock_holder(mixed.node.where) == pid, "no other daemon has come"

    given = [(c["verb"], c["knob"], c["effective"], c["stage"]) for c in mixed.json(viewer, "history", "toy")]
    assert given == [
        ("set", "grad_accum", 8, "applied"),
        ("set", "lr", 1e-3, "applied"),
        ("set", "grad_accum", None, "rejected"),
        ("checkpoint", "", None, "applied"),
        ("pause", "", None, "applied"),
        ("resume", "", None, "applied"),
        ("stop", "", None, "applied"),
    ]
    mixed.done(viewer, "daemon", "stop")
    readers: tuple[Release, Release] = ("newest", "previous")
    exported = [lines(mixed, reader) for reader in readers]
    for reader, found in zip(readers, exported, strict=True):
        rows = [line for line in found if line["type"] == "row" and line["source"] == f"run/{seen['run']}"]
        assert [row["step"] for row in rows] == list(range(iterations))
        assert [(c["verb"], c["knob"], c["effective"], c["stage"]) for c in of(found, "command")] == given
        assert "warm" in mixed.done(reader, "report", "toy")
        [kept] = mixed.json(reader, "ls", "--all")
        assert (kept["exit"]["reason"], kept["problem"]) == ("stopped", "")
    assert of(exported[0], "row") == of(exported[1], "row")


def lines(mixed: MixedNode, reader: Release) -> list[dict[str, Any]]:
    """The recording of the run, as a release exports it."""
    return [
        json.loads(line) for line in mixed.done(reader, "export", "toy", "--format", "jsonl").splitlines()
    ]


def of(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in found if line["type"] == kind]


DASHBOARD = """
import sys
from hoptui.__main__ import main
sys.argv = ["hoptui", "attach", "toy"]
sys.exit(main())
"""


@pytest.mark.guarantee("other-release")
@pytest.mark.parametrize(("daemon", "viewer"), [("newest", "previous"), ("previous", "newest")])
def test_a_dashboard_shows_a_run(
    mixed: MixedNode, daemon: Release, viewer: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed.daemon(daemon)
    mixed.run(daemon)
    until(lambda: [r for r in mixed.json(daemon, "ls") if r["iteration"]], what="the run")
    for name, value in mixed.environment(viewer).items():
        monkeypatch.setenv(name, value)
    screen = Screen(mixed.node.where.directory, script=DASHBOARD)
    try:
        for text in (b"toy", b"grad_accum", b"samples/s", b"update"):
            screen.until(text)
        screen.press(b"q", re.escape(MOUSE_OFF))
        assert screen.ended() == 0
    finally:
        screen.close()


@pytest.mark.guarantee("other-release")
@pytest.mark.parametrize("first", ["newest", "previous"])
def test_a_daemon_of_the_other_release_takes_over(mixed: MixedNode, first: Release) -> None:
    second: Release = "previous" if first == "newest" else "newest"
    before = mixed.daemon(first)
    training = mixed.run("newest")
    until(lambda: [r for r in mixed.json("newest", "ls") if r["iteration"]], what="the run")
    mixed.done("newest", "set", "toy", "grad_accum=8")
    mixed.done(first, "daemon", "stop")  # the run is told not to start another one
    after = mixed.daemon(second)
    assert after != before
    until(lambda: [r["state"] for r in mixed.json(second, "ls")] == ["live"], what="the run, again")
    mixed.done(second, "set", "toy", "lr=1e-3")
    mixed.done(second, "stop", "toy", "-y")
    iterations = mixed.ended(training, "newest")
    mixed.done(second, "daemon", "stop")
    rows = [line for line in of(lines(mixed, second), "row") if line["source"].startswith("run/")]
    assert [row["step"] for row in rows] == list(range(iterations))
    given = [(c["knob"], c["effective"]) for c in of(lines(mixed, second), "command")]
    assert given == [("grad_accum", 8), ("lr", 1e-3), ("", None)]
