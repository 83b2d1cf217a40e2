"""`hoptui where`: the lines that the time of a run goes to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from hoptui.cli.commands.where import MOST_SOURCE, source_line
from hoptui.domain.stack_kinds import CodeLine
from hoptui.domain.stacks import Stack, StackFrame, pack
from hoptui.protocol.messages import Error, FetchStacks, FromViewer, RankStacks, ToViewer
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
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
    assert source_line(CodeLine(file, 1, "f")) == ""


def test_no_source_is_read_of_a_large_file(tmp_path: Path) -> None:
    path = tmp_path / "large.py"
    path.write_text("first\n")
    assert source_line(CodeLine(str(path), 1, "f")) == "first"
    with path.open("ab") as file:
        file.truncate(MOST_SOURCE + 1)
    assert source_line(CodeLine(str(path), 1, "f")) == ""
