"""Which stack samples the daemon keeps, and whom it tells."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from msgspec import structs

from hoptui.daemon.handlers import pages
from hoptui.daemon.handlers.targets import TargetDesk
from hoptui.daemon.handlers.viewers import ViewerDesk
from hoptui.daemon.state.stack_windows import MOST_PARTS, RECORD_NS, StackWindows
from hoptui.domain.hot_lines import sampled
from hoptui.domain.line_counts import count
from hoptui.domain.stacks import KEPT_S, Stack, StackFrame, StackSamples, pack, unpack
from hoptui.protocol import codec, messages
from hoptui.recording import Recording
from hoptui.recording.stack_minutes import MINUTE_BYTES
from tests.conftest import TestNode, until
from tests.daemon.quiet_node import RUN, SECOND, QuietNode
from tests.domain.test_stragglers import BACKWARD, WORK

ONE, OTHER = (StackFrame("train.py", "main", 1),), (StackFrame("train.py", "main", 2),)
SAVES = (StackFrame("train.py", "save_checkpoint", 3, call="write"),)


def part(second: int, counts: dict[tuple[StackFrame, ...], int] | None = None) -> StackSamples:
    """The samples of the two seconds before a second."""
    return pack(counts or {ONE: 20}, (second - 2) * SECOND, second * SECOND)


def test_the_last_minute_of_each_rank_is_kept() -> None:
    windows = StackWindows()
    for second in range(2, 202, 2):
        windows.add(0, part(second))
    windows.add(3, part(200, {OTHER: 1}))
    found = windows.since(0)
    assert list(found) == [0, 3]
    assert found[0].ended - found[0].began == (KEPT_S + 2) * SECOND
    assert unpack(windows.since(190 * SECOND)[0]) == {ONE: 100}
    assert 0 not in windows.since(200 * SECOND)


def test_the_time_on_a_processor_is_that_of_the_messages_that_know_it() -> None:
    windows = StackWindows()
    windows.add(0, part(2))
    assert math.isnan(windows.on_cpu(0))
    for rank, second, on_cpu in ((0, 4, 0.2), (1, 4, 0.8), (1, 6, 0.8), (0, 8, None)):
        windows.add(rank, structs.replace(part(second), on_cpu=on_cpu))
    assert windows.on_cpu(0) == pytest.approx(0.6)
    assert windows.on_cpu(5 * SECOND) == pytest.approx(0.8)
    assert math.isnan(windows.queued(0))
    windows.add(1, structs.replace(part(10), queued=0.3))
    assert windows.queued(0) == pytest.approx(0.3)


def test_kinds_by_the_message_nearest_to_a_moment() -> None:
    windows = StackWindows()
    assert windows.last_t == 0
    for second in range(2, 22, 2):
        windows.add(0, part(second, {ONE: second}))
    windows.add(1, pack({SAVES: 3}, 17 * SECOND, int(18.7 * SECOND)))
    assert windows.last_t == 20 * SECOND
    found = windows.kinds([t * SECOND for t in (14, 16, 18, 20, 22)])
    assert found == [{"script": 14}, {"script": 16}, {"script": 18, "save": 3}, {"script": 20}, {}]
    assert windows.kinds([]) == []


def test_old_samples_are_seen_anew_when_more_is_known_of_the_script() -> None:
    windows = StackWindows()
    mixes = (StackFrame("train.py", "fit_dataset", 12),)
    windows.add(0, part(2, {mixes: 20}))
    assert windows.kinds([SECOND, 2 * SECOND])[1] == {"input": 20}
    windows.knows_loop((("train.py", 30, "fit_dataset"), ("train.py", 50, "log_losses")))
    assert not windows.code.trains(StackFrame("train.py", "log_losses", 50))
    assert windows.kinds([SECOND, 2 * SECOND])[1] == {"script": 20}
    ((activity, _),) = windows.activities(0)[0].items()
    assert activity.basis == "known"
    site = "/opt/env/lib/python3.12/site-packages/torch/nn/modules/module.py"
    runs = (StackFrame("train.py", "fit_dataset", 20), StackFrame(site, "Module._call_impl", 1700))
    windows.add(1, part(2, {runs: 20}))
    ((activity, _),) = windows.activities(0)[0].items()
    assert activity.basis == "before"


def test_who_waits_in_the_backward_pass_is_known_also_when_samples_are_seen_anew() -> None:
    windows = StackWindows()
    windows.add(0, pack({BACKWARD: 10, WORK: 4}, 0, 2 * SECOND, asleep={BACKWARD: 7}))

    def states() -> Counter[str]:
        (counts,) = windows.activities(0).values()
        found: Counter[str] = Counter()
        for each, times in counts.items():
            found[each.backward] += times
        return found

    assert states() == {"waits": 7, "computes": 3, "": 4}
    windows.knows_loop([("/a/train.py", 9, "main")])
    assert states() == {"waits": 7, "computes": 3, "": 4}
    windows.add(1, pack({BACKWARD: 10}, 0, 2 * SECOND))
    assert {each.backward for each in windows.activities(0)[1]} == {""}


def test_a_process_that_sends_too_much_is_kept_within_bounds() -> None:
    windows = StackWindows()
    for _ in range(10 * MOST_PARTS):
        windows.add(0, part(10))
    assert sum(windows.since(0)[0].counts) == 20 * MOST_PARTS


def test_samples_of_the_future_are_ignored(quiet: QuietNode) -> None:
    now = quiet.now // SECOND
    for second in (now, now + 3600):
        loop = ((f"train_{second}.py", 1, "fit"),)
        quiet.runs.receive(b"n1", None, messages.Stacks(samples=part(second), loop=loop))
    run = quiet.node.registry.get(RUN)
    assert run is not None
    assert sum(run.stacks.since(0)[0].counts) == 20
    named = {StackFrame(f"train_{second}.py", "fit", 1): second == now for second in (now, now + 3600)}
    assert {frame: run.stacks.code.trains(frame) for frame in named} == named


def test_lines_are_those_of_the_samples_of_the_time() -> None:
    windows = StackWindows()
    for second in range(2, 62, 2):
        windows.add(0, part(second))
        windows.add(3, part(second, {ONE: 5, OTHER: 15}))
    for t, rank in ((0, 0), (0, 3), (30 * SECOND, 3)):
        assert dict(windows.lines(t))[rank] == count(windows.since(t)[rank])
    assert list(dict(windows.lines(0, first=1))) == [3]
    assert list(windows.lines(60 * SECOND)) == []
    assert windows.last_t == 60 * SECOND


def ask_lines(quiet: QuietNode, **asked: int) -> messages.RunLines:
    """What a viewer gets that asks for lines."""
    answers: list[messages.ToViewer] = []

    def send(identity: bytes, answer: messages.ToViewer) -> bool:
        answers.append(answer)
        return True

    targets = TargetDesk(quiet.node, lambda _: None)
    desk = ViewerDesk(quiet.node, send, quiet.runs, quiet.tuners, targets, lambda: None)
    hello = messages.ViewerHello(protocol=messages.PROTOCOL, viewer="v1", client="test")
    desk.receive(b"v1", None, hello)
    desk.receive(b"v1", None, messages.FetchLines(id=9, run=RUN, **asked))
    (found,) = (one for one in answers if isinstance(one, messages.RunLines))
    assert found.id == 9
    return found


def test_lines_come_in_pages_of_ranks(quiet: QuietNode) -> None:
    run = quiet.node.registry.get(RUN)
    assert run is not None
    for rank in range(5):
        run.stacks.add(rank, part(quiet.now // SECOND, {ONE: rank + 1}))
    assert [each.rank for each in ask_lines(quiet).ranks] == [0]
    page = ask_lines(quiet, first=1, ranks=2)
    assert ([each.rank for each in page.ranks], page.next) == ([1, 2], 3)
    page = ask_lines(quiet, first=page.next, ranks=100)
    assert ([each.counts.samples for each in page.ranks], page.next) == ([4, 5], -1)


def test_a_page_of_lines_fits_into_an_answer(quiet: QuietNode) -> None:
    run = quiet.node.registry.get(RUN)
    assert run is not None
    for rank in range(32):
        long: dict[Stack, int] = {
            (StackFrame(f"/{'ä' * 300}/{n}.py", "ü" * 300, n, call="ö" * 300),): 1 for n in range(64)
        }
        samples = pack(long, quiet.now - SECOND, quiet.now, most_bytes=1 << 20)
        run.stacks.add(rank, samples)
    first, found = 0, []
    while first >= 0:
        page = ask_lines(quiet, first=first, ranks=32)
        assert len(codec.encode(page)) <= pages.LINES + pages.KIB
        found += [each.rank for each in page.ranks]
        first = page.next
    assert found == list(range(32))


def test_the_last_minute_of_a_run_that_has_ended_is_kept(quiet: QuietNode) -> None:
    run = quiet.node.registry.get(RUN)
    assert run is not None
    run.stacks.add(0, part(quiet.now // SECOND))
    run.exit("done", "", 1.0)
    quiet.now += 3600 * SECOND
    (rank,) = ask_lines(quiet).ranks
    assert rank.counts.samples == 20


SCRIPT = """
import time, hoptui
run = hoptui.connect("toy", stacks={stacks})
def augment():
    return sum(i * i for i in range(200_000))
