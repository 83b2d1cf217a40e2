"""A few seconds of chaos, and checks that find what they are for."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.audited_run import MOST_ROWS
from hoptui.domain.columns import pack
from hoptui.protocol.messages import CommandRecord
from hoptui.recording import Recording
from tests.chaos import acts, checks, faults, kernel
from tests.chaos.node import Actor, ChaosNode

SECOND = 10**9
RUN = "abcd2345"


@pytest.mark.slow
def test_a_few_seconds_of_chaos() -> None:
    found = acts.processes(4.0, 1, {"cut": "not needed", "frozen link": "not needed"})
    assert found.violations == [], found.log
    assert found.figures["rows"] > 100


def test_a_seed_has_one_plan() -> None:
    first, again = (list(itertools.islice(faults.plan(7, frozenset()), 50)) for _ in range(2))
    assert first == again
    assert {step.fault for step in first} <= set(faults.FAULTS)


def test_what_a_machine_does_not_allow_is_left_out_of_the_plan() -> None:
    without = frozenset({"cut_link"})
    full, less = (list(itertools.islice(faults.plan(7, names), 50)) for names in (frozenset(), without))
    assert [step for step in full if step.fault != "cut_link"] == less[: len(full) - 1][
        : sum(step.fault != "cut_link" for step in full)
    ]


def test_a_mount_that_is_not_allowed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "mount" in kernel.denied(tmp_path)["full disk"]


@pytest.fixture
def node() -> Iterator[ChaosNode]:
    with acts.chaos_node() as found:
        yield found


def recorded(node: ChaosNode, *, rows: int = 100, on_disk: range = range(100), dropped: int = 0) -> Actor:
    """A run that has ended in order: what it logged, and what its recording has."""
    actor = node.start("run", "-c", "pass")
    actor.child.wait(30)
    identity = {"pid": actor.child.pid, "link": 0, "run": RUN, "state": {}}
    actor.path.write_text(f"run {json.dumps(identity)}\nset 5 k0 70000001\nend {9 * SECOND} {SECOND // 10}\n")
    actor.path.with_suffix(".counts").write_bytes(rows.to_bytes(8, "little") + bytes(8))
    node.dropped[RUN, actor.child.pid] = dropped
    with Recording.create(node.where.recording(RUN)) as recording:
        for i in on_disk:
            recording.append(pack(f"run/{RUN}", [(i + 1, i, {"n": float(actor.number * MOST_ROWS + i)})]))
    return actor


def test_rows_that_are_there_or_counted_are_no_violation(node: ChaosNode) -> None:
    recorded(node, on_disk=range(10, 100), dropped=10)
    assert checks.violations(node, checks.rows_accounted) == []


@pytest.mark.parametrize("on_disk", [range(10, 100), range(90)])
def test_rows_that_are_missing_without_a_count_are_found(node: ChaosNode, on_disk: range) -> None:
    recorded(node, on_disk=on_disk)
    (sentence,) = checks.violations(node, checks.rows_accounted)
    assert "10" in sentence
    assert "missing" in sentence


RECORD = CommandRecord(
    id="c", run=RUN, epoch=1, verb="set", knob="k0", wanted=70000001, t=1, wall=0.0, stage="applied", seq=1
)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda r: None, ""),
        (lambda r: {"stage": "voided"}, "told as voided"),
        (lambda r: {"stage": "sent"}, "still 'sent'"),
        (lambda r: {"effective": 7}, "told as applied (7)"),
    ],
)
def test_outcomes_that_contradict_the_setter_are_found(
    node: ChaosNode, change: Callable[[CommandRecord], dict[str, object] | None], problem: str
) -> None:
    from msgspec import structs

    recorded(node)
    viewer = node.start("viewer", "-c", "pass")
    viewer.path.write_text(json.dumps({"t": 1, "what": "given", "value": 70000001, "run": RUN}) + "\n")
    record = structs.replace(RECORD, effective=70000001)
    record = structs.replace(record, **(change(record) or {}))
    found = list(checks.commands_truthful(node, {70000001: record}))
    assert len(found) == bool(problem)
    assert problem in "".join(found)


@pytest.mark.parametrize(
    ("shown", "problem"),
    [
        ({}, ""),
        ({"values": {"k0": 5}}, "with the values {5}"),
        ({"step": 500}, "at step 500"),
        ({"state": "live"}, "as live"),
    ],
)
def test_false_things_that_a_viewer_was_shown_are_found(
    node: ChaosNode, shown: dict[str, object], problem: str
) -> None:
    actor = recorded(node)
    viewer = node.start("viewer", "-c", "pass")
    run = {
        "run": RUN,
        "pid": actor.child.pid,
        "exit": "finished",
        "state": "exited",
        "step": 100,
        "dropped": 0,
    }
    run |= {"values": {"k0": 70000001}} | shown
    line = {"t": 60 * SECOND, "what": "seen", "link": "live", "runs": [run]}
    viewer.path.write_text(json.dumps(line) + "\n")
    found = list(checks.nothing_false_is_shown(node))
    assert len(found) == bool(problem)
    assert problem in "".join(found)


def test_a_final_stage_that_changes_is_found(node: ChaosNode) -> None:
    viewer = node.start("viewer", "-c", "pass")
    stage = {"t": 1, "what": "stage", "id": "c", "wanted": 1, "code": "", "seq": 1}
    lines = ({**stage, "stage": name} for name in ("accepted", "applied", "voided"))
    viewer.path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (sentence,) = checks.stages_forward(node)
    assert "saw 1 applied, then voided" in sentence
