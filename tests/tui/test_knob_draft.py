"""The draft of a knob's value: steps follow the scale and never leave the bounds; errors are one sentence."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoptui.domain.knobs import KnobError, KnobSpec, KnobState, KnobValue, check_value, parse_value
from hoptui.model.command_history import as_typed
from hoptui.tui.run_control import Seen
from hoptui.tui.screens.knob_editor.content import KnobDraft, stepped

ACCUM = KnobSpec(name="grad_accum", kind="int", default=4, min=1, max=64)
ENVS = KnobSpec(name="num_envs", kind="int", default=1000, min=1, max=65536, scale="log")
LEN = KnobSpec(name="rollout_len", kind="int", default=64, min=8, max=1024, scale="pow2")
LR = KnobSpec(name="lr", kind="float", default=3e-4, min=1e-6, max=0.1, scale="log")
AUTO = KnobSpec(name="micro_batch", kind="int", default=0, min=0, max=4096, scale="log")
ODD = KnobSpec(name="rollout_len", kind="int", default=64, min=3, max=1000, scale="pow2")
DECAY = KnobSpec(name="decay", kind="float", default=0.01, min=0.0, max=1.0, scale="log")
CLIP = KnobSpec(name="clip", kind="float", default=0.2, min=0.0, max=1.0)
FLAG = KnobSpec(name="compile", kind="bool", default=False)
KIND = KnobSpec(name="precision", kind="str", default="bf16", choices=("fp32", "bf16", "fp8"))
TEXT = KnobSpec(name="note", kind="str", default="")


@pytest.mark.parametrize(
    ("spec", "value", "up", "down"),
    [
        (ACCUM, 4, 5, 3),
        (ACCUM, 64, 64, 63),
        (ACCUM, 1, 2, 1),
        (ENVS, 1000, 2000, 500),
        (ENVS, 50_000, 65_536, 25_000),
        (LEN, 64, 128, 32),
        (LEN, 1024, 1024, 512),
        (LR, 3e-4, 5e-4, 2e-4),
        (LR, 2.7e-4, 3e-4, 2e-4),
        (LR, 1e-3, 2e-3, 5e-4),
        (LR, 0.08, 0.1, 0.05),
        (LR, 1e-6, 2e-6, 1e-6),
        (AUTO, 0, 1, 0),
        (AUTO, 1, 2, 0),
        (CLIP, 0.2, 0.21, 0.19),
        (CLIP, 0.205, 0.21, 0.2),
        (CLIP, 0.0, 0.01, 0.0),
        (FLAG, False, True, True),
        (KIND, "bf16", "fp8", "fp32"),
        (KIND, "fp8", "fp8", "bf16"),
        (TEXT, "a", "a", "a"),
    ],
)
def test_a_step_follows_the_scale(spec: KnobSpec, value: KnobValue, up: KnobValue, down: KnobValue) -> None:
    assert stepped(spec, value, 1) == up
    assert stepped(spec, value, -1) == down


@pytest.mark.parametrize(
    ("spec", "value", "up", "down"),
    [
        (ACCUM, 4, 10, 1),
        (ACCUM, 20, 30, 10),
        (ENVS, 1000, 8000, 125),
        (LEN, 64, 512, 8),
        (ODD, 512, 512, 64),
        (ODD, 4, 32, 4),
        (LR, 3e-4, 3e-3, 3e-5),
        (LR, 0.05, 0.1, 5e-3),
        (DECAY, 0.0, 0.01, 0.0),
        (CLIP, 0.2, 0.3, 0.1),
        (FLAG, False, True, True),
        (KIND, "bf16", "fp8", "fp32"),
        (TEXT, "a", "a", "a"),
    ],
)
def test_a_leap_is_a_power_of_ten_or_three_doublings(
    spec: KnobSpec, value: KnobValue, up: KnobValue, down: KnobValue
) -> None:
    assert stepped(spec, value, 1, leap=True) == up
    assert stepped(spec, value, -1, leap=True) == down


@given(
    st.sampled_from(["linear", "log"]),
    st.floats(1e-9, 1e9),
    st.lists(st.sampled_from([1, -1]), max_size=12),
    st.booleans(),
    st.booleans(),
)
def test_steps_never_leave_the_bounds(
    scale: str, start: float, steps: list[int], whole: bool, leap: bool
) -> None:
    low, high = (1, 10**9) if whole else (1e-9, 1e9)
    value: KnobValue = max(1, int(start)) if whole else start
    kind = "int" if whole else "float"
    spec = KnobSpec(name="k", kind=kind, default=value, min=low, max=high, scale=scale)  # type: ignore[arg-type]
    for direction in steps:
        before, value = value, stepped(spec, value, direction, leap=leap)
        check_value(spec, value)
        at_end = before in (spec.min, spec.max)
        assert value != before or at_end
        assert (value > before) == (direction > 0) or value == before  # type: ignore[operator]


@pytest.mark.parametrize("scale", ["linear", "log", "pow2"])
@pytest.mark.parametrize("leap", [False, True])
@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("value", [0.0, -1.0, 5e-324, 1e-320, 1.0, 1e308, 1.7e308, math.inf, math.nan])
def test_no_number_is_too_odd_for_a_step(scale: str, value: float, direction: int, leap: bool) -> None:
    for bounds in ({}, {"min": -math.inf, "max": math.inf}, {"min": 0.0}):
        spec = KnobSpec(name="k", kind="float", default=1.0, scale=scale, **bounds)  # type: ignore[arg-type]
        moved = stepped(spec, value, direction, leap=leap)
        assert isinstance(moved, float)
        assert math.isfinite(moved)


@pytest.mark.parametrize(
    ("spec", "value"), [(ACCUM, 4), (LR, 3e-4), (LR, 1e-6), (CLIP, 0.1 + 0.2), (FLAG, True), (KIND, "fp8")]
)
def test_what_a_draft_shows_is_what_it_reads(spec: KnobSpec, value: KnobValue) -> None:
    assert parse_value(spec, as_typed(value)) == value


def refused(check: Callable[[], object]) -> str:
    with pytest.raises(KnobError) as error:
        check()
    return str(error.value)


def test_typing_reports_one_sentence_and_keeps_the_text() -> None:
    draft = KnobDraft(KnobState(spec=ACCUM, value=4, version=3), 1)
    assert (draft.value, draft.seen, draft.error) == (4, Seen(1, 3, 4), "")
    draft.type("100")
    assert str(draft.value) == "None"
    assert draft.error == refused(lambda: check_value(ACCUM, 100))
    draft.type("eight")
    assert draft.error == refused(lambda: parse_value(ACCUM, "eight"))
    draft.type("8")
    assert (draft.value, draft.error) == (8, "")


def test_a_step_from_bad_text_starts_at_the_value_in_effect() -> None:
    draft = KnobDraft(KnobState(spec=LEN, value=64), 1)
    draft.type("what")
    draft.step(1, 64)
    assert (draft.typed, draft.value) == ("128", 128)
