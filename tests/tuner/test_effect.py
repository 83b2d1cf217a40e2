"""measure(): what it says of simulated changes whose true effect is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoptui.domain.facts import fact
from hoptui.domain.tuning import Measured
from hoptui.tuner import noise
from hoptui.tuner.effect import BLOCK, LARGE, LOOKS, WARM_UP, MeasurementPlan, _half_width, measure, plan_for

SEEDS = 300


def throughput(seed: int, n: int, *, gain: float = 0.0, noise: float = 0.04, phi: float = 0.5) -> list[float]:
    """AR(1) noise on a level of 1000 × (1 + gain), one value in a hundred a third of that, as real iterations
    are."""
    chance = random.Random(seed)
    state = chance.gauss(0, 1)
    values = []
    for _ in range(n):
        state = phi * state + math.sqrt(1 - phi * phi) * chance.gauss(0, 1)
        spike = 1 / 3 if chance.random() < 0.01 else 1.0
        values.append(1000 * (1 + gain) * math.exp(noise * state) * spike)
    return values


def told(seed: int, gain: float, before: int = 90) -> Measured:
    old = throughput(2 * seed, before)
    return measure("samples_per_s", old, throughput(2 * seed + 1, LOOKS[-1] + WARM_UP, gain=gain))


@pytest.mark.parametrize("before", [30, 90])
@pytest.mark.parametrize("gain", [-0.2, -0.06, 0.0, 0.06, 0.5])
def test_the_true_gain_lies_within_the_interval_nearly_always(gain: float, before: int) -> None:
    figures = [told(seed, gain, before) for seed in range(SEEDS)]
    right = [
        abs(f.gain - gain) <= f.interval for f in figures if f.gain is not None and f.interval is not None
    ]
    assert len(right) == SEEDS
    assert fmean(right) >= 0.92


@pytest.mark.parametrize("before", [30, 90])
def test_a_change_that_did_nothing_is_rarely_told_as_an_effect(before: int) -> None:
    assert fmean(told(seed, 0.0, before).detectable for seed in range(SEEDS)) <= 0.06


def test_five_times_the_speed_is_found_after_few_uneven_iterations() -> None:
    """As in a demo on cores that other work takes: six blocks before the change, which differ by 1.5."""
    chance = random.Random(5)
    found = []
    for _ in range(SEEDS):
        levels = [math.exp(chance.gauss(0.0, 0.35)) for _ in range(6 + 1 + LOOKS[-1] // 5)]
        rates = [level * math.exp(chance.gauss(0.0, 0.05)) for level in levels for _ in range(5)]
        found.append(measure("m", rates[:30], [5 * rate for rate in rates[30:]]))
    assert fmean(figure.detectable for figure in found) >= 0.95
    assert fmean(figure.iterations for figure in found if figure.detectable) < 45


def test_a_gain_is_large_by_its_lower_end_and_only_a_user_is_told() -> None:
    """Three blocks on each side: the ends of the interval are a factor of 2 from the gain."""
    levels = [math.exp(level) for level in (-0.3, 0.3, 0.0)]
    old = [level for level in levels for _ in range(5)]
    found = {}
    for factor in (2.5, 5.0, 8.0):
        new = [*old[:WARM_UP], *(factor * rate for rate in old)]
        found[factor] = measure("m", old, new, MeasurementPlan((15,)))
        least = factor**2 / (factor + (found[factor].interval or 0.0)) - 1
        assert found[factor].detectable == (least > LARGE)
        trial = measure("m", old, new, plan_for(["rows"], trial=True))
        assert trial.detectable == (factor - 1 > (trial.interval or 0.0))
    assert [figure.detectable for figure in found.values()] == [False, True, True]


@pytest.mark.parametrize("gain", [-0.06, 0.06])
def test_six_percent_are_found_and_found_early(gain: float) -> None:
    figures = [told(seed, gain) for seed in range(SEEDS)]
    assert fmean(f.detectable and f.gain is not None and f.gain * gain > 0 for f in figures) >= 0.95
    assert fmean(f.iterations for f in figures) < 45


def test_what_is_clear_is_told_from_one_block_and_nothing_else_is() -> None:
    def early(seed: int, gain: float) -> Measured:
        return measure(
            "m",
            throughput(seed, 30),
            throughput(seed + 999, WARM_UP + 5, gain=gain),
            MeasurementPlan(clear=0.1),
        )

    assert fmean(early(seed, 0.6).settled for seed in range(SEEDS)) > 0.9
    assert not any(early(seed, gain).gain is not None for seed in range(SEEDS) for gain in (-0.6, 0.0, 0.05))
    assert measure("m", throughput(1, 30), throughput(2, WARM_UP + 5, gain=0.6)).gain is None


@pytest.mark.parametrize(("seconds", "early"), [(0.1, False), (1.0, True)])
def test_a_clear_loss_of_slow_iterations_is_told_from_one_block(seconds: float, early: bool) -> None:
    plan = plan_for(["micro_batch"], trial=True, seconds=seconds)
    found = [
        measure("m", throughput(seed, 60), throughput(seed + 999, WARM_UP + 5, gain=-0.4), plan)
        for seed in range(SEEDS)
    ]
    share = fmean(figure.gain is not None for figure in found)
    assert share > 0.9 if early else share == 0
    near = measure("m", throughput(1, 60), throughput(999, WARM_UP + 5, gain=-0.05), plan)
    assert near.gain is None


def test_a_block_of_spikes_does_not_hide_a_gain() -> None:
    old = throughput(3, 60, noise=0.02)
    old[10:15] = [300.0] * 5
    found = measure("m", old, throughput(4, WARM_UP + 90, gain=0.06, noise=0.02))
    assert found.detectable
    assert found.gain == pytest.approx(0.06, abs=0.03)


def test_an_interval_that_is_wide_is_not_hidden_by_few_blocks() -> None:
    """Three blocks are little: at the first look the interval is several times that of the last one."""
    early = [measure("m", throughput(s, 90), throughput(s + 999, WARM_UP + 15)) for s in range(50)]
    late = [
        measure("m", throughput(s, 90), throughput(s + 999, WARM_UP + 90), MeasurementPlan((90,)))
        for s in range(50)
    ]
    assert fmean(f.interval or 0 for f in early) > 2.5 * fmean(f.interval or 0 for f in late)


@given(st.integers(0, 500), st.floats(1e-9, 1e9), st.sampled_from([-0.3, 0.0, 0.02, 0.4]))
@settings(max_examples=60, deadline=None)
def test_the_unit_of_the_metric_does_not_matter(seed: int, scale: float, gain: float) -> None:
    old, new = throughput(seed, 60), throughput(seed + 1, WARM_UP + 90, gain=gain)
    plain = measure("m", old, new)
    scaled = measure("m", [v * scale for v in old], [v * scale for v in new])
    assert scaled.iterations == plain.iterations
    assert scaled.gain == pytest.approx(plain.gain, abs=1e-9)
    assert scaled.interval == pytest.approx(plain.interval, abs=1e-9)


@given(st.lists(st.floats(), max_size=130), st.lists(st.floats(), max_size=130))
@settings(max_examples=200, deadline=None)
def test_any_floats_give_a_figure_or_a_reason(before: list[float], after: list[float]) -> None:
    figure = measure("m", before, after)
    if figure.gain is None:
        assert figure.remarks
        assert figure.interval is None
        assert not figure.detectable
    else:
        assert figure.interval is not None
        assert math.isfinite(figure.gain)
        assert math.isfinite(figure.interval)
        assert figure.interval >= 0
        assert figure.detectable or abs(figure.gain) <= figure.interval
        assert not figure.detectable or figure.gain > 0 or abs(figure.gain) > figure.interval
        assert figure.iterations in LOOKS


@pytest.mark.parametrize(("n", "iterations"), [(WARM_UP, 0), (WARM_UP + 7, 7), (WARM_UP + 14, 14), (0, 0)])
def test_too_few_iterations_after_the_change_are_counted(n: int, iterations: int) -> None:
    figure = measure("m", throughput(0, 60), throughput(1, n))
    assert figure.remarks == (fact("effect.measuring", had=iterations, least=15),)
    assert (figure.gain, figure.interval, figure.after) == (None, None, None)
    assert (figure.iterations, figure.settled, figure.detectable) == (iterations, False, False)


def test_a_figure_that_is_not_final_says_until_when_it_is_measured() -> None:
    looked = [measure("m", throughput(0, 60), throughput(1, WARM_UP + n)) for n in (14, 15, 33, 60, 90)]
    undecided = [figure for figure in looked if figure.gain is not None and not figure.settled]
    assert [figure.iterations for figure in undecided] == [15, 30, 60]
    assert {figure.until for figure in undecided} == {LOOKS[-1]}
    assert [figure.until for figure in looked if figure.settled] == [0]
    quiet, loud = [1000.0, 1010.0] * 20, [1000.0, 300.0] * 20
    plan = MeasurementPlan(longer=(180, 360))
    bursts = measure("m", (quiet + loud) * 8, (loud + quiet) * 3, plan)
    assert (bursts.iterations, bursts.settled, bursts.until) == (180, False, 360)


def test_too_few_iterations_before_the_change_never_give_a_figure() -> None:
    figure = measure("m", throughput(0, 14), throughput(1, WARM_UP + 90))
    assert figure.remarks == (fact("effect.too_few_before", had=14, least=15),)
    assert figure.settled
    assert figure.gain is None


def test_unknown_and_impossible_values_are_not_counted() -> None:
    bad = [math.nan, math.inf, -math.inf, 0.0, -5.0]
    clean = measure("m", throughput(0, 30), throughput(1, WARM_UP + 15, gain=0.5))
    mixed = [v for pair in zip(throughput(0, 30), bad * 6, strict=True) for v in pair]
    after = throughput(1, WARM_UP + 15, gain=0.5)
    assert measure("m", mixed, [*after[: WARM_UP + 1], *bad, *after[WARM_UP + 1 :]]) == clean
    fewer = measure("m", mixed, [*after[:-1], *bad])
    assert fewer.remarks == (fact("effect.measuring", had=14, least=15),)


def test_warm_up_iterations_are_left_out() -> None:
    old, new = throughput(0, 60), throughput(1, 20)
    slow, fast = (measure("m", old, [first] * WARM_UP + new) for first in (1.0, 9000.0))
    assert slow == fast
    assert slow.gain is not None
    assert measure("m", old, [1.0] * (WARM_UP + 1) + new) != slow


def test_a_settled_figure_stays_and_a_look_is_the_same_however_late() -> None:
    old, new = throughput(0, 90), throughput(1, 200, gain=0.06)
    figures = [measure("m", old, new[:n]) for n in range(len(new))]
    first = next(f for f in figures if f.settled)
    assert all(f == first for f in figures[figures.index(first) :])
    between = [f for f in figures if f.gain is not None and not f.settled]
    assert {f.iterations for f in between} <= set(LOOKS)


def test_the_last_look_settles_what_stays_undecided() -> None:
    figure = measure("m", throughput(3, 90, noise=0.3), throughput(4, 200, noise=0.3))
    assert (figure.iterations, figure.settled, figure.detectable) == (90, True, False)


def test_values_that_never_vary_give_an_exact_gain() -> None:
    figure = measure("m", [200.0] * 20, [220.0] * 20)
    assert figure.gain == pytest.approx(0.1)
    assert (figure.before, figure.after, figure.interval) == (200.0, 220.0, 0.0)
    assert figure.detectable
    same = measure("m", [200.0] * 20, [200.0] * 20)
    assert (same.gain, same.detectable, same.settled, same.iterations) == (0.0, False, True, 15)


def test_the_values_next_to_the_change_count_on_both_sides() -> None:
    """Those left over from the blocks of five, and old ones beyond the last look, are the farthest from
    it."""
    far_before, far_after = [1.0] * 4, [9000.0] * 4
    figure = measure("m", far_before + [200.0] * 15, [220.0] * (WARM_UP + 15) + far_after)
    assert figure.gain == pytest.approx(0.1)
    assert figure.interval == 0.0
    long_ago = [1.0] * 200
    assert measure("m", long_ago + [200.0] * 90, [220.0] * (WARM_UP + 15)) == figure


def test_values_as_far_apart_as_floats_are_do_not_overflow() -> None:
    up = measure("m", [1e-99] * 15, [1e99] * (WARM_UP + 15))
    assert up.gain is not None
    assert math.isfinite(up.gain)
    assert measure("m", [1e99] * 15, [1e-99] * (WARM_UP + 15)).gain == -1.0


@pytest.mark.parametrize("looks", [(14, 30), (15, 15), (30, 15)])
def test_looks_that_make_no_sense_are_refused(looks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="looks must rise"):
        measure("m", throughput(0, 60), throughput(1, 60), MeasurementPlan(looks))


def test_the_table_holds_the_quantiles_of_students_t() -> None:
    """Against the density itself, integrated by Simpson's rule from 0 to the quantile: half of the level."""
    for level, quantiles in noise._T.items():
        for freedom, quantile in enumerate(quantiles, start=1):
            assert _simpson(_density(freedom), quantile, 40_000) == pytest.approx(level / 200, abs=2e-5)


