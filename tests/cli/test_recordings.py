"""`ls --all`, `rm`, `replay`, `attach FILE`, and how recordings are named."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from hoptui.cli import launcher
from hoptui.cli.commands import rm
from hoptui.cli.support.recordings import size
from hoptui.domain.columns import pack
from hoptui.node import processes
from hoptui.protocol.messages import RunState
from hoptui.recording import Recording, RecordingError
from hoptui.recording.ingest import Boot
from hoptui.recording.library import KnownRun
from hoptui.settings import Config
from hoptui.tui import replay_app
from tests import factories
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.factories import SECOND
from tests.golden import Golden

DAY = 86400.0
VARYING = {r" +(?=[\d.]+ KiB|\d+ [sd] )": "  ", r"[\d.]+ KiB": "SIZE", r"\d+ s ago": "NOW"}
"""What a golden text has for the size of a file and the age of a recording that the test has made."""


def record(daemon: FakeDaemon, run: RunState, *, days_old: float = 0.0) -> Path:
    """A recording of a run on this node's shelf."""
    path = daemon.where.recording(run.run)
    offset = time.time_ns() - int(days_old * DAY * SECOND) - 10 * SECOND
    with Recording.create(path, boot=Boot("then", offset, 0)) as recording:
        recording.remember("run", msgspec.json.encode(KnownRun(state=run, nonce="n", process_started=1)))
        recording.append(pack(f"run/{run.run}", [(i * SECOND, i, {"loss": 1 / i}) for i in range(1, 11)]))
        recording.command(factories.change("c1", run.run, t=3 * SECOND))
    return path


def over(run: str, name: str, **fields: object) -> RunState:
    return factories.run(run, name, **({"exit_reason": "finished", "pid": 1} | fields))


def files(daemon: FakeDaemon) -> set[str]:
    return {path.name for path in daemon.where.state.iterdir() if path.suffix == ".hoptui"}


# ls --all ---------------------------------------------------------------------------------------------------


