"""What a terminal would show of the output of a program."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoptui.domain.terminal_text import LONGEST_LINE, StyledText, TerminalText, plain


def shown(*parts: bytes) -> list[str]:
    text = TerminalText()
    for part in parts:
        text.feed(part)
    return [plain(line) for line in text.lines]


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        (b"epoch 1\nepoch 2\n", ["epoch 1", "epoch 2"]),
        (b"no end", ["no end"]),
        (b"dos\r\nline\r\n", ["dos", "line"]),
        (b" 10%|#   |\r 20%|##  |\r100%|####|\n", ["100%|####|"]),
        (b"long line\rnew", ["new" + "g line"]),
        (b"long line\r\x1b[Knew", ["new"]),
        (b"outer\ninner 1\x1b[A\router 2\n\rinner 2", ["outer 2", "inner 2"]),
        (b"one\ntwo\n\x1b[2A\x1b[2Kfirst\n", ["first", "two"]),
        (b"12\b3", ["13"]),
        (b"a\tb", ["a       b"]),
        (b"\x1b]0;title\x07text\x1b]8;;http://x\x1b\\link", ["textlink"]),
        (b"\x1b[?25lhidden cursor\x1b[?25h\x1b(B", ["hidden cursor"]),
        (b"\xff\xe2\x9c\x93", ["\ufffd✓"]),
        (b"bell\x07 nul\x00 c1\xc2\x9b", ["bell nul c1"]),
        (b"ab\x1b[5Gx", ["ab  x"]),
        (b"", []),
    ],
)
def test_lines_are_those_of_a_terminal(written: bytes, lines: list[str]) -> None:
    assert shown(written) == lines


def test_colours_are_words() -> None:
    text = TerminalText()
    text.feed(b"\x1b[1;31merror\x1b[0m fine \x1b[38;5;196mmany\x1b[38;2;1;2;3m\x1b[92mok\x1b[39m")
    assert text.lines == (
        (StyledText("error", "bold red"), StyledText(" fine many"), StyledText("ok", "green")),
    )


@given(st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\x1b", b"[", b"]", b"2", b"A", b"K", b"m", b";",
                                 b"\x07", b"\\", b"\xe2", b"\x9c", b"\x93", b"\b", b"\t"]), max_size=40),
       st.integers(0, 40))  # fmt: skip
def test_where_output_is_cut_makes_no_difference(pieces: list[bytes], cut: int) -> None:
    assert shown(b"".join(pieces[:cut]), b"".join(pieces[cut:])) == shown(b"".join(pieces))


def test_the_oldest_lines_go_and_are_counted() -> None:
    text = TerminalText(most=3)
    text.feed(b"1\n2\n3\n4\n5\n")
    assert [plain(line) for line in text.lines] == ["4", "5"]
    assert text.dropped == 3
    assert not text.open
    text.feed(b"6")
    assert text.open


@pytest.mark.parametrize(
    "unit", [b"x", b"\x1b[", b"\x1b]", b"\x1b]x", b"\r\x1b[31mx", b"\x1b[9999C-", b"\x1b[A"]
)
def test_no_output_takes_long_or_much_memory(unit: bytes) -> None:
    text = TerminalText()
    began = time.process_time()
    text.feed(unit * ((256 << 10) // len(unit)))
    assert time.process_time() - began < 5.0, "a quadratic search took minutes"
    assert all(len(plain(line)) <= LONGEST_LINE for line in text.lines)
