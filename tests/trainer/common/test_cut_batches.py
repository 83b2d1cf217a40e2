"""However a batch is cut, and whenever that changes, the same is learned: for each workload that cuts its
batches."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import hoptui
from hoptui.protocol.messages import Command
from hoptui_trainer.common.batch import piece_for
from hoptui_trainer.common.meter import Meter
from hoptui_trainer.common.phases import NO_CLOCK
from hoptui_trainer.common.ranks import RankGroup
from hoptui_trainer.lm import declarations as lm_live
from hoptui_trainer.lm import update as lm_update
from hoptui_trainer.vision import declarations as vision_live
from hoptui_trainer.vision import update as vision_update
from tests.run_state import run_state
from tests.trainer.gpu.small import lm_state, vision_state, weights

CPU = torch.device("cpu")
STEPS, AT = 3, 1
"""Iterations of a run, and the one in which its knob is turned."""
COUNTS = (1, 3, 8)
"""Pieces that batches of eight samples are cut in: whole, with a rest, and one by one."""


class Workload(NamedTuple):
    """A workload on the smallest model there is; `loss` names what its state computes a piece with."""

    state: Callable[..., Any]
    declare: Callable[[hoptui.Run, Any, Meter], object]
    update: Callable[..., dict[str, Tensor]]
    loss: str


def small_lm(**fields: Any) -> Any:
    sizes = {"d_model": 16, "layers": 1, "seq_len": 16, "batch_tokens": 128, "eval_tokens": 32}
    return lm_state(CPU, **{**sizes, **fields})


def small_vision(**fields: Any) -> Any:
    return vision_state(CPU, **{"d_model": 16, "layers": 1, "image_size": 8, "batch_size": 8, **fields})


WORKLOADS = {
    "lm": Workload(small_lm, lm_live.declare, lm_update.update, "nats"),
    "vision": Workload(small_vision, vision_live.declare, vision_update.update, "losses"),
}


@pytest.fixture(params=list(WORKLOADS))
def workload(request: pytest.FixtureRequest) -> Workload:
    return WORKLOADS[request.param]


class Steered:
    """A run of `STEPS` iterations, in which a knob is asked for before piece number `phase` of iteration
    `AT`.

    `cut` are the pieces of each iteration, `tried_out` the sizes of those that were computed between two.
    """

    def __init__(
        self, workload: Workload, state: Any, knob: str = "", value: int | str = 0, phase: int = 0
    ) -> None:
        self.cut: list[int] = []
        self.tried_out: list[int] = []
        self.losses: list[float] = []
        self._computing = False
        compute = getattr(state, workload.loss)

        def watched(*args: Any) -> Tensor:
            if self._computing:
                if knob and len(self.losses) == AT and self.cut[-1] == phase:
                    self._ask(knob, value)
                self.cut[-1] += 1
            else:
                self.tried_out.append(len(args[0]))
            found: Tensor = compute(*args)
            return found

        setattr(state, workload.loss, watched)
        self.run = hoptui.connect("a test")
        with self.run:
            workload.declare(self.run, state, Meter(CPU))
            for _ in self.run.iterations(STEPS):
                self.cut.append(0)
                self._computing = True
                self.losses.append(float(workload.update(state, 1e-2, NO_CLOCK)["loss"]))
                self._computing = False
        self.weights = weights(state.model)

    def _ask(self, knob: str, value: int | str) -> None:
        command = Command(
            id="turned", run=self.run.id, epoch=run_state(self.run).epoch, verb="set", knob=knob, value=value
        )
        run_state(self.run).inbox.receive(command, time.monotonic(), self.run.step + 1)


def recut(workload: Workload, state: Any, micro_batch: int, at: int) -> tuple[list[float], Tensor]:
    """Losses and weights of a run whose batches are cut into pieces of `micro_batch` from iteration `at`
    on."""
    losses = []
    for step in range(STEPS):
        if step == at:
            state.config.micro_batch = micro_batch
            state.fit()
        losses.append(float(workload.update(state, 1e-2, NO_CLOCK)["loss"]))
    return losses, weights(state.model)


@pytest.mark.parametrize("before", COUNTS)
def test_a_change_waits_for_the_boundary_and_is_as_if_it_had_been_so_from_there(
    before: int, workload: Workload
) -> None:
    uncut, _ = recut(workload, workload.state(micro_batch=8), 8, 0)
    for after in COUNTS:
        if after == before:
            continue
        state = workload.state(micro_batch=-(-8 // before))
        losses, expected = recut(workload, state, piece_for(state.config, after, 1), AT + 1)
        for phase in range(before):
            state = workload.state(micro_batch=-(-8 // before))
            found = Steered(workload, state, "grad_accum", after, phase)
            assert found.cut == [before] * (AT + 1) + [after] * (STEPS - AT - 1), (after, phase)
            assert torch.equal(found.weights, expected), (after, phase)
            assert found.losses == losses
            assert found.losses == pytest.approx(uncut, abs=1e-5)


def test_micro_batches_that_change_leave_the_curve_as_it_was(workload: Workload) -> None:
    whole = Steered(workload, workload.state(micro_batch=8))
    assert len(set(whole.losses)) == STEPS
    for size in (1, 3, 5):
        found = Steered(workload, workload.state(micro_batch=8), "micro_batch", size)
        assert found.cut[-1] == -(-8 // size)
        assert found.losses == pytest.approx(whole.losses, abs=1e-5)


@pytest.mark.parametrize(
    ("knob", "value", "sizes"),
    [("micro_batch", 3, [3, 2]), ("grad_accum", 8, [1]), ("precision", "bf16", [8])],
)
def test_a_change_is_applied_once_its_pieces_have_been_computed(
    knob: str, value: int | str, sizes: list[int], workload: Workload
) -> None:
    """So what it took covers what had to be compiled for it."""
    found = Steered(workload, workload.state(micro_batch=8), knob, value)
    assert found.tried_out[-len(sizes) :] == sizes
    (outcome,) = run_state(found.run).inbox.collect_outcomes()
    assert (outcome.stage, outcome.effective) == ("applied", value)
    assert [
        handle.name for handle in run_state(found.run).declarations.knobs.values() if not handle.in_effect
    ] == []


@pytest.mark.parametrize(
    ("micro_batch", "knob", "value", "follow"),
    [
        (8, "grad_accum", 4, {"micro_batch": 2}),
        (4, "grad_accum", 0, {"micro_batch": 4, "grad_accum": 2}),
        (3, "precision", "auto", {"precision": "fp32"}),
        (0, "micro_batch", 0, {"grad_accum": 1}),
    ],
)
def test_what_follows_or_was_left_open_is_in_effect_as_it_is(
    micro_batch: int, knob: str, value: int | str, follow: dict[str, object], workload: Workload
) -> None:
    found = Steered(workload, workload.state(micro_batch=micro_batch), knob, value)
    (outcome,) = run_state(found.run).inbox.collect_outcomes()
    assert (outcome.stage, outcome.code) == ("applied", "")
    handles = run_state(found.run).declarations.knobs
    assert {name: handles[name].value for name in follow} == follow
    assert [handle.name for handle in handles.values() if not handle.in_effect] == []


@pytest.mark.parametrize(("knob", "value"), [("micro_batch", 4), ("grad_accum", 4), ("precision", "bf16")])
def test_what_is_tried_out_for_a_knob_is_no_part_of_the_steady_rate(
    knob: str, value: int | str, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    state, meter, run = workload.state(micro_batch=8), Meter(CPU, lambda: now), hoptui.connect("a test")
    prove_sizes = state.prove_sizes

    def slow() -> None:
        nonlocal now
        now += 50.0
        prove_sizes()

    monkeypatch.setattr(state, "prove_sizes", slow)
    workload.declare(run, state, meter)
    meter.begin()
    command = Command(id="turned", run=run.id, epoch=1, verb="set", knob=knob, value=value)
    run_state(run).inbox.receive(command, time.monotonic(), 1)
    run.boundary()
    assert (run_state(run).inbox.collect_outcomes()[0].stage, now) == ("applied", 50.0)
    now += 2.0
    meter.add(10, None)
    meter.pause()
    assert meter.rate() == 5.0


def test_what_was_too_much_is_refused_with_its_reason(workload: Workload) -> None:
    state = workload.state(micro_batch=4)
    compute = getattr(state, workload.loss)
    tried = 0

    def full(*args: Any) -> Tensor:
        nonlocal tried
        if state.position and len(args[0]) > 3:
            tried += 1
            raise torch.OutOfMemoryError("made up")
        found: Tensor = compute(*args)
        return found

    setattr(state, workload.loss, full)
    found = Steered(workload, state, "micro_batch", 6, phase=1)
    (outcome,) = run_state(found.run).inbox.collect_outcomes()
    assert (outcome.stage, outcome.effective) == ("failed", 2)
    assert (outcome.code, outcome.fields["value"]) == ("setter_failed", 6)
    assert re.findall(r"\d+", outcome.fields["error"]) == ["4", "3"]  # too much before, and the most now
    assert tried == 1
    assert found.cut == [2, 1 + 4, 4]


class Twin(RankGroup):
    """Another rank that computes what this one does; in iteration `AT` its memory runs out if it is
    `short`."""

    votes = 0
    short = False

    def add(self, tensor: Tensor) -> None:
        tensor.mul_(2)

    def all(self, ok: bool) -> bool:
        Twin.votes += 1
        return ok and not (Twin.short and Twin.votes == AT + 1)


@pytest.mark.parametrize("where", ["forward", "backward", "step", "the other rank"])
def test_where_memory_runs_out_the_same_is_learned(
    where: str, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = Twin(0, 2, 0, 2)
    piece = 4 if where == "step" else 2
    losses, expected = recut(workload, twinned(workload, twin), piece, AT)
    state = twinned(workload, twin)
    failures: list[int] = []

    def short(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if state.position and not failures:
                failures.append(1)
                raise torch.OutOfMemoryError("made up")
            return function(*args, **kwargs)

        return called

    match where:
        case "forward":
            monkeypatch.setattr(state, workload.loss, short(getattr(state, workload.loss)))
        case "backward":
            monkeypatch.setattr(torch.autograd, "backward", short(torch.autograd.backward))
        case "step":
            monkeypatch.setattr(state.optimizer, "step", short(state.optimizer.step))
        case _:
            monkeypatch.setattr(Twin, "votes", 0)
            monkeypatch.setattr(Twin, "short", True)
    found = Steered(workload, state)
    assert len(failures) == (where != "the other rank")
    assert found.losses == losses
    assert torch.equal(found.weights, expected)
    assert run_state(found.run).declarations.knobs["micro_batch"].value == piece
    reverted = [note.fields for note in run_state(found.run).notes if note.code == "knob.reverted"]
    assert any("out of memory" in fields["why"]["fields"]["reason"] for fields in reverted) == (
        where != "step"
    )


def twinned(workload: Workload, ranks: RankGroup) -> Any:
    """A state that computes half of each batch."""
    state = workload.state(micro_batch=4)
    state.ranks = state.pieces._ranks = state.dry_run._ranks = ranks
    state.fit()
    return state
