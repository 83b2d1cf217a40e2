"""A straggler is reported once, and so is its end."""

from __future__ import annotations

from hoptui.daemon.stragglers import Stragglers
from hoptui.daemon.tuning import observe
from hoptui.domain.stacks import Stack, pack
from hoptui.protocol.messages import Pulse, RunHello, Stacks
from tests.daemon.quiet_node import RUN, SECOND, QuietNode
from tests.domain.test_stragglers import DATA, REDUCE, WORK

EVEN: dict[Stack, int] = {WORK: 12, REDUCE: 8}
LATE: dict[Stack, int] = {WORK: 12, DATA: 7, REDUCE: 1}


class Case:
    """A run of four ranks, three of them on this node."""

    def __init__(self) -> None:
        self.quiet = quiet = QuietNode()
        self.stragglers = Stragglers(quiet.node)
        for rank in range(3):
            hello = RunHello(
                protocol=1,
                run=RUN,
                name="lm",
                epoch=1,
                nonce="n",
                pid=1 + rank,
                started=0,
                step=0,
                rank=rank,
                world=4,
            )
            quiet.runs.receive(b"%d" % rank, None, hello)

    def pass_time(self, seconds: int, *counts: dict[Stack, int], paused: bool = False) -> None:
        quiet = self.quiet
        for _ in range(seconds // 2):
            quiet.now += 2 * SECOND
            quiet.runs.receive(b"0", None, Pulse(step=5, t=quiet.now, paused=paused))
            for rank, found in enumerate(counts):
                samples = pack(found, quiet.now - 2 * SECOND, quiet.now)
                quiet.runs.receive(b"%d" % rank, None, Stacks(samples=samples))
            self.stragglers.tend()

    @property
    def told(self) -> list[tuple[str, int]]:
        events = self.quiet.node.events
        return [(each.code, each.fields["rank"]) for each in events if each.kind == "straggler"]


def test_a_straggler_and_its_end_are_reported_once() -> None:
    case = Case()
    case.pass_time(60, EVEN, EVEN, EVEN)
    assert case.told == []
    case.pass_time(60, EVEN, LATE, EVEN)
    assert case.told == [("run.straggler", 1)]
    (event,) = [each for each in case.quiet.node.events if each.kind == "straggler"]
    assert event.fields["where"]["line"] == 37
    assert (event.fields["unsampled"], event.fields["elsewhere"]) == ([], 1)
    seen = observe(case.quiet.node, case.quiet.run).straggler
    assert seen is not None
    assert (seen.code, seen.fields["rank"]) == ("run.straggler", 1)
    case.pass_time(90, EVEN, EVEN, EVEN)
    assert case.told == [("run.straggler", 1), ("run.even", 1)]
    assert observe(case.quiet.node, case.quiet.run).straggler is None
    case.pass_time(60, LATE, EVEN, EVEN)
    assert case.told[2:] == [("run.straggler", 0)]


def test_a_rank_without_samples_is_named() -> None:
    case = Case()
    case.pass_time(60, EVEN, LATE)
    (event,) = [each for each in case.quiet.node.events if each.kind == "straggler"]
    assert event.fields["unsampled"] == [2]


def test_a_pause_does_not_count() -> None:
    case = Case()
    case.pass_time(60, EVEN, LATE, EVEN, paused=True)
    assert case.told == []