def _density(freedom: int) -> Callable[[float], float]:
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    return lambda x: scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2)


def _simpson(f: Callable[[float], float], end: float, steps: int) -> float:
    width = end / steps
    inner = sum((4 if i % 2 else 2) * f(i * width) for i in range(1, steps))
    return (f(0.0) + inner + f(end)) * width / 3


@pytest.mark.parametrize(
    ("seconds", "longer"),
    [(0.0, ()), (0.1, ()), (0.03, (180,)), (0.01, (180, 360)), (0.003, (180, 360, 720, 1440))],
)
def test_a_trial_of_short_iterations_may_last_longer(seconds: float, longer: tuple[int, ...]) -> None:
    plan = plan_for(["rows"], trial=True, seconds=seconds)
    assert (plan.looks, plan.longer) == (LOOKS, longer)
    assert plan_for(["num_workers"], trial=True, seconds=seconds).longer == (), "these are long already"


def test_a_single_block_varies_as_those_of_the_other_side() -> None:
    several = [6.0, 6.1, 6.05, 5.95]
    assert _half_width([6.0], several, 98) == pytest.approx(_half_width(several, [6.0], 98))
    assert 0 < _half_width([6.0], several, 98) < _half_width([6.0], several, 99) < math.inf
    assert _half_width([6.0], [6.1], 98) == math.inf


