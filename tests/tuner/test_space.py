"""Levers: which knobs may be turned, in which order, by which values."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from msgspec import structs

from hoptui.domain.diagnosis import Advice, Diagnosis
from hoptui.domain.knobs import KnobSpec
from hoptui.domain.tuning import Limits
from hoptui.tuner.search.space import advised, levers, notches, ranked, standstill
from tests.tuner.simulated_run import PRODUCT, knob, pair

RUN = (
    *pair(),
    knob("num_workers", 4, cost="rebuild"),
    knob("compile", "off", cost="rebuild", choices=("auto", "off", "default")),
    knob("chunk", 4, cost="free"),
    knob("env_workers", 4, cost="rebuild"),
)


def names(verdict: Any = "unknown", confidence: float = 0.9, *advice: Advice) -> list[str]:
    diagnosis = Diagnosis(verdict=verdict, confidence=confidence, advice=advice)
    return [lever.name for lever in ranked(levers(RUN, Limits(), ()), diagnosis)]


@pytest.mark.parametrize(
    "name", ["logging_steps", "save_steps", "eval_interval", "log_every_n_steps", "snapshot_every"]
)
def test_an_interval_is_turned_only_by_name(name: str) -> None:
    knobs = [knob(name, 500), knob("num_workers", 4, cost="rebuild")]
    assert [lever.name for lever in levers(knobs, Limits(learning=("*",)), ())] == ["num_workers"]
    assert name in [lever.name for lever in levers(knobs, Limits(learning=(name,)), ())]


@pytest.mark.parametrize(
    ("name", "turned"),
    [
        ("save_checkpoints", False),
        ("dump_grads", False),
        ("do_eval", False),
        ("logging", False),
        ("gradient_checkpointing", True),
    ],
)
def test_what_a_run_does_besides_training_is_switched_only_by_name(name: str, turned: bool) -> None:
    bools: dict[str, Any] = {"kind": "bool", "min": None, "max": None, "scale": "linear"}
    switch = knob(name, True, **bools)
    assert bool(levers([switch], Limits(), ())) is turned
    assert levers([switch], Limits(learning=(name,)), ())


def test_the_ladder_has_steps_of_about_root_two() -> None:
    spec = KnobSpec(name="n", kind="int", default=1)
    assert list(islice(notches(spec), 14)) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    powers = KnobSpec(name="n", kind="int", default=1, max=20, scale="pow2")
    assert list(notches(powers)) == [1, 2, 4, 8, 16]


def test_between_rungs_lie_multiples_of_eight_that_keep_the_product() -> None:
    (alone,) = levers([knob("micro_batch", 64)], Limits(), ())
    assert [v for v in alone.finer() if 48 <= alone.size_of(v) <= 128] == [
        48,
        56,
        64,
        72,
        80,
        88,
        96,
        104,
        112,
        120,
        128,
    ]
    (both,) = levers(pair(64, 15), Limits(), ())
    assert [v for v in both.finer() if 64 <= both.size_of(v) <= 128] == [64, 80, 96, 120]
    (pieces,) = levers([knob("grad_accum", 8)], Limits(), ())
    assert pieces.finer() == pieces.rungs()


def test_numeric_choices_are_sizes_in_their_own_steps() -> None:
    (lever,) = levers([knob("rows", 2, cost="free", choices=(1, 2, 4, 32, 36))], Limits(), ())
    assert lever.ordered
    assert lever.rungs() == lever.finer() == [1, 2, 4, 32, 36]
    assert lever.family == "other", "its name tells nothing"


def test_choices_that_keep_a_product_are_those_that_divide_it() -> None:
    both = knob("micro_batch", 2, choices=(1, 2, 3, 4, 5, 8), keeps=PRODUCT), pair()[1]
    (lever,) = levers(both, Limits(), ())
    assert lever.rungs() == [1, 2, 4, 8]


def test_choices_with_a_special_number_have_no_order() -> None:
    (lever,) = levers([knob("bucket", 25, choices=(-1, 25, 50))], Limits(), ())
    assert not lever.ordered
    assert lever.alternatives() == [-1, 50]
    assert lever.family == "mode"


@pytest.mark.parametrize(
    ("value", "choices", "found"),
    [
        ("default", ("auto", "off", "default", "max-autotune"), ["off", "max-autotune"]),
        ("auto", ("auto", "off", "default"), ["off", "default"]),
        ("on", ("auto", "on"), ["auto"]),  # nothing else shows what it stands for
    ],
)
def test_an_automatic_choice_is_one_of_the_others(
    value: str, choices: tuple[str, ...], found: list[str]
) -> None:
    words: dict[str, Any] = {"kind": "str", "min": None, "max": None, "scale": "linear"}
    (lever,) = levers([knob("compile", value, choices=choices, **words)], Limits(), ())
    assert lever.alternatives() == found


def test_the_alternatives_of_a_switch() -> None:
    (lever,) = levers([knob("fused", False, kind="bool", min=None, max=None, scale="linear")], Limits(), ())
    assert (lever.alternatives(), lever.rungs()) == ([True], [])


def test_what_costs_nothing_comes_first_and_what_is_on_last() -> None:
    bools: dict[str, Any] = {"kind": "bool", "min": None, "max": None, "scale": "linear"}
    run = [
        knob("compile", False, cost="rebuild", **bools),
        knob("sync", True, cost="free", **bools),
        knob("fused", False, cost="free", **bools),
    ]
    found = ranked(levers(run, Limits(), ()), None)
    assert [lever.name for lever in found] == ["fused", "compile", "sync"]


def test_pieces_alone_are_larger_where_they_are_fewer() -> None:
    (lever,) = levers([knob("grad_accum", 8)], Limits(), ())
    rungs = lever.rungs()
    assert rungs[-1] == 1
    assert [lever.size_of(v) for v in rungs] == sorted(lever.size_of(v) for v in rungs)


@pytest.mark.parametrize(
    ("name", "counts"), [("micro_batch_split", True), ("split_size", False), ("parts", True)]
)
def test_a_name_that_ends_with_pieces_counts_them(name: str, counts: bool) -> None:
    (lever,) = levers([knob(name, 4, choices=(1, 2, 4, 8))], Limits(), ())
    assert (lever.size_of(2) > lever.size_of(4)) is counts


def test_an_invariant_makes_one_lever_of_two_knobs_and_the_pieces_follow() -> None:
    accum, micro = pair()[1], pair()[0]
    (lever,) = levers([accum, micro], Limits(), ())
    assert lever.name == "micro_batch"
    assert [(c.knob, c.value) for c in lever.changes(16)] == [("micro_batch", 16), ("grad_accum", 32)]


@pytest.mark.parametrize("frozen", ["micro_batch", "grad_accum"])
def test_a_frozen_half_of_an_invariant_holds_the_other(frozen: str) -> None:
    assert levers(pair(), Limits(), {frozen}) == []


def test_a_product_that_nobody_knows_is_not_turned() -> None:
    assert levers(pair(0, 0), Limits(), ()) == []
    three = [knob(n, 4, keeps="a × b × c") for n in "abc"]
    assert levers(three, Limits(), ()) == []


def test_a_partner_that_alters_the_mathematics_holds_the_pair() -> None:
    micro = pair()[0]
    accum = knob("grad_accum", 64, effect="learning", keeps=PRODUCT)
    assert levers([micro, accum], Limits(), ()) == []
    assert len(levers([micro, accum], Limits(learning=("grad_accum",)), ())) == 1


def test_a_restart_is_never_a_step() -> None:
    hidden = knob("hidden", 64, cost="restart")
    assert levers([hidden], Limits(learning=("*", "hidden")), ()) == []


def test_an_invariant_in_words_is_the_runs_business() -> None:
    (lever,) = levers([knob("micro_batch", 8, keeps="the batch of a step")], Limits(), ())
    assert lever.names == ("micro_batch",)


def test_what_only_follows_is_the_runs_business() -> None:
    three = [knob(n, 4, keeps="size = a × b × c / d") for n in "abc"]
    assert [lever.names for lever in levers(three, Limits(), ())] == [("a",), ("b",), ("c",)]
    (both,) = levers([knob(n, 4, keeps="a × b; size = a × c") for n in "ab"], Limits(), ())
    assert both.names == ("a", "b")


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        ("unknown", ["micro_batch", "num_workers", "env_workers", "chunk", "compile"]),
        ("data-bound", ["num_workers", "chunk"]),
        ("env-bound", ["env_workers", "chunk"]),
        ("launch-bound", ["micro_batch", "chunk", "compile"]),
        ("power-limited", ["micro_batch", "chunk", "compile"]),
        ("save-bound", ["chunk"]),
        ("heat-limited", []),
    ],
)
def test_the_verdict_orders_the_levers(verdict: str, expected: list[str]) -> None:
    assert names(verdict) == expected


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        ("data-bound", ["num_workers", "chunk", "decoder"]),
        ("save-bound", ["chunk", "decoder"]),
        ("launch-bound", ["micro_batch", "chunk", "decoder", "compile"]),
        ("straggler", []),
    ],
)
def test_a_way_of_computing_whose_name_says_nothing_may_be_about_any_limit(
    verdict: Any, expected: list[str]
) -> None:
    run = (knob("decoder", "loop", choices=("loop", "table"), cost="free"), *RUN)
    diagnosis = Diagnosis(verdict=verdict, confidence=0.9)
    assert [each.name for each in ranked(levers(run, Limits(), ()), diagnosis)] == expected


def test_what_leaves_learning_alone_comes_first() -> None:
    run = (knob("num_envs", 8, effect="learning"), knob("chunk", 4, cost="free"), *pair())
    found = ranked(levers(run, Limits(learning=("*",)), ()), None)
    assert [lever.name for lever in found] == ["micro_batch", "chunk", "num_envs"]


def test_a_verdict_that_is_not_sure_of_itself_decides_nothing() -> None:
    assert names("heat-limited", 0.3) == names("unknown")


def test_what_is_advised_comes_first() -> None:
    assert names("launch-bound", 0.9, Advice(knob="compile", direction="to", value="default"))[0] == "compile"


@pytest.mark.parametrize(("name", "way"), [("micro_batch", 1), ("grad_accum", -1)])
def test_advice_is_understood_in_terms_of_size(name: str, way: int) -> None:
    (lever,) = levers(pair(), Limits(), ())
    diagnosis = Diagnosis(verdict="launch-bound", confidence=0.9, advice=(Advice(knob=name, direction="up"),))
    assert advised(lever, diagnosis)[0] == way


def test_a_standstill_is_what_it_was_last_time() -> None:
    workers, compiled = levers(RUN[2:4], Limits(), ())
    assert standstill(workers) < standstill(compiled)
    (known,) = levers([structs.replace(RUN[3], took_s=12.5)], Limits(), ())
    assert standstill(known) == 12.5


def test_a_number_below_zero_is_no_size_and_no_rung() -> None:
    (lever,) = levers([knob("num_workers", -1, min=-1)], Limits(), ())
    assert not lever.ordered
    assert (lever.size, lever.rungs(), lever.sized(4)) == (0.0, [], True)
