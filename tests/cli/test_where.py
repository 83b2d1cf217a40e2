"""`hoptui where`: the lines that the time of a run goes to."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from msgspec import structs

from hoptui.domain.stacks import Stack, StackFrame, pack
from hoptui.model.source_code import MOST_SOURCE, source_line
from hoptui.protocol.messages import Error, FetchStacks, FromViewer, RankStacks, ToViewer
from hoptui.recording import Recording, stack_minutes
from hoptui.recording.ingest import Boot
from tests.cli.conftest import Hoptui
from tests.cli.test_recordings import over, record
from tests.client.fake_daemon import FakeDaemon
from tests.factories import SECOND
from tests.golden import Golden

SITE = "/opt/env/lib/python3.12/site-packages/"
TRAIN = StackFrame("/gone/train.py", "main", 12)
LOADER = StackFrame(f"{SITE}torch/utils/data/dataloader.py", "_BaseDataLoaderIter.__next__", 708)


@pytest.fixture
def sampled(ppo: FakeDaemon, tmp_path: Path) -> FakeDaemon:
    """`ppo` spends most of its time in a file that exists. Another rank waits for it."""
    script = tmp_path / "data.py"
    script.write_text("import random\n\ndef augment(n):\n    return sum(random.random() for _ in range(n))\n")
    augment = StackFrame(str(script), "augment", 4, 4, 11, 18, "random")
    found: dict[Stack, int] = {
        (TRAIN, LOADER, augment): 83,
        (TRAIN, StackFrame(f"{SITE}torch/autograd/graph.py", "_engine_run_backward", 824)): 9,
        (TRAIN._replace(line=15, call="item"),): 6,
    }
    found |= {(TRAIN._replace(line=100 + line),): 1 for line in range(12)}
    waits: dict[Stack, int] = {
        (TRAIN, StackFrame(f"{SITE}torch/distributed/distributed_c10d.py", "all_reduce", 7)): 40
    }
    ppo.stacks["abcd2345"] = (
        RankStacks(rank=0, samples=pack(found, 0, 11_000_000_000, left_out=2, cost=0.0008)),
        RankStacks(rank=1, samples=pack(waits, 0, 4_000_000_000)),
    )
    return ppo


def test_where(hoptui: Hoptui, sampled: FakeDaemon, golden: Golden) -> None:
    assert hoptui("where", "ppo").code == 0
    assert hoptui("where", "ppo", "--rank", "1", "--seconds", "4").code == 0
    asked = [each.seconds for each in sampled.received if isinstance(each, FetchStacks)]
    assert asked == [60.0, 4.0]
    golden(hoptui.transcript())


def test_json_has_all_lines_with_their_callers(hoptui: Hoptui, sampled: FakeDaemon) -> None:
    found = hoptui("where", "ppo", "--json").json
    assert (found["samples"], found["left_out"], found["seconds"], found["cost"]) == (112, 2, 11.0, 0.0008)
    first = found["lines"][0]
    assert first["share"] == pytest.approx(83 / 112)
    assert (first["kind"], first["line"], first["function"], first["inside"]) == (
        "input",
        4,
        "augment",
        "random",
    )
    assert first["callers"][0] == {"file": "/gone/train.py", "line": 12, "function": "main"}
    assert len(found["lines"]) == 15
    assert sum(line["share"] for line in found["lines"]) == pytest.approx(110 / 112)


def test_a_file_for_speedscope_has_all_ranks(hoptui: Hoptui, sampled: FakeDaemon, tmp_path: Path) -> None:
    path = tmp_path / "x.speedscope.json"
    assert hoptui("where", "ppo", "-o", str(path)).code == 0
    found = json.loads(path.read_text())
    assert found["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    names = [frame["name"] for frame in found["shared"]["frames"]]
    zero, one = found["profiles"]
    assert (zero["type"], zero["endValue"], one["name"]) == ("sampled", sum(zero["weights"]), "rank 1")
    at = max(range(len(zero["weights"])), key=zero["weights"].__getitem__)
    stack = [names[index] for index in zero["samples"][at]]
    assert stack == ["main", "_BaseDataLoaderIter.__next__", "augment", "random"]
    again = hoptui("where", "ppo", "-o", str(path))
    assert again.code == 1
    assert "already exists" in again.err
    assert json.loads(hoptui("where", "ppo", "-o", "-").out) == found


def test_what_there_is_not_is_said_in_a_sentence(hoptui: Hoptui, sampled: FakeDaemon, golden: Golden) -> None:
    assert hoptui("where", "ppo", "--rank", "7").code == 3
    assert hoptui("where", "ppo", "--seconds", "0").code == 2
    assert hoptui("where", "ppo", "--seconds", "nan").code == 2
    assert hoptui("where", "ppo", "--json", "-o", "-").code == 2
    sampled.stacks.clear()
    assert hoptui("where", "ppo").code == 3
    assert hoptui("where", "ppo", "-o", "-").code == 3
    ended = [structs.replace(run, exit_reason="finished") for run in sampled.node.runs]
    sampled.node = structs.replace(sampled.node, runs=tuple(ended))
    assert hoptui("where", "ppo").code == 3
    golden(hoptui.transcript())


def test_an_older_daemon_has_none(hoptui: Hoptui, sampled: FakeDaemon) -> None:
    def older(message: FromViewer) -> list[ToViewer] | None:
        if not isinstance(message, FetchStacks):
            return None
        return [Error(code="unsupported", text="unknown", id=message.id)]

    sampled.answer = older
    found = hoptui("where", "ppo")
    assert found.code == 3
    assert "older" in found.err


@pytest.mark.parametrize("file", ["/dev/zero", "/nowhere/train.py", "/", "\0", "<string>"])
def test_no_source_is_read_of_what_is_no_regular_file(file: str) -> None:
    assert source_line(file, 1) == ""


def test_no_source_is_read_of_a_large_file(tmp_path: Path) -> None:
    path = tmp_path / "large.py"
    path.write_text("first\n")
    assert source_line(str(path), 1) == "first"
    with path.open("ab") as file:
        file.truncate(MOST_SOURCE + 1)
    assert source_line(str(path), 1) == ""


@pytest.fixture
def recorded(ppo: FakeDaemon) -> Path:
    """Three minutes of the ended run `old`: it loads data, then it computes, then its samples are damaged."""
    path = record(ppo, over("eeee5555", "old", world=2))
    load, item = (TRAIN, LOADER), (TRAIN._replace(line=15, call="item"),)
    with Recording.create(path, boot=Boot("then", 0, 0)) as recording:
        for minute, stack in enumerate((load, item, item), start=1):
            t = 60 * minute * SECOND
            parts = {rank: [pack({stack: 10 * minute}, t - 60 * SECOND, t)] for rank in (0, 1)}
            recording.stacks(t, stack_minutes.encode(parts, t), 20 * minute)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = 'x' WHERE key = ?", (stack_minutes.key(180 * SECOND),))
    db.close()
    return path


def test_where_of_an_ended_run_and_of_a_file(
    hoptui: Hoptui, recorded: Path, tmp_path: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    copied = tmp_path / "copied.hoptui"
    copied.write_bytes(recorded.read_bytes())
    assert hoptui("where", "old").code == 0
    for more in (
        (),
        ("--seconds", "70"),
        ("--rank", "1", "--until", "+5s"),
        (
            "--rank",
            "5",
        ),
    ):
        assert hoptui("where", "copied.hoptui", *more).code == (3 if "5" in more else 0)
    golden(hoptui.transcript())


def test_json_of_a_recording_counts_what_is_missing(hoptui: Hoptui, recorded: Path) -> None:
    found = hoptui("where", str(recorded), "--json").json
    assert (found["recorded"], found["ranks"], found["minutes"]) == (True, [0, 1], 2)
    assert (found["minutes_unreadable"], found["minutes_skipped"], found["ranks_left_out"]) == (1, 0, 0)
    assert (found["samples"], found["seconds"]) == (30, 120.0)
    document = json.loads(hoptui("where", str(recorded), "-o", "-").out)
    assert [each["name"] for each in document["profiles"]] == ["rank 0", "rank 1"]


def test_what_a_recording_lacks_is_said_in_a_sentence(
    hoptui: Hoptui, ppo: FakeDaemon, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = record(ppo, over("ffff6666", "plain"))
    (tmp_path / "empty.hoptui").write_bytes(b"")
    (tmp_path / "other.hoptui").write_text("no recording")
    for asked, code, words in (
        (("plain",), 3, "the recording of plain has no stack samples of this time"),
        ((str(plain),), 3, "no stack samples"),
        (("empty.hoptui",), 1, "does not hold a recording"),
        (("other.hoptui",), 1, "is not a recording"),
        (("missing.hoptui",), 3, "no such file"),
        ((f"{tmp_path}/",), 1, "directory"),
        (("nobody",), 3, "nobody"),
        ((str(recorded), "--seconds", "5", "--since", "+1s"), 2, "cannot be combined"),
        ((str(recorded), "--since", "+9s", "--until", "+2s"), 2, "later"),
        ((str(recorded), "--since", "never"), 2, "is no time"),
    ):
        found = hoptui("where", *asked)
        assert (found.code, words in found.err) == (code, True), (asked, found.err)


def test_more_than_a_minute_of_a_live_run_comes_from_its_recording(
    hoptui: Hoptui, sampled: FakeDaemon
) -> None:
    assert "has no recording here" in hoptui("where", "ppo", "--seconds", "300").err
    path = record(sampled, sampled.node.runs[0])
    with Recording.create(path, boot=Boot("then", 0, 0)) as recording:
        recording.stacks(SECOND, stack_minutes.encode({0: [pack({(TRAIN,): 7}, 0, SECOND)]}, SECOND), 7)
    assert hoptui("where", "ppo", "--seconds", "300", "--json").json["samples"] == 7
    assert hoptui("where", "ppo", "--json").json["samples"] == 112


def test_hostile_names_become_no_control_characters(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    path = record(ppo, over("eeee5555", "old"))
    evil = (StackFrame("/x/\x1b[31m\n.py", "\u202ef\x07", 1, call="\x1b]0;x\x07"),)
    with Recording.create(path, boot=Boot("then", 0, 0)) as recording:
        recording.stacks(SECOND, stack_minutes.encode({0: [pack({evil: 7}, 0, SECOND)]}, SECOND), 7)
    found = hoptui("where", "old")
    assert found.code == 0
    assert not {"\x1b", "\x07", "\u202e"} & set(found.out)


def test_status_names_the_line_and_how_long_it_was_sampled(hoptui: Hoptui, sampled: FakeDaemon) -> None:
    line = "where: loads data 74 %, data.py:4 augment (random), 112 samples in 11 s"
    assert line in hoptui("status", "ppo").out.splitlines()
    found = hoptui("status", "ppo", "--json").json["where"]
    assert (found["kind"], found["line"], found["seconds"], found["samples"]) == ("input", 4, 11.0, 112)
    assert f"where: {found['text']}" == line
    sampled.stacks.clear()
    assert "where:" not in hoptui("status", "ppo").out
    assert hoptui("status", "ppo", "--json").json["where"] is None


def test_status_has_the_line_of_the_last_minute_of_an_ended_run(
    hoptui: Hoptui, ppo: FakeDaemon, recorded: Path
) -> None:
    ppo.node = structs.replace(ppo.node, runs=(*ppo.node.runs, over("eeee5555", "old", world=2)))
    assert (
        "where it last was: waits for the GPU 100 %, train.py:15 main (item)" in hoptui("status", "old").out
    )
    found = hoptui("status", "old", "--json").json["where"]
    assert (found["kind"], found["line"], found["recorded"]) == ("wait", 15, True)
    recorded.write_bytes(b"not a database at all" * 100)
    assert hoptui("status", "old", "--json").json["where"] is None
    recorded.unlink()
    assert hoptui("status", "old").code == 0
