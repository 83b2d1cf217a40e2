"""The lines that a terminal would show of what a program writes: progress bars, colours, cursor movements.

A terminal of any width and endless height: a line never wraps. Unknown sequences are left out.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from hoptui.domain.outputs import LINES_KEPT

Style = str
"""`""`, or words of `bold`, `dim`, `red`, `green`, `yellow`, `blue`, `magenta`, `cyan`."""
LONGEST_LINE = 4000
"""Characters of a line that are kept: one without an end must not take all memory."""
TAB = 8

_TOKEN = re.compile(
    r"\x1b\[([0-?]*)[ -/]*([@-~])"  # CSI: parameters and the final character
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC and other strings
    r"|\x1b[ -/]*[0-Z\\-~]"  # short escapes, but those that begin the above
    r"|[^\x00-\x1f\x7f-\x9f]+"  # text
    r"|[\x00-\x1a\x1c-\x1f\x7f-\x9f]"  # one control character
)
_OPEN = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)\Z")
"""An escape sequence at the end of a piece, which the next piece completes."""
LONGEST_ESCAPE = 4096
"""Characters of an escape sequence without an end, before it counts as text."""
_COLOURS = ("", "red", "green", "yellow", "blue", "magenta", "cyan", "")


class StyledText(NamedTuple):
    """Characters of one style."""

    text: str
    style: Style = ""


TextLine = tuple[StyledText, ...]


def plain(line: TextLine) -> str:
    """The text of a line."""
    return "".join(piece.text for piece in line)


class TerminalText:
    """The newest lines of a stream. `dropped` counts those that are no longer kept."""

    def __init__(self, most: int = LINES_KEPT) -> None:
        self._lines: deque[TextLine] = deque([()], maxlen=most)
        self._back = 0  # how many lines above the last one the cursor is
        self._column = 0
        self._bold = self._dim = False
        self._colour = ""
        self._open = ""  # the beginning of an escape sequence
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.dropped = 0

    @property
    def lines(self) -> tuple[TextLine, ...]:
        """The lines, without an empty last one."""
        found = tuple(self._lines)
        return found if found[-1] else found[:-1]

    @property
    def open(self) -> bool:
        """Whether the last line has no end yet."""
        return bool(self._lines[-1]) or self._back > 0

    def feed(self, data: bytes) -> None:
        """Continue with bytes. A character or an escape sequence may be in two pieces."""
        text = self._open + self._decoder.decode(data)
        self._open = ""
        for at in _last_escapes(text):
            if len(text) - at <= LONGEST_ESCAPE and _OPEN.match(text, at):
                text, self._open = text[:at], text[at:]
                break
        for token in _TOKEN.finditer(text):
            if token[2] is not None:
                self._control(token[1], token[2])
                continue
            found = token[0]
            if found == "\n":
                self._down()
                self._column = 0
            elif found == "\r":
                self._column = 0
            elif found == "\b":
                self._column = max(0, self._column - 1)
            elif found == "\t":
                self._write(" " * (TAB - self._column % TAB))
            elif found >= " " and not "\x7f" <= found[0] <= "\x9f":
                self._write(found)

    def _down(self) -> None:
        if self._back:
            self._back -= 1
            return
        if len(self._lines) == self._lines.maxlen:
            self.dropped += 1
        self._lines.append(())

    def _control(self, given: str, final: str) -> None:
        numbers = [int(word) if word.isdecimal() else 0 for word in given[:64].split(";")]
        count = min(max(1, numbers[0]), LINES_KEPT)
        if final == "m":
            self._set_style(numbers)
        elif final == "A":
            self._back = min(self._back + count, len(self._lines) - 1)
        elif final == "B":
            self._back = max(0, self._back - count)
        elif final == "F":
            self._back, self._column = min(self._back + count, len(self._lines) - 1), 0
        elif final == "E":
            self._back, self._column = max(0, self._back - count), 0
        elif final == "C":
            self._column = min(self._column + count, LONGEST_LINE)
        elif final == "D":
            self._column = max(0, self._column - count)
        elif final == "G":
            self._column = min(count, LONGEST_LINE) - 1
        elif final == "K":
            line = self._line
            if numbers[0] == 0:
                self._line = _part(line, 0, self._column)
            elif numbers[0] == 1:
                self._line = (StyledText(" " * self._column), *_part(line, self._column, LONGEST_LINE))
            else:
                self._line = ()

    def _set_style(self, numbers: list[int]) -> None:
        rest = list(numbers)
        while rest:
            number = rest.pop(0)
            if number == 0:
                self._bold, self._dim, self._colour = False, False, ""
            elif number == 1:
                self._bold = True
            elif number == 2:
                self._dim = True
            elif number == 22:
                self._bold = self._dim = False
            elif 30 <= number <= 37 or 90 <= number <= 97:
                self._colour = _COLOURS[number % 10]
            elif number == 39:
                self._colour = ""
            elif number in (38, 48):  # a colour of 256, or of red, green and blue: shown as text
                del rest[: 2 if rest[:1] == [5] else 4]
                if number == 38:
                    self._colour = ""

    @property
    def _style(self) -> Style:
        words = ("bold" if self._bold else "", "dim" if self._dim else "", self._colour)
        return " ".join(filter(None, words))

    @property
    def _line(self) -> TextLine:
        return self._lines[-1 - self._back]

    @_line.setter
    def _line(self, line: TextLine) -> None:
        self._lines[-1 - self._back] = line

    def _write(self, text: str) -> None:
        text = text[: max(0, LONGEST_LINE - self._column)]
        if not text:
            return
        line, end = self._line, self._column + len(text)
        length = sum(len(piece.text) for piece in line)
        gap = (StyledText(" " * (self._column - length)),) if self._column > length else ()
        before = line if self._column >= length else _part(line, 0, self._column)
        after = _part(line, end, length) if end < length else ()
        self._line = _joined((*before, *gap, StyledText(text, self._style), *after))
        self._column = end


def _last_escapes(text: str) -> Iterator[int]:
    """Where the last two escape sequences begin, the earlier one first: the last may only end it."""
    last = text.rfind("\x1b")
    before = text.rfind("\x1b", 0, max(0, last))
    return (at for at in (before, last) if at >= 0)


def _part(line: TextLine, start: int, end: int) -> TextLine:
    """The characters of a line from `start` up to `end`."""
    found, at = [], 0
    for text, style in line:
        part = text[max(0, start - at) : max(0, end - at)]
        if part:
            found.append(StyledText(part, style))
        at += len(text)
    return tuple(found)


def _joined(line: TextLine) -> TextLine:
    """Neighbours of one style as one piece."""
    found: list[StyledText] = []
    for piece in line:
        if found and found[-1].style == piece.style:
            found[-1] = StyledText(found[-1].text + piece.text, piece.style)
        else:
            found.append(piece)
    return tuple(found)