def test_ls_all_adds_recordings(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    mine = record(ppo, factories.run())
    record(ppo, over("eeee5555", "old", exit_reason="exception", exit_detail="ValueError: no"), days_old=2)
    (ppo.where.state / "ffff6666.hoptui").write_bytes(b"not a database at all" * 100)
    told = {run["run"]: run for run in hoptui("ls", "--all", "--json").json}
    assert set(told) == {"abcd2345", "eeee5555", "ffff6666"}
    live = told["abcd2345"]
    assert (live["state"], live["recording"], live["exit"]) == ("live", str(mine), None)
    assert live["size_bytes"] >= mine.stat().st_size
    assert live["metrics"]["loss"] == 0.183
    old = told["eeee5555"]
    assert (old["name"], old["state"], old["exit"]["reason"]) == ("old", "exited", "exception")
    assert old["iteration"] is None
    assert told["ffff6666"]["name"] is None
    assert "ffff6666.hoptui" in told["ffff6666"]["problem"]
    lines = hoptui("ls", "--all").out.splitlines()
    assert len(lines) == 3
    assert "2 d 0 h ago" in next(line for line in lines if "eeee5555" in line)
    golden(hoptui.transcript(), normalize=VARYING)


def test_ls_all_says_how_much_a_recording_lacks(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    with Recording.create(record(ppo, over("eeee5555", "lossy"))) as recording:
        recording.lose(3)
    lacks = "3 rows, events, commands or stack samples are missing"
    [line] = [line for line in hoptui("ls", "--all").out.splitlines() if "eeee5555" in line]
    assert line.endswith(f"finished; {lacks}")


def test_ls_all_without_a_daemon(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    problem = "the daemon could not be started: no disk"

    def fail(where: object) -> None:
        raise processes.StartError(problem)

    monkeypatch.setattr(processes, "start_daemon", fail)
    record(daemon, over("eeee5555", "old"))
    ended = hoptui("ls", "--all")
    assert ended.code == 0
    assert ended.out.startswith("✕ exited  old  eeee5555")
    assert problem in ended.err
    golden(ended.err)
    assert [run["run"] for run in hoptui("ls", "--all", "--json").json] == ["eeee5555"]


def test_ls_all_of_nothing(hoptui: Hoptui, daemon: FakeDaemon, golden: Golden) -> None:
    daemon.start()
    assert hoptui("ls", "--all").code == 0
    golden(hoptui.transcript())
    assert hoptui("ls", "--all", "--json").json == []


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (340 << 20, "340 MiB"),
        (10e9, "9.3 GiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_sizes(count: float, shown: str) -> None:
    assert size(count) == shown


# rm ---------------------------------------------------------------------------------------------------------


def test_rm_deletes_what_is_named(hoptui: Hoptui, daemon: FakeDaemon, golden: Golden) -> None:
    record(daemon, over("eeee5555", "old"))
    record(daemon, over("ffff6666", "older"))
    ended = hoptui("rm", "old", "--yes")
    assert ended.code == 0
    golden(hoptui.transcript(), normalize=VARYING)
    assert files(daemon) == {"ffff6666.hoptui"}
    assert hoptui("rm", "ffff6666", "-y").code == 0
    assert list(daemon.where.state.iterdir()) == []  # nor a -wal or -shm


def test_rm_deletes_nothing_where_this_is_read_only(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    record(daemon, over("eeee5555", "old"))
    monkeypatch.setenv("HOPTUI_READ_ONLY", "1")
    assert hoptui("rm", "old", "--yes").code == 1
    golden(hoptui.transcript())
    assert files(daemon) == {"eeee5555.hoptui"}
    assert hoptui("rm", "old", "--dry-run").code == 0


def test_rm_takes_no_beginning_of_an_id_unasked(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(daemon, over("eeee5555", "old"))
    assert hoptui("rm", "eeee", "--yes").code == 3
    monkeypatch.setattr(rm, "interactive", lambda: True)
    monkeypatch.setattr(rm, "agreed", lambda question: True)
    assert hoptui("rm", "eee").code == 3
    assert files(daemon) == {"eeee5555.hoptui"}
    assert hoptui("rm", "eeee").code == 0
    assert files(daemon) == set()


def test_rm_older_than(hoptui: Hoptui, daemon: FakeDaemon, golden: Golden) -> None:
    record(daemon, over("eeee5555", "old"), days_old=8)
    record(daemon, over("ffff6666", "new"), days_old=6)
    record(daemon, factories.run("dddd4444", "alive", pid=os.getpid()), days_old=9)
    ended = hoptui("rm", "--older-than", "7d", "--dry-run")
    assert ended.code == 0
    assert "eeee5555" in ended.out
    assert not {"ffff6666", "dddd4444"} & set(ended.out.split())
    assert len(files(daemon)) == 3
    assert hoptui("rm", "--older-than", "1w", "--yes").code == 0
    assert files(daemon) == {"ffff6666.hoptui", "dddd4444.hoptui"}
    assert hoptui("rm", "--older-than", "7d", "--yes").code == 0
    golden(hoptui.transcript(), normalize=VARYING)


def test_rm_refuses_live_runs(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    """All or nothing: the other one stays too."""
    record(
        ppo, factories.run(exit_reason="stopped", pid=1)
    )  # the recording is behind: the daemon knows better
    record(ppo, over("eeee5555", "old"))
    ended = hoptui("rm", "old", "ppo", "--yes")
    assert ended.code == 1
    assert len(files(ppo)) == 2
    golden(hoptui.transcript())


def test_rm_without_a_daemon_believes_the_process(hoptui: Hoptui, daemon: FakeDaemon) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as child:
        child.wait(10)
        gone = child.pid
    record(daemon, factories.run("dddd4444", "alive", pid=os.getpid()))
    record(daemon, factories.run("cccc3333", "killed", pid=gone))
    assert hoptui("rm", "alive", "--yes").code == 1
    assert hoptui("rm", "killed", "--yes").code == 0
    assert files(daemon) == {"dddd4444.hoptui"}


def test_rm_asks(hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    record(daemon, over("eeee5555", "old"))
    ended = hoptui("rm", "old")
    assert (ended.code, "--yes" in ended.err) == (2, True)
    asked: list[str] = []

    def no(question: str) -> bool:
        asked.append(question)
        return False

    monkeypatch.setattr(rm, "interactive", lambda: True)
    monkeypatch.setattr(rm, "agreed", no)
    assert hoptui("rm", "old").code == 1
    golden(f"{hoptui.transcript()}asked: {asked[0]}\n", normalize=VARYING)
    assert files(daemon) == {"eeee5555.hoptui"}
    monkeypatch.setattr(rm, "agreed", lambda question: True)
    assert hoptui("rm", "old").code == 0
    assert files(daemon) == set()


def test_rm_wrong_words(hoptui: Hoptui, daemon: FakeDaemon, golden: Golden) -> None:
    record(daemon, over("eeee5555", "twin"))
    record(daemon, over("ffff6666", "twin"))
    for words, code in (("", 2), ("--older-than soon", 2), ("nope", 3), ("twin", 3)):
        ended = hoptui("rm", *words.split(), "--yes")
        assert (ended.code, ended.out) == (code, "")
        assert len(files(daemon)) == 2
    golden(hoptui.transcript(), normalize=VARYING)


# replay -----------------------------------------------------------------------------------------------------


def test_a_replay_needs_a_terminal(hoptui: Hoptui, daemon: FakeDaemon, golden: Golden) -> None:
    for words in (("replay", "old"), ("attach", "x.hoptui"), ("attach", "./x")):
        ended = hoptui(*words)
        assert (ended.code, ended.out) == (2, "")
        assert "hoptui export" in ended.err
    golden(hoptui.transcript())


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool, bool]]:
    """What the dashboard was asked to replay, on what looks like a terminal."""
    seen: list[tuple[str, bool, bool]] = []

    def play(path: str, *, config: Config) -> int:
        Recording.open(Path(path)).close()
        seen.append((path, config.ascii, config.mouse))
        return 0

    monkeypatch.setattr(launcher, "interactive", lambda: True)
    monkeypatch.setattr(replay_app, "replay", play)
    return seen


def test_replay_by_name_id_and_file(
    hoptui: Hoptui, daemon: FakeDaemon, replayed: list[tuple[str, bool, bool]]
) -> None:
    path = str(record(daemon, over("eeee5555", "old")))
    for words in (
        ("replay", "old"),
        ("replay", "eee", "--ascii", "--no-mouse"),
        ("replay", path),
        ("attach", path),
    ):
        assert hoptui(*words) == (0, "", "")
    assert replayed == [(path, False, True), (path, True, False), (path, False, True), (path, False, True)]


def test_a_file_of_this_directory_needs_no_ending_and_gives_way_to_a_run(
    hoptui: Hoptui,
    daemon: FakeDaemon,
    replayed: list[tuple[str, bool, bool]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = record(daemon, over("eeee5555", "old"))
    monkeypatch.chdir(tmp_path)
    for name in ("kept.db", "old"):
        (tmp_path / name).write_bytes(recorded.read_bytes())
        assert hoptui("replay", name) == (0, "", "")
    assert [path for path, _, _ in replayed] == ["kept.db", str(recorded)]


def test_the_examples_come_with_hoptui(hoptui: Hoptui, replayed: list[tuple[str, bool, bool]]) -> None:
    for words in ((), ("lm-h200",), ("ppo-h200", "--ascii")):
        assert hoptui("replay", "--example", *words) == (0, "", "")
    found = [(Path(path).name, plain) for path, plain, _ in replayed]
    assert found == [("lm-h200.hoptui", False), ("lm-h200.hoptui", False), ("ppo-h200.hoptui", True)]


def test_an_unknown_example(hoptui: Hoptui, replayed: list[tuple[str, bool, bool]], golden: Golden) -> None:
    for name in ("nope", "", "../examples/ppo-h200"):
        ended = hoptui("replay", "--example", name)
        assert (ended.code, ended.out) == (3, "")
    golden(hoptui.transcript())
    assert replayed == []


def test_what_cannot_be_replayed(
    hoptui: Hoptui, daemon: FakeDaemon, replayed: list[tuple[str, bool, bool]], tmp_path: Path, golden: Golden
) -> None:
    newer = record(daemon, over("eeee5555", "old"))
    db = sqlite3.connect(newer)
    db.execute("PRAGMA user_version = 99")
    db.commit()
    db.close()
    damaged = tmp_path / "damaged.hoptui"
    damaged.write_bytes(b"SQLite format 3\0" + bytes(4096))
    gone = tmp_path / "gone.hoptui"
    for name, code in (("nope", 3), (str(gone), 3), (str(damaged), 1), (str(newer), 1), (str(tmp_path), 1)):
        ended = hoptui("replay", name)
        assert (ended.code, ended.out, ended.err.count("\n")) == (code, "", 1)
        assert name in ended.err
    golden(hoptui.transcript())
    assert replayed == []


def test_a_run_that_only_a_recording_knows_is_pointed_to(
    hoptui: Hoptui, ppo: FakeDaemon, golden: Golden
) -> None:
    record(ppo, over("eeee5555", "old"))
    ended = hoptui("status", "old")
    assert (ended.code, ended.err.endswith(" hoptui replay old\n")) == (3, True)
    for run, name in (("ffff6666", "a; b"), ("gggg7777", "runs/7")):
        record(ppo, over(run, name))
    assert hoptui("status", "a; b").err.endswith(" hoptui replay 'a; b'\n")
    assert hoptui("status", "runs/7").err.endswith(" hoptui replay gggg7777\n"), "a path else"
    golden(hoptui.transcript())


def test_history_of_a_damaged_recording(hoptui: Hoptui, daemon: FakeDaemon, golden: Golden) -> None:
    daemon.where.state.mkdir(mode=0o700)
    (daemon.where.state / "ffff6666.hoptui").write_bytes(b"not a database at all" * 100)
    daemon.start()
    ended = hoptui("history", "ffff6666")
    assert (ended.code, "ffff6666.hoptui" in ended.err) == (1, True)
    golden(hoptui.transcript())


def test_a_file_that_cannot_be_deleted(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def refuse(path: Path) -> None:
        raise RecordingError(f"{path} cannot be deleted: Permission denied")

    record(daemon, over("eeee5555", "old"))
    monkeypatch.setattr("hoptui.recording.library.remove", refuse)
    ended = hoptui("rm", "old", "--yes")
    assert (ended.code, "Permission denied" in ended.err) == (1, True)
    assert len(files(daemon)) == 1
    golden(hoptui.transcript())
