"""Advice: only knobs of the run, inside their bounds, what leaves learning alone first, never a batch that
has to wait."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoptui.diagnosis.advice import MOST, advise
from hoptui.diagnosis.knob_roles import NAMES
from hoptui.diagnosis.window import ObservationWindow
from hoptui.domain.diagnosis import Advice, Verdict
from hoptui.domain.facts import fact
from hoptui.domain.knobs import KnobState, check_value
from tests.diagnosis.loads import UNKNOWN, knob, synthetic, window


def seen(*knobs: KnobState, memory: float = 0.1, **more: Any) -> ObservationWindow:
    return window(gpus=(synthetic(memory=memory),), knobs=knobs, **more)


def advised(verdict: Verdict, *knobs: KnobState, **more: Any) -> list[tuple[str, str, object]]:
    return [(a.knob, a.direction, a.value) for a in advise(verdict, seen(*knobs, **more))]


def test_what_leaves_learning_alone_comes_first() -> None:
    found = advised(
        "launch-bound",
        knob("num_envs", 64, effect="learning"),
        knob("rollout_len", 32, effect="learning"),
        knob("minibatch_size", 512, effect="learning"),
        knob("grad_accum", 4),
        knob("compile", "off", choices=("auto", "off", "default"), cost="rebuild"),
    )
    assert found == [
        ("compile", "to", "default"),
        ("grad_accum", "down", 2),
        ("minibatch_size", "up", 1024),
    ]


def test_a_minibatch_is_no_larger_than_what_was_played() -> None:
    whole = (knob("num_envs", 16), knob("rollout_len", 32), knob("minibatch_size", 512, effect="learning"))
    assert advised("launch-bound", *whole) == [("num_envs", "up", 32)]
    assert ("minibatch_size", "up", 1024) in advised("launch-bound", *whole, world=2)


def test_advice_has_what_it_costs_and_whether_it_changes_what_is_learned() -> None:
    (learning,) = advise(
        "launch-bound", seen(knob("num_envs", 2048, effect="learning", cost="shape", took_s=8.255))
    )
    assert learning.fact == fact(
        "advice.knob",
        knob="num_envs",
        before=2048,
        value=4096,
        effect="learning",
        cost="shape",
        took_s=8.3,
    )
    (speed,) = advise("memory-unused", seen(knob("micro_batch", 8), knob("grad_accum", 8)))
    what = fact("advice.knob", knob="micro_batch", before=8, value=16, effect="speed", cost="shape")
    assert speed == Advice(knob="micro_batch", direction="up", value=16, fact=what)


@pytest.mark.parametrize("memory", [0.5, UNKNOWN])
def test_nothing_grows_where_there_may_be_no_room(memory: float) -> None:
    pieces = (knob("micro_batch", 8), knob("grad_accum", 8), knob("minibatch_size", 64))
    assert advised("memory-unused", *pieces, memory=memory) == []
    assert advised("launch-bound", *pieces, memory=memory) == [("", "", None)]


@pytest.mark.parametrize(
    ("workers", "cpus", "host_cpu", "expected"),
    [
        (0, 16, 0.1, 4),
        (0, 2, 0.1, 2),
        (6, 16, 0.1, 12),
        (12, 16, 0.1, 16),
        (16, 16, 0.1, None),
        (4, 16, 0.95, None),
        (0, 0, UNKNOWN, 4),
    ],
)
def test_more_workers_while_there_are_cores(
    workers: int, cpus: int, host_cpu: float, expected: int | None
) -> None:
    found = advised(
        "data-bound", knob("num_workers", workers, least=0, most=64), cpus=cpus, host_cpu=host_cpu
    )
    assert found == [("num_workers", "up", expected) if expected else ("", "", None)]


@pytest.mark.parametrize(
    ("workers", "choices", "cpus", "expected"),
    [
        (0, (0, 1, 2, 4, 8, 16), 16, 4),
        (0, (0, 1, 2, 4, 8, 16), 2, 2),
        (4, (0, 1, 2, 4, 8, 16), 16, 8),
        (0, (0, 2, 8), 16, 2),
        (0, (0, 8), 16, 8),
        (0, (0, 8), 4, None),
        (8, (8, 2, 0), 16, None),
    ],
)
def test_more_workers_of_choices(
    workers: int, choices: tuple[int, ...], cpus: int, expected: int | None
) -> None:
    found = advised("data-bound", knob("num_workers", workers, choices=choices), cpus=cpus, host_cpu=0.1)
    assert [value for _, _, value in found] == [expected]


@pytest.mark.parametrize(
    ("data", "busy", "advice"),
    [(0.12, 0.85, [("num_workers", "up", 4)]), (0.12, 1.0, []), (0.03, 0.85, []), (0.12, UNKNOWN, [])],
)
def test_more_workers_where_a_gpu_waits_now_and_then_whatever_limits_it(
    data: float, busy: float, advice: list[tuple[str, str, object]]
) -> None:
    seen = window(
        phases={"data": data}, gpus=(synthetic(busy=busy),), knobs=(knob("num_workers", 2, most=64),)
    )
    assert [(a.knob, a.direction, a.value) for a in advise("healthy", seen)] == advice
    assert advise("unknown", seen) == ()


@pytest.mark.parametrize(
    ("pieces", "filled", "expected"),
    [
        (32, 0.02, 2),
        (32, 0.1, 4),
        (32, 0.2, 8),
        (32, 0.4, 16),
        (4, 0.02, 1),
        (32, 0.5, None),
        (32, UNKNOWN, None),
    ],
)
def test_without_a_gpu_pieces_grow_as_far_as_the_memory_of_the_host_allows(
    pieces: int, filled: float, expected: int | None
) -> None:
    seen = window(knobs=(knob("grad_accum", pieces),), host_filled=filled)
    found = [(a.knob, a.direction, a.value) for a in advise("memory-unused", seen)]
    assert found == ([("grad_accum", "down", expected)] if expected else [])


def test_without_a_gpu_a_micro_batch_is_at_most_the_batch() -> None:
    seen = window(knobs=(knob("micro_batch", 8), knob("grad_accum", 4)), host_filled=0.01)
    assert [(a.knob, a.value) for a in advise("memory-unused", seen)] == [("micro_batch", 32)]


def test_at_the_power_limit_more_samples_share_what_a_step_draws() -> None:
    batch = knob("batch_size", 128, effect="learning")

    def at_limit(*knobs: KnobState, sm: float = 0.88, memory: float = 0.1) -> list[tuple[str, object]]:
        seen = window(gpus=(synthetic(sm=sm, memory=memory),), knobs=knobs)
        return [(a.knob, a.value) for a in advise("power-limited", seen)]

    assert at_limit(batch) == [("batch_size", 256)]
    assert at_limit(batch, knob("grad_accum", 2)) == [("grad_accum", 1)]
    assert at_limit(batch, memory=0.5) == [("", None)]
    assert at_limit(batch, sm=0.95) == [("", None)], "hardly anything is drawn besides"


BATCHES = ("micro_batch", "minibatch_size", "batch_size", "batch_tokens", "num_envs", "grad_accum")


@pytest.mark.parametrize("verdict", ["data-bound", "env-bound"])
def test_the_batch_of_a_run_that_waits_is_never_raised(verdict: Verdict) -> None:
    (nothing,) = advise(verdict, seen(*(knob(name, 8) for name in BATCHES)))
    assert nothing == Advice(fact=fact("advice.without_a_knob", verdict=verdict))


def test_number_formats_and_recomputing() -> None:
    formats = ("auto", "fp32", "tf32", "bf16", "fp16")
    assert advised("compute-bound", knob("precision", "fp32", choices=formats)) == [
        ("precision", "to", "bf16")
    ]
    assert advised("compute-bound", knob("precision", "bf16", choices=formats)) == [("", "", None)]
    assert advised("compute-bound", knob("checkpointing", True)) == [("checkpointing", "to", False)]
    assert advised("compute-bound", knob("checkpointing", True), memory=0.8) == [("", "", None)]


def test_what_restarts_the_run_is_not_advised() -> None:
    assert advised("launch-bound", knob("num_envs", 8, cost="restart")) == [("", "", None)]


def test_choices_are_kept_to() -> None:
    micro = knob("micro_batch", 8, choices=(4, 8, 12, 64))
    assert advised("memory-unused", micro, knob("grad_accum", 4)) == [("micro_batch", "up", 12)]


VALUES = st.one_of(
    st.integers(-2, 1 << 20), st.booleans(), st.sampled_from(("off", "auto", "fp32", "bf16", "x"))
)


@given(
    verdict=st.sampled_from(get_args(Verdict)),
    values=st.dictionaries(
        st.sampled_from([n for names in NAMES.values() for n in names]), VALUES, max_size=8
    ),
    bounds=st.tuples(st.integers(-2, 64), st.integers(0, 4096)),
    memory=st.floats(0, 1),
    cpus=st.integers(0, 64),
)
def test_advice_is_within_bounds_whatever_the_knobs_are(
    verdict: Verdict, values: dict[str, Any], bounds: tuple[int, int], memory: float, cpus: int
) -> None:
    knobs = [knob(name, value, least=bounds[0], most=sum(bounds)) for name, value in values.items()]
    found = advise(verdict, seen(*knobs, memory=memory, cpus=cpus))
    assert len(found) <= MOST
    for advice in found:
        known = {k.spec.name: k for k in knobs}
        if not advice.knob:
            assert advice.fact == fact("advice.without_a_knob", verdict=verdict)
            continue
        assert advice.value is not None
        assert check_value(known[advice.knob].spec, advice.value) != known[advice.knob].value
