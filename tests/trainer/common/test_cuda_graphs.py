from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch

from hoptui_trainer.common import cuda_graphs as module
from hoptui_trainer.common.cuda_graphs import WARM_UPS, CudaRecorder, Graphs, Work, graphs

CPU = torch.device("cpu")


class Tape:
    """A recorder without a GPU: a "graph" repeats what the function did to a counter when it was captured."""

    def __init__(self) -> None:
        self.warm_ups, self.captures, self.replays, self.forgotten = 0, 0, 0, 0
        self.error: Exception | None = None

    def warm_up(self, function: Work) -> None:
        self.warm_ups += 1
        function()

    def capture(self, function: Work) -> Work:
        if self.error is not None:
            raise self.error
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            function()

        return replay

    def forget(self) -> None:
        self.forgotten += 1


def counting() -> tuple[Callable[[], None], list[int]]:
    calls = [0]

    def work() -> None:
        calls[0] += 1

    return work, calls


def test_without_a_gpu_functions_run_as_they_are() -> None:
    plain, (work, calls) = graphs(CPU), counting()
    assert not plain.active
    for _ in range(5):
        plain.run("work", work)
    assert (calls, plain.captured) == ([5], 0)


def test_every_call_does_the_work_once_while_it_becomes_a_graph() -> None:
    tape, (work, calls) = Tape(), counting()
    recorded = Graphs(tape)
    for turn in range(1, 8):
        recorded.run("work", work)
        assert calls == [turn]
    assert (tape.warm_ups, tape.captures, tape.replays) == (WARM_UPS, 1, 7 - WARM_UPS)
    assert recorded.captured == 1


def test_each_key_has_a_graph_of_its_own_and_the_least_used_goes_first() -> None:
    tape, (work, _) = Tape(), counting()
    recorded = Graphs(tape, kept=2)
    for key in ("a", "b"):
        for _ in range(WARM_UPS + 1):
            recorded.run(key, work)
    recorded.run("a", work)
    for _ in range(WARM_UPS + 1):
        recorded.run("c", work)  # b goes
    assert tape.captures == 3
    recorded.run("a", work)
    assert (tape.captures, tape.warm_ups) == (3, 3 * WARM_UPS)
    recorded.run("b", work)
    assert tape.warm_ups == 3 * WARM_UPS + 1


def test_clear_forgets_all_graphs_and_their_memory() -> None:
    tape, (work, calls) = Tape(), counting()
    recorded = Graphs(tape)
    for _ in range(4):
        recorded.run("work", work)
    recorded.clear()
    assert tape.forgotten == 1
    for _ in range(4):
        recorded.run("work", work)
    assert (tape.captures, calls) == (2, [8])


def test_a_graph_can_be_made_before_it_is_needed() -> None:
    tape, (work, calls) = Tape(), counting()
    recorded, begun = Graphs(tape), [0]

    def begin() -> None:
        begun[0] += 1

    recorded.prepare("work", work, "small", before=begin)
    recorded.prepare("work", work, "small", before=begin)
    assert (tape.warm_ups, tape.captures, calls, begun) == (WARM_UPS, 1, [WARM_UPS], [WARM_UPS])
    recorded.run("work", work, "small")
    assert (tape.replays, calls) == (1, [WARM_UPS + 1])
    recorded.run("half", work)
    recorded.prepare("half", work, before=begin)  # what was run already counts
    assert (tape.warm_ups, tape.captures) == (2 * WARM_UPS, 2)


def test_without_a_recorder_a_function_is_prepared_by_running_it_once() -> None:
    plain, (work, calls) = graphs(CPU), counting()
    for _ in range(3):
        plain.prepare("work", work, before=lambda: None)
    assert calls == [1]


def test_the_graphs_of_an_owner_go_together() -> None:
    tape, (work, _) = Tape(), counting()
    recorded = Graphs(tape)
    for owner in ("small", "large"):
        recorded.prepare("work", work, owner, before=lambda: None)
    recorded.drop("small")
    recorded.run("work", work, "large")
    assert (tape.warm_ups, tape.replays, tape.forgotten) == (2 * WARM_UPS, 1, 0)
    recorded.run("work", work, "small")
    assert tape.warm_ups == 2 * WARM_UPS + 1
    recorded.drop("large")
    assert tape.forgotten == 1  # with the last graph


def test_a_graph_keeps_what_its_function_refers_to() -> None:
    recorded, held = Graphs(Tape()), torch.zeros(1)
    known = weakref.ref(held)
    recorded.prepare("add", partial(held.add_, 1), before=lambda: None)  # type: ignore[arg-type]
    del held
    assert known() is not None
    recorded.clear()
    assert known() is None


def test_graphs_that_are_not_wanted_are_not_made() -> None:
    tape, (work, calls) = Tape(), counting()
    recorded = Graphs(tape)
    recorded.wanted = False
    for _ in range(5):
        recorded.run("work", work)
    assert (calls, tape.warm_ups, recorded.active) == ([5], 0, False)


def test_a_function_whose_graph_has_no_room_runs_as_it_is() -> None:
    tape, (work, calls) = Tape(), counting()
    recorded = Graphs(tape)
    tape.error = torch.OutOfMemoryError("made up")
    for _ in range(5):
        recorded.run("work", work)
    assert (calls, recorded.refused, recorded.captured) == ([5], 1, 0)


def test_any_other_error_of_a_capture_is_raised() -> None:
    tape, (work, _) = Tape(), counting()
    recorded = Graphs(tape)
    tape.error = RuntimeError("operation not permitted when stream is capturing")
    for _ in range(WARM_UPS):
        recorded.run("work", work)
    with pytest.raises(RuntimeError, match="not permitted"):
        recorded.run("work", work)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> CudaRecorder:
    """A recorder of CUDA graphs whose CUDA is not there."""

    @contextmanager
    def graph(*_: Any, **__: Any) -> Iterator[None]:
        yield

    for name in ("Stream", "CUDAGraph", "current_stream", "set_stream", "graph_pool_handle"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    return CudaRecorder(CPU)


def test_memory_is_given_back_when_no_graph_replays_any_more(
    recorder: CudaRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    for name in ("wait_for", "release"):
        monkeypatch.setattr(module, name, lambda _, name=name: order.append(name))
    recorder.forget()
    assert order == ["wait_for", "release"]


def test_a_capture_that_failed_keeps_nothing_alive(recorder: CudaRecorder) -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    def work() -> None:
        tensor = torch.zeros(1)
        made.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError

    gc.disable()  # as PPO's loop does
    try:
        with pytest.raises(torch.OutOfMemoryError):
            recorder.capture(work)
        assert made[0]() is None
    finally:
        gc.enable()
