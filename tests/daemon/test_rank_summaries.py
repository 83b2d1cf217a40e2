"""What a node says of its ranks: their line, the backward pass, and the phases in which no rank waits."""

from __future__ import annotations

import pytest

from hoptui.daemon.rank_summaries import node_summary
from hoptui.domain.columns import pack as rows
from hoptui.domain.jobs import RankSummary
from hoptui.domain.stacks import Stack, pack, phase_frames
from hoptui.protocol.messages import Rows, RunHello, Stacks
from tests.daemon.quiet_node import RUN, SECOND, QuietNode
from tests.daemon.test_stragglers import Case
from tests.domain.test_stragglers import BACKWARD, DATA, REDUCE, WORK

READ = phase_frames("data") + DATA
STEP = phase_frames("optimizer") + WORK
TRAIN = phase_frames("train") + BACKWARD
SAVE = phase_frames("save") + WORK
SECONDS = {"phase/data": 0.02, "phase/data/open": 0.01, "phase/train": 0.3, "phase/optimizer": 0.05}


class TimedCase(Case):
    """Three ranks of a run that times its phases. Iterations take half a second."""

    def iterate(self, seconds: int, stacks: dict[Stack, int], **more: float) -> None:
        """`more` are seconds of rank 2. Each tenth iteration saves."""
        quiet = self.quiet
        for _ in range(seconds // 2):
            self.pass_time(2, stacks, stacks, stacks)
            for rank in range(3):
                source = f"rank/{RUN}/{rank}" if rank else f"run/{RUN}"
                every = []
                for n in range(4):
                    t = quiet.now - (3 - n) * SECOND // 2
                    step = 2 * t // SECOND
                    values = SECONDS | (more if rank == 2 else {}) | {"iteration_s": 0.5}
                    every.append((t, step, values | ({} if step % 10 else {"phase/save": 1.0})))
                quiet.runs.receive(b"%d" % rank, None, Rows(parts=(rows(source, every),)))

    @property
    def ranks(self) -> tuple[RankSummary, ...]:
        return node_summary(self.quiet.node, self.quiet.run, 1).ranks


@pytest.fixture
def case() -> TimedCase:
    return TimedCase()


def test_phases_without_waiting_are_added_up(case: TimedCase) -> None:
    case.iterate(20, {READ: 4, STEP: 4, TRAIN: 10, SAVE: 2}, **{"phase/data": 0.06})
    assert [one.phases for one in case.ranks] == ["data,optimizer"] * 3
    assert [one.work_s for one in case.ranks] == pytest.approx([0.07, 0.07, 0.11])


def test_a_phase_in_which_a_rank_waits_does_not_count(case: TimedCase) -> None:
    case.iterate(20, {READ: 4, STEP: 4, TRAIN: 9, phase_frames("optimizer") + REDUCE: 1})
    assert [one.phases for one in case.ranks] == ["data"] * 3


def test_without_samples_no_phase_is_known_to_be_free_of_waiting(case: TimedCase) -> None:
    case.iterate(20, {})
    assert [(one.work_s, one.phases) for one in case.ranks] == [(None, "")] * 3


def test_a_run_without_phases_has_no_time_in_them(case: TimedCase) -> None:
    case.pass_time(20, {WORK: 20}, {WORK: 20}, {WORK: 20})
    assert [one.work_s for one in case.ranks] == [None] * 3


def test_samples_in_the_backward_pass_may_wait(case: TimedCase) -> None:
    case.pass_time(20, *[{WORK: 10, BACKWARD: 8, REDUCE: 2}] * 3)
    assert [(one.waiting, one.backward) for one in case.ranks] == [(0.1, 0.5)] * 3


def test_the_line_of_a_rank_is_what_it_does_apart_from_waiting() -> None:
    quiet = QuietNode()
    hello = RunHello(protocol=1, run=RUN, name="lm", epoch=1, nonce="n", pid=1, started=0, step=0, world=2)
    quiet.runs.receive(b"0", None, hello)
    for _ in range(5):
        quiet.now += 2 * SECOND
        samples = pack({BACKWARD: 14, DATA: 6}, quiet.now - 2 * SECOND, quiet.now, asleep={BACKWARD: 12})
        quiet.runs.receive(b"0", None, Stacks(samples=samples))
    (rank,) = node_summary(quiet.node, quiet.run, 1).ranks
    assert (rank.line, rank.line_share) == ("data.py:37 read", 0.3)