NINE = [5.0, 5.06, 4.95, 5.03, 4.98, 5.05, 4.94, 5.01, 4.97]
"""Logarithms of blocks before a trial."""


def test_few_scattered_blocks_of_a_trial_are_judged_by_the_scatter_before_it() -> None:
    """Two or three blocks of slow iterations have one or two degrees of freedom: alone they tell nothing."""
    for few in ([5.2, 5.28], [5.2, 5.1, 5.26]):
        alone, beside = _half_width(NINE, few, 98), _half_width(NINE, few, 98, trial=True)
        assert beside < 0.15 < 0.2 < alone


def test_blocks_of_a_trial_that_clearly_vary_more_are_judged_by_themselves() -> None:
    wild = [5.2, 5.9, 5.4]
    assert _half_width(NINE, wild, 98, trial=True) == _half_width(NINE, wild, 98)


@pytest.mark.parametrize("wider", [1.0, 1.5])
def test_a_short_trial_that_did_nothing_rarely_looks_like_a_gain(wider: float) -> None:
    """Also where iterations scatter more after it than before."""
    plan, wrong = plan_for(["rows"], trial=True, seconds=1.0), 0
    for seed in range(400):
        chance = random.Random(seed)
        before = [math.exp(0.1 * chance.gauss(0, 1)) for _ in range(45)]
        after = [math.exp(0.1 * wider * chance.gauss(0, 1)) for _ in range(WARM_UP + LOOKS[0])]
        figure = measure("samples/s", before, after, plan)
        wrong += figure.gain is not None and figure.gain > (figure.interval or 0.0)
    assert wrong <= 12, "1 in 100 lie above an interval for 98, and there are two looks"


def test_a_brief_trial_has_a_figure_from_its_first_block_on() -> None:
    chance = random.Random(5)
    before, after = ([math.exp(0.05 * chance.gauss(0, 1)) for _ in range(n)] for n in (45, WARM_UP + BLOCK))
    usual = measure("samples/s", before, after, plan_for(["rows"], trial=True, seconds=1.0))
    brief = measure("samples/s", before, after, plan_for(["rows"], trial=True, seconds=1.0, brief=True))
    assert usual.gain is None
    assert brief.gain is not None
    assert not brief.settled
