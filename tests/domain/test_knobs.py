"""Which declarations and values a knob takes, and what it says to the others."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoptui.domain.knobs import (
    Kind,
    KnobError,
    KnobSpec,
    KnobValue,
    Relation,
    Scale,
    check_spec,
    check_value,
    kind_of,
    missing,
    parse_value,
    relations,
    shown,
)
from tests.golden import Golden


def spec(
    kind: Kind = "int",
    *,
    least: int | float | None = None,
    most: int | float | None = None,
    choices: tuple[KnobValue, ...] = (),
    scale: Scale = "linear",
    default: KnobValue = 0,
) -> KnobSpec:
    return KnobSpec(name="k", kind=kind, default=default, min=least, max=most, choices=choices, scale=scale)


INT, FLOAT, BOOL, STR = spec("int"), spec("float"), spec("bool"), spec("str")
BOUNDED = spec("int", least=1, most=64, default=1)
UNIT = spec("float", least=0.0, most=1.0)
POW2 = spec("int", least=1, most=1024, scale="pow2")
CHOICES = spec("int", choices=(1, 2, 8))
MODES = spec("str", choices=("eager", "compiled"))


@pytest.mark.parametrize(
    ("knob", "value", "taken"),
    [
        (INT, 3, 3),
        (INT, (1 << 63) - 1, (1 << 63) - 1),
        (INT, -(1 << 63), -(1 << 63)),
        (BOUNDED, 1, 1),
        (BOUNDED, 64, 64),
        (FLOAT, 0.5, 0.5),
        (FLOAT, 3, 3.0),
        (FLOAT, -0.0, 0.0),
        (FLOAT, 10**300, 1e300),
        (UNIT, 0, 0.0),
        (UNIT, 1.0, 1.0),
        (BOOL, True, True),
        (BOOL, False, False),
        (STR, "bf16", "bf16"),
        (STR, "", ""),
        (POW2, 1, 1),
        (POW2, 512, 512),
        (spec("float", scale="pow2"), 8, 8.0),
        (CHOICES, 8, 8),
        (spec("float", choices=(0.1, 1)), 1, 1.0),
        (MODES, "eager", "eager"),
    ],
)
def test_values_that_are_taken(knob: KnobSpec, value: object, taken: KnobValue) -> None:
    found = check_value(knob, value)
    assert found == taken
    assert type(found) is type(taken)


@pytest.mark.parametrize(
    ("knob", "value", "says"),
    [
        (INT, 3.0, "k takes a whole number, not 3"),
        (INT, True, "k takes a whole number, not True"),
        (INT, "3", "k takes a whole number, not '3'"),
        (INT, None, "k takes a whole number, not None"),
        (INT, 1 << 63, "k must fit in 64 bits"),
        (INT, -(1 << 63) - 1, "k must fit in 64 bits"),
        (BOUNDED, 0, "k = 0 is out of bounds: the least is 1"),
        (BOUNDED, 65, "k = 65 is out of bounds: the most is 64"),
        (FLOAT, math.nan, "k must be a finite number, not nan"),
        (FLOAT, math.inf, "k must be a finite number, not inf"),
        (UNIT, -math.inf, "k must be a finite number, not -inf"),
        (UNIT, math.nan, "k must be a finite number, not nan"),
        (FLOAT, True, "k takes a number, not True"),
        (FLOAT, "0.5", "k takes a number, not '0.5'"),
        (UNIT, 1.0000001, "k = 1 is out of bounds: the most is 1"),
        (UNIT, -1e-9, "k = -1e-09 is out of bounds: the least is 0"),
        (BOOL, 1, "k takes true or false, not 1"),
        (BOOL, "true", "k takes true or false, not 'true'"),
        (STR, 3, "k takes a text, not 3"),
        (STR, b"x", "k takes a text, not b'x'"),
        (STR, ["x" * 50], "k takes a text, not ['" + "x" * 37 + "…"),
        (POW2, 3, "k must be a power of two, not 3"),
        (POW2, 0, "k = 0 is out of bounds: the least is 1"),
        (spec("int", scale="pow2"), 0, "k must be a power of two, not 0"),
        (spec("int", scale="pow2"), -4, "k must be a power of two, not -4"),
        (spec("float", scale="pow2"), 0.5, "k must be a power of two, not 0.5"),
        (spec("float", scale="pow2"), 2.5, "k must be a power of two, not 2.5"),
        (CHOICES, 3, "k must be one of 1, 2, 8, not 3"),
        (MODES, "Eager", "k must be one of 'eager', 'compiled', not 'Eager'"),
    ],
)
def test_values_that_are_refused(knob: KnobSpec, value: object, says: str) -> None:
    with pytest.raises(KnobError) as error:
        check_value(knob, value)
    assert str(error.value) == says


@pytest.mark.parametrize(
    ("knob", "says"),
    [
        (INT, "k must fit in 64 bits"),
        (BOUNDED, "k must fit in 64 bits"),
        (FLOAT, "k must be a finite number"),
        (BOOL, "k takes true or false, not a huge number"),
    ],
)
def test_a_number_too_long_to_print_is_refused(knob: KnobSpec, says: str) -> None:
    with pytest.raises(KnobError) as error:
        check_value(knob, 10**5000)
    assert str(error.value) == says


@pytest.mark.parametrize(
    ("knob", "text", "taken"),
    [
        (INT, "4096", 4096),
        (INT, " 4_096 ", 4096),
        (INT, "4 096", 4096),
        (INT, "4\u202f096", 4096),
        (INT, "4\u2009096", 4096),
        (INT, "+7", 7),
        (INT, "-7", -7),
        (INT, "1e3", 1000),
        (INT, "8.0", 8),
        (INT, "9007199254740993", 9007199254740993),  # more digits than a float has
        (FLOAT, "3e-4", 3e-4),
        (FLOAT, ".5", 0.5),
        (FLOAT, "2", 2.0),
        (FLOAT, "1_000.5", 1000.5),
        (BOOL, "true", True),
        (BOOL, "Yes", True),
        (BOOL, "ON", True),
        (BOOL, "1", True),
        (BOOL, " false", False),
        (BOOL, "no", False),
        (BOOL, "off", False),
        (BOOL, "0", False),
        (STR, " bf16 ", "bf16"),
        (STR, "a_b c", "a_b c"),
        (POW2, "64", 64),
        (CHOICES, "8", 8),
    ],
)
def test_what_people_type(knob: KnobSpec, text: str, taken: KnobValue) -> None:
    found = parse_value(knob, text)
    assert found == taken
    assert type(found) is type(taken)


@pytest.mark.parametrize(
    ("knob", "text", "says"),
    [
        (INT, "", "k takes a whole number, not ''"),
        (INT, "four", "k takes a whole number, not 'four'"),
        (INT, "2.5", "k takes a whole number, not '2.5'"),
        (INT, "nan", "k takes a whole number, not 'nan'"),
        (INT, "inf", "k takes a whole number, not 'inf'"),
        (INT, "1e400", "k takes a whole number, not '1e400'"),
        (INT, "1e30", "k must fit in 64 bits"),
        (INT, "0x10", "k takes a whole number, not '0x10'"),
        (INT, "²", "k takes a whole number, not '²'"),
        (INT, "--5", "k takes a whole number, not '--5'"),
        (INT, "9" * 30, "k must fit in 64 bits"),
        (INT, "9" * 6000, "k takes a whole number, not '" + "9" * 38 + "…"),
        (BOUNDED, "65", "k = 65 is out of bounds: the most is 64"),
        (FLOAT, "nan", "k must be a finite number, not nan"),
        (FLOAT, "-inf", "k must be a finite number, not -inf"),
        (FLOAT, "1e999", "k must be a finite number, not inf"),
        (FLOAT, "3,5", "k takes a number, not '3,5'"),
        (FLOAT, "half", "k takes a number, not 'half'"),
        (BOOL, "2", "k takes on or off, not '2'"),
        (BOOL, "", "k takes on or off, not ''"),
        (MODES, "fast", "k must be one of 'eager', 'compiled', not 'fast'"),
        (POW2, "48", "k must be a power of two, not 48"),
    ],
)
def test_what_people_mistype(knob: KnobSpec, text: str, says: str) -> None:
    with pytest.raises(KnobError) as error:
        parse_value(knob, text)
    assert str(error.value) == says


@pytest.mark.parametrize(
    "good",
    [
        BOUNDED,
        KnobSpec(name="_x.y-2", kind="float", default=1e-4, min=1e-6, max=math.inf, scale="log"),
        KnobSpec(name="mode", kind="str", default="eager", choices=("eager", "compiled")),
        KnobSpec(name="flag", kind="bool", default=False),
        KnobSpec(name="n" * 64, kind="int", default=8, min=8, max=8, scale="pow2"),
    ],
)
def test_declarations_that_are_taken(good: KnobSpec) -> None:
    check_spec(good)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (KnobSpec(name="", kind="int", default=1), "'' is no knob name"),
        (KnobSpec(name="1x", kind="int", default=1), "'1x' is no knob name"),
        (KnobSpec(name="a b", kind="int", default=1), "'a b' is no knob name"),
        (KnobSpec(name="x\n", kind="int", default=1), "is no knob name"),
        (KnobSpec(name="n" * 65, kind="int", default=1), "is no knob name"),
        (spec("bool", least=0, default=True), "k is a bool: it takes choices, not bounds"),
        (spec("str", most=3, default="x"), "k is a str: it takes choices, not bounds"),
        (spec("int", least=math.nan, default=1), "k has NaN as a bound"),
        (spec("int", most=1 << 63, default=1), "k has a bound of more than 64 bits"),
        (spec("int", least=5, most=4, default=5), "k has min 5 above max 4"),
        (spec("int", least=5, default=4), "k = 4 is out of bounds: the least is 5"),
        (spec("float", default=math.inf), "k must be a finite number, not inf"),
        (spec("int", default=1.5), "k takes a whole number, not 1.5"),
        (spec("int", choices=(1, 2), default=3), "k must be one of 1, 2, not 3"),
        (spec("int", choices=(1, 2.5), default=1), "k takes a whole number, not 2.5"),
        (spec("int", choices=(1, 99), most=10, default=1), "k = 99 is out of bounds: the most is 10"),
    ],
)
def test_declarations_that_are_refused(bad: KnobSpec, says: str) -> None:
    with pytest.raises(KnobError) as error:
        check_spec(bad)
    assert says in str(error.value)


@pytest.mark.parametrize(("value", "kind"), [(True, "bool"), (1, "int"), (1.0, "float"), ("", "str")])
def test_kinds(value: object, kind: str) -> None:
    assert kind_of(value) == kind


@pytest.mark.parametrize("value", [None, b"x", [1], 1j])
def test_things_that_no_knob_holds(value: object) -> None:
    with pytest.raises(KnobError, match=f"not {type(value).__name__}"):
        kind_of(value)


numbers = st.integers() | st.floats()
anything = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=60), st.binary(max_size=3))
kinds: st.SearchStrategy[Literal["int", "float", "bool", "str"]] = st.sampled_from(
    ["int", "float", "bool", "str"]
)
specs = st.builds(
    KnobSpec,
    name=st.just("k"),
    kind=kinds,
    default=st.booleans() | numbers | st.text(max_size=5),
    min=st.none() | numbers,
    max=st.none() | numbers,
    choices=st.lists(st.booleans() | numbers | st.text(max_size=5), max_size=3).map(tuple),
    scale=st.sampled_from(["linear", "log", "pow2"]),
)


@given(specs, anything)
@settings(max_examples=300, deadline=None)
def test_a_value_is_taken_as_it_is_and_can_travel_or_is_refused(knob: KnobSpec, value: object) -> None:
    try:
        found = check_value(knob, value)
    except KnobError:
        return
    assert found == value
    assert kind_of(found) == knob.kind
    assert check_value(knob, found) == found
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found)) == found


@given(specs, st.text(max_size=40) | numbers.map(str))
@settings(max_examples=300, deadline=None)
def test_a_text_is_a_value_or_refused(knob: KnobSpec, text: str) -> None:
    try:
        found = parse_value(knob, text)
    except KnobError:
        return
    assert check_value(knob, found) == found


def test_a_float_knob_written_with_a_huge_whole_number_is_refused() -> None:
    for value in (-(2**63) - 1, 2**64):
        with pytest.raises(KnobError, match="more than 64 bits"):
            check_spec(KnobSpec(name="k", kind="float", default=value))


@given(specs)
@settings(max_examples=300, deadline=None)
def test_a_declaration_that_is_taken_can_travel_and_takes_its_own_values(knob: KnobSpec) -> None:
    try:
        check_spec(knob)
    except KnobError:
        return
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(knob), type=KnobSpec) == knob
    for value in (*knob.choices, knob.default):
        check_value(knob, value)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
@settings(deadline=None)
def test_any_whole_number_is_read_as_it_is_written(value: int) -> None:
    assert parse_value(INT, str(value)) == value
    assert parse_value(INT, shown(value)) == value
    assert parse_value(INT, f"{value:_}") == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3e-4, "0.0003"),
        (12345678.9, "1.23457e+07"),
        (8, "8"),
        (-65536, "-65 536"),
        (True, "True"),
        ("a'b", '"a\'b"'),
        (None, "None"),
    ],
)
def test_values_as_people_read_them(value: object, text: str) -> None:
    assert shown(value) == text
    assert len(shown("x" * 1000)) == 40


@pytest.mark.parametrize(
    ("keeps", "found"),
    [
        ("", []),
        (" ; ", []),
        ("grad_accum × micro_batch", [("", ("grad_accum", "micro_batch"), ())]),
        ("a*b * ranks", [("", ("a", "b", "ranks"), ())]),
        ("size = a × b / c / d", [("size", ("a", "b"), ("c", "d"))]),
        ("a; size = a / b", [("", ("a",), ()), ("size", ("a",), ("b",))]),
        ("the batch of a step", [("", ("the batch of a step",), ())]),
    ],
)
def test_what_a_declaration_says_of_knobs_together(keeps: str, found: list[object]) -> None:
    assert [(r.name, r.over, r.under) for r in relations(keeps)] == found
    assert [r.text for r in relations(keeps)] == [part.strip() for part in keeps.split(";") if part.strip()]


@given(st.text(max_size=40))
@settings(deadline=None)
def test_any_text_says_something_or_nothing(keeps: str) -> None:
    assert all(isinstance(one, Relation) and one.over for one in relations(keeps))


def test_only_names_that_are_nearly_the_same_may_have_been_meant(golden: Golden) -> None:
    names = ("compile", "entropy_coef", "grad_accum", "lr")
    asked = (("grad_acum", names), ("nope", names), ("nope", ()))
    golden("".join(f"{missing('ppo', name, known)}\n" for name, known in asked))
