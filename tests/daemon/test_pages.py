"""No answer to a viewer is larger than a viewer accepts, for any state, and a viewer gets everything."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from hoptui.daemon.handlers import pages
from hoptui.daemon.handlers.targets import TargetDesk
from hoptui.daemon.handlers.viewers import ViewerDesk
from hoptui.daemon.state.registry import TrackedRun
from hoptui.domain.columns import pack
from hoptui.domain.facts import fact
from hoptui.domain.knobs import KnobSpec, KnobState
from hoptui.domain.phases import PhaseReadings
from hoptui.protocol import codec, messages
from hoptui.protocol.codec import MAX_ANSWER_BYTES
from hoptui.protocol.messages import CommandRecord, RunState
from tests.daemon.quiet_node import RUN, QuietNode

HELLO = messages.ViewerHello(protocol=messages.PROTOCOL, viewer="v", client="test", records=True)


class Node:
    """A quiet node with a viewer that reads every answer as a real one does."""

    def __init__(self) -> None:
        self.quiet = QuietNode()
        self.quiet.hello()
        self.answers: list[messages.Delta] = []
        targets = TargetDesk(self.quiet.node, lambda _: None)
        self.desk = ViewerDesk(
            self.quiet.node, self._take, self.quiet.runs, self.quiet.tuners, targets, lambda: None
        )
        self.desk.receive(b"v", None, HELLO)

    def _take(self, _: bytes, message: messages.ToViewer) -> bool:
        frame = codec.encode(message)
        assert len(frame) <= MAX_ANSWER_BYTES
        said = codec.to_viewer([frame])
        if isinstance(said, messages.Delta):
            self.answers.append(said)
        return True

    def fetch(self, **fields: Any) -> messages.Delta:
        self.desk.receive(b"v", None, messages.Fetch(id=1, **({"wait_s": 0.0} | fields)))
        return self.answers[-1]

    def everything(self, *, paged: bool, cursors: dict[str, int]) -> list[messages.Delta]:
        """What a viewer gets until nothing is held back."""
        events = commands = page = 0
        found: list[messages.Delta] = []
        cursors = dict(cursors)
        while not found or found[-1].more:
            assert len(found) < 200, "it does not come to an end"
            new = self.fetch(
                events=events, commands=commands, cursors=cursors, page=page if paged else None, max_rows=4096
            )
            found.append(new)
            events = max([events, *(e.seq for e in new.events)])
            commands = max([commands, *(c.seq for c in new.commands)])
            cursors |= {c.source: c.times()[-1] for c in new.columns}
            page = new.next_page
        return found

    def run(self, name: str, knobs: int, description: int) -> None:
        spec = KnobSpec(name="k", kind="int", default=1, description="d" * description)
        state = RunState(
            run=name,
            name=name,
            epoch=1,
            pid=7,
            started_wall=1.0,
            knobs=tuple(
                KnobState(spec=structs.replace(spec, name=f"k{i}"), value=1, by="b" * 40)
                for i in range(knobs)
            ),
        )
        self.quiet.node.registry.restore(TrackedRun(state, nonce=name))


def _records(run: str, count: int, text: int) -> list[CommandRecord]:
    made = CommandRecord(id="", run=run, epoch=1, verb="set", knob="lr", stage="applied", effective=0.5)
    fields = {"error": "e" * text}
    return [
        structs.replace(made, id=f"{run}-{i}", seq=i + 1, code="raised", fields=fields) for i in range(count)
    ]


@pytest.mark.parametrize("paged", [True, False])
def test_ten_thousand_commands_come_in_pages(paged: bool) -> None:
    node = Node()
    for i in range(5):
        records = _records(f"r{i}", 2000, 100)
        node.quiet.node.book.restore(structs.replace(r, seq=r.seq * 5 + i) for r in records)
    answers = node.everything(paged=paged, cursors={})
    assert len({c.id for a in answers for c in a.commands}) == 10_000
    assert len(answers) > 2


def test_runs_with_many_described_knobs_come_in_pages_and_older_viewers_get_them_without_descriptions() -> (
    None
):
    node = Node()
    for i in range(8):
        node.run(f"r{i}", 1500, 300)
    answers = node.everything(paged=True, cursors={})
    runs = [run for a in answers for run in (a.node.runs if a.node else ())]
    assert {run.run for run in runs} == {RUN, *(f"r{i}" for i in range(8))}
    assert all(knob.spec.description for run in runs if run.run != RUN for knob in run.knobs)
    (old,) = node.everything(paged=False, cursors={})
    assert old.node is not None
    assert {run.run for run in old.node.runs} == {run.run for run in runs}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    runs=st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 1500)), max_size=6),
    records=st.tuples(st.integers(0, 2000), st.sampled_from([0, 500, 20_000, 900_000])),
    notes=st.tuples(st.integers(0, 600), st.sampled_from([10, 3000, 900_000])),
    rows=st.tuples(st.integers(0, 300), st.sampled_from([1, 400, 3000])),
    phase=st.sampled_from([5, 500_000]),
    paged=st.booleans(),
)
@pytest.mark.guarantee("answer-size")
def test_no_answer_exceeds_the_limit_for_any_state(
    runs: list[tuple[int, int]],
    records: tuple[int, int],
    notes: tuple[int, int],
    rows: tuple[int, int],
    phase: int,
    paged: bool,
) -> None:
    node = Node()
    quiet = node.quiet
    for i, (knobs, description) in enumerate(runs):
        node.run(f"r{i}", knobs, description)
    count, text = (min(records[0], 8) if records[1] > 100_000 else records[0] // 4), records[1]
    quiet.node.book.restore(_records(RUN, count, text))
    for _ in range(min(notes[0], 8) if notes[1] > 100_000 else notes[0]):
        quiet.node.event("note", fact("raised", error="n" * notes[1]), run=RUN)
    names = [f"metric/{i}" for i in range(rows[1])]
    many = rows[0] if rows[1] < 1000 else rows[0] // 10
    begin = quiet.now
    for i in range(many):
        quiet.now += 1_000_000
        quiet.node.rows((pack(f"run/{RUN}", [(quiet.now, i, dict.fromkeys(names, 1.0))]),))
    quiet.run.pulse(messages.Pulse(step=1, phase="p" * phase), quiet.now / 1e9)
    answers = node.everything(paged=paged, cursors={f"run/{RUN}": begin})
    node.fetch(latest=True)
    assert len({c.id for a in answers for c in a.commands}) == count
    got = [t for a in answers for c in a.columns for t in c.times()]
    assert got == sorted(set(got))
    known = quiet.node.rings.get(f"run/{RUN}")
    assert len(got) == (sum(map(len, known.parts())) if known else 0)
    seen = {run.run for a in answers if a.node for run in a.node.runs}
    assert seen == {RUN, *(f"r{i}" for i in range(len(runs)))}


def test_a_row_with_more_names_than_fit_is_sent_without_the_last_of_them() -> None:
    wide = pack("run/x", [(1, 1, {f"{'n' * 90}{i}": 1.0 for i in range(20_000)})])
    part, more = pages.rows(wide, pages.ROWS)
    assert not more
    assert 0 < len(part.names) < 20_000
    assert pages.size(part) <= pages.ROWS


def test_vitals_that_are_too_many_are_those_of_live_runs() -> None:
    reading = PhaseReadings(phase="x" * 3000, samples=9)
    full = {
        f"r{i}": messages.Vital(state="exited" if i % 2 else "live", phases=(reading,) * 2)
        for i in range(4000)
    }
    found = pages.vitals(full)
    assert pages.size(found) <= pages.VITALS + pages.KIB
    assert sum(vital.state == "live" for vital in found.values()) == 2000


def test_the_shares_fit_into_a_message() -> None:
    shares = (
        pages.VITALS,
        pages.HARDWARE,
        pages.RUNS,
        pages.PROCESSES,
        pages.EVENTS,
        pages.COMMANDS,
        pages.ROWS,
    )
    assert sum(shares) + 256 * pages.KIB <= MAX_ANSWER_BYTES
    assert min(pages.EVENTS, pages.COMMANDS) > pages.LARGEST_ITEM
    assert pages.LARGEST_RUN < pages.RUNS


def test_a_command_that_its_run_decides_on_is_answered_once_the_run_has_told() -> None:
    node = Node()
    node.desk.receive(b"t", None, structs.replace(HELLO, viewer="t", kind="tuner"))
    command = messages.Command(id="a", run=RUN, epoch=1, verb="set", knob="lr", value=0.1)
    node.desk.receive(b"t", None, command)
    assert node.answers == []
    node.quiet.runs.receive(b"n1", None, messages.Pulse(step=50))
    node.desk.receive(b"t", None, command)
    assert [record.stage for record in node.answers[-1].commands] == ["sent"]
