from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoptui.domain.knobs import KnobSpec, KnobValue
from hoptui.presentation import numbers
from hoptui.presentation.numbers import counted, percent, percentage, plural

LOG = KnobSpec(name="lr", kind="float", default=3e-4, scale="log")


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (512_345.0, "512 k"),
        (1_820_000.0, "1.82 M"),
        (836.0, "836"),
        (64, "64"),
        (5.0, "5.00"),
        (999.6, "1.00 k"),
        (999_999, "1.00 M"),
        (-12_345, "-12.3 k"),
        (0.183, "0.183"),
        (0.5, "0.500"),
        (0.00001, "1.0e-5"),
        (0.0, "0"),
        (1e30, "1.0e30"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
    ],
)
def test_si(number: float | None, shown: str) -> None:
    assert numbers.si(number) == shown


@given(st.floats(min_value=1e-3, max_value=1e20))
def test_si_means_the_number_to_three_digits(number: float) -> None:
    head, _, prefix = numbers.si(number).partition(" ")
    scale = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}[prefix]
    assert float(head) * scale == pytest.approx(number, rel=0.0051)
    assert len(head) <= 7


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (45.9, "45 s"),
        (95, "1 m 35 s"),
        (8040, "2 h 14 m"),
        (273_600, "3 d 4 h"),
        (-3, "0 s"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_duration(seconds: float | None, shown: str) -> None:
    assert numbers.duration(seconds) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0.00182, "1.82 ms"),
        (1.82, "1.82 s"),
        (140, "140 s"),
        (3e-6, "3.00 µs"),
        (0.0, "0 s"),
        (700, "11 m 40 s"),
        (None, "–"),
    ],
)
def test_seconds(number: float | None, shown: str) -> None:
    assert numbers.seconds(number) == shown


@pytest.mark.parametrize(
    ("ratio", "signed", "shown"),
    [
        (0.061, True, "+6.1 %"),
        (-0.061, True, "-6.1 %"),
        (0.61, False, "61 %"),
        (0.0995, False, "10 %"),
        (-0.0001, True, "0.0 %"),
        (0, False, "0 %"),
        (None, True, "–"),
    ],
)
def test_percent(ratio: float | None, signed: bool, shown: str) -> None:
    assert numbers.percent(ratio, signed=signed) == shown


@pytest.mark.parametrize(
    ("value", "spec", "shown"),
    [
        (2048, None, "2 048"),
        (True, None, "on"),
        (False, None, "off"),
        (3e-4, None, "3.0e-4"),
        (0.003, None, "0.003"),
        (0.003, LOG, "3.0e-3"),
        (0.2, LOG, "0.2"),
        (1.0, None, "1"),
        (0.0, LOG, "0"),
        (1e12, None, "1.0e12"),
        ("bf16", None, "bf16"),
        (None, None, "–"),
        (math.nan, None, "NaN"),
        (-math.inf, None, "−∞"),
    ],
)
def test_value(value: KnobValue | None, spec: KnobSpec | None, shown: str) -> None:
    assert numbers.value(value, spec) == shown


def test_grouped_and_gib() -> None:
    assert numbers.grouped(1_234_567) == "1 234 567"
    assert numbers.grouped(None) == "–"
    assert numbers.gib(58.1 * 2**30) == "58.1"
    assert numbers.gib(141 * 2**30) == "141"
    assert numbers.gib(60 * 2**20) == "0.06"
    assert numbers.gib(0.1 * 2**30) == "0.1"
    assert numbers.gib(0) == "0.0"
    assert numbers.gib(None) == "–"


def test_no_wall_time_is_unknown() -> None:
    assert numbers.clock(0.0) == numbers.clock(None) == numbers.day_clock(math.nan) == "–"
    assert len(numbers.clock(1_000_000.0)) == 8
    assert numbers.day_clock(1_000_000.0).endswith(numbers.clock(1_000_000.0))


@given(st.text())
@pytest.mark.guarantee("clean-text")
def test_clean_text_cannot_move_the_cursor(foreign: str) -> None:
    cleaned = numbers.clean(foreign)
    assert cleaned.isprintable()
    assert len(cleaned) <= 200


def test_clean_keeps_words_and_drops_escapes() -> None:
    assert numbers.clean("a\x1b[2J\tb\u202ec\n") == "a[2J bc "
    assert numbers.clean("x" * 300).endswith("…")


@given(st.text())
def test_ascii_only(foreign: str) -> None:
    assert numbers.ascii_only(foreign).isascii()


def test_ascii_stand_ins_say_the_same() -> None:
    assert numbers.ascii_only("4 → 8  ± 1.2  –") == "4 -> 8  +- 1.2  -"


def test_how_often() -> None:
    assert [numbers.often(hz) for hz in (1.0, 2.0, 0.5)] == [
        "once a second",
        "2 times a second",
        "0.5 times a second",
    ]


@pytest.mark.parametrize(
    ("ratio", "style", "shown"),
    [
        (0.061, {}, "6.1 %"),
        (0.0995, {}, "10 %"),
        (0.42, {}, "42 %"),
        (-0.061, {"signed": True}, "-6.1 %"),
        (0.061, {"signed": True}, "+6.1 %"),
        (-0.0001, {"signed": True}, "0.0 %"),
        (0.061, {"decimals": 0}, "6 %"),
        (0.02, {"digits": 2}, "2 %"),
        (0.0004, {"digits": 2}, "0.04 %"),
        (0.2, {"digits": 2}, "20 %"),
        (None, {}, "–"),
        (math.nan, {"digits": 2}, "–"),
    ],
)
def test_ratios(ratio: float | None, style: dict[str, int], shown: str) -> None:
    assert percent(ratio, **style) == shown  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("number", "shown"),
    [(92.4, "92 %"), (0.83, "0.8 %"), (0.0042, "0.004 %"), (0.0002, "<0.001 %"), (0.0, "0 %"), (None, "–")],
)
def test_percentages(number: float | None, shown: str) -> None:
    assert percentage(number) == shown


def test_counts() -> None:
    assert [counted(n, "iteration") for n in (0, 1, 1204)] == [
        "0 iterations",
        "1 iteration",
        "1 204 iterations",
    ]
    assert [plural(n, "GPU") for n in (1, 2)] == ["GPU", "GPUs"]


HOSTILE = "a\x1b]0;x\x07\x9b2J\u202eb\U000e0001\r"


@pytest.mark.guarantee("clean-text")
def test_json_has_no_character_that_a_terminal_obeys() -> None:
    text = msgspec.json.encode({HOSTILE: [HOSTILE]}).decode()
    shown = numbers.escaped(text)
    assert shown.isprintable()
    assert msgspec.json.decode(shown) == {HOSTILE: [HOSTILE]}
    assert numbers.escaped('{"a":"é 世"}') == '{"a":"é 世"}'


@pytest.mark.guarantee("clean-text")
def test_lines_of_data_on_a_terminal_move_nothing() -> None:
    assert numbers.plain("a,b\n1,2\n") == "a,b\n1,2\n"
    shown = numbers.plain(f"x\n{HOSTILE}\n")
    assert [line.isprintable() for line in shown.splitlines()] == [True, True]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.183, "0.183"), (math.nan, "NaN"), (math.inf, "inf"), (-math.inf, "-inf")],
)
def test_a_logged_value_is_unknown_only_if_there_is_none(value: float | None, text: str) -> None:
    assert numbers.logged(value) == text