for step in run.iterations():
    augment()
"""


def test_a_viewer_gets_the_lines_of_a_run(node: TestNode) -> None:
    node.start(SCRIPT.format(stacks=True))
    viewer = node.viewer()
    run = viewer.run()

    (rank,) = until(
        lambda: viewer.ask(messages.FetchStacks(id=1, run=run.run), messages.RunStacks).ranks,
        what="stack samples",
    )
    functions = {frame.function for stack in unpack(rank.samples) for frame in stack}
    assert "augment" in functions
    assert 0 < rank.samples.cost < 0.05


def test_a_run_that_does_not_want_it_is_not_sampled(node: TestNode) -> None:
    node.start(SCRIPT.format(stacks=False))
    viewer = node.viewer()
    run = viewer.run()
    until(lambda: viewer.vital(run.run).step > 3, what="some iterations")
    assert viewer.ask(messages.FetchStacks(id=1, run=run.run), messages.RunStacks).ranks == ()


def test_a_batch_is_due_after_a_minute_and_has_each_sample_once() -> None:
    windows = StackWindows()
    start = 10_000_000_000
    assert not windows.due(start)
    for second in range(0, 60, 2):
        windows.add(0, part(second))
        windows.add(1, part(second))
    assert not windows.due(start + RECORD_NS - 1)
    assert windows.due(start + RECORD_NS)
    batch = windows.take(start + RECORD_NS)
    assert batch is not None
    assert (batch.t, sorted(batch.parts), batch.most_bytes) == (start + RECORD_NS, [0, 1], MINUTE_BYTES)
    assert batch.samples == sum(sampled(part(second)) for second in range(0, 60, 2)) * 2
    assert not windows.due(start + RECORD_NS + 1)
    assert windows.take(start + RECORD_NS + 1) is None


def test_a_run_that_ends_again_and_again_writes_no_more_than_others() -> None:
    windows = StackWindows()
    allowed = 0
    for second in range(1, 3601):
        windows.due(second * 1_000_000_000)
        windows.add(0, part(second))
        batch = windows.take(second * 1_000_000_000)
        assert batch is not None
        allowed += batch.most_bytes
    assert allowed <= 62 * MINUTE_BYTES


def test_a_process_that_sends_too_much_loses_stacks_and_no_count() -> None:
    windows = StackWindows()
    sent = 3 * MOST_PARTS
    for number in range(sent):
        windows.add(0, part(number))
    batch = windows.take(1)
    assert batch is not None
    assert len(batch.parts[0]) <= MOST_PARTS
    assert batch.samples == sum(sampled(part(number)) for number in range(sent))


def test_the_samples_of_a_run_are_in_its_recording_once_it_has_ended(node: TestNode) -> None:
    process = node.start(SCRIPT.format(stacks=True))
    viewer = node.viewer()
    run = viewer.run()
    until(
        lambda: viewer.ask(messages.FetchStacks(id=1, run=run.run), messages.RunStacks).ranks,
        what="stack samples",
    )
    process.terminate()
    process.wait(30)
    path = node.where.recording(run.run)

    def recorded() -> list[int]:
        with Recording.open(path) as recording:
            return recording.minutes()[0]

    (t,) = until(recorded, what="the samples in the recording")
    with Recording.open(path) as recording:
        found = recording.minute(t)
    assert found is not None
    assert "augment" in {frame.function for stack in unpack(found.ranks[0]) for frame in stack}
