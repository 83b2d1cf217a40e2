"""Words of a command line that is being typed, and how to write a word so that a shell reads it back."""

from __future__ import annotations

import string
from typing import NamedTuple

_SAFE = frozenset(string.ascii_letters + string.digits + "%+,-./:=@_^")
_BLANKS = " \t\n"


class TypedWord(NamedTuple):
    """A word as the shell reads it, and as it stands in the line.

    Attributes:
        value: the word without quotes and backslashes.
        raw: its text in the line.
        quote: the quote that is still open at its end, `'` or `"`; empty if there is none.
        opened: how much of `raw` stands before that quote.
    """

    value: str
    raw: str
    quote: str = ""
    opened: int = 0


def words(line: str) -> list[TypedWord]:
    """The words of a line up to the cursor. The last one is empty if the cursor stands behind a blank."""
    found: list[TypedWord] = []
    at = 0
    while True:
        while at < len(line) and line[at] in _BLANKS:
            at += 1
        word = _word(line, at)
        found.append(word)
        at += len(word.raw)
        if at >= len(line):
            return found


def _word(line: str, start: int) -> TypedWord:
    value, quote, opened, at = "", "", 0, start
    while at < len(line):
        letter = line[at]
        if quote == "'" or (quote and letter == quote):
            if letter == quote:
                quote = ""
            else:
                value += letter
        elif letter == "\\" and (not quote or line[at + 1 : at + 2] in ("$", "`", '"', "\\")):
            at += 1
            value += line[at : at + 1]
        elif not quote and letter in "'\"":
            quote, opened = letter, at - start
        elif not quote and letter in _BLANKS:
            break
        else:
            value += letter
        at += 1
    return TypedWord(value, line[start:at], quote, opened if quote else 0)


def escaped(text: str) -> str:
    """A text with a backslash before every character that a shell might read as its own."""
    return "".join(letter if letter in _SAFE or ord(letter) > 127 else f"\\{letter}" for letter in text)


def reply(word: TypedWord, candidate: str, breaks: str) -> str | None:
    """What bash is to write in place of the word at the cursor, or None if it cannot be written there.

    Bash replaces only what stands behind the last of `breaks` (`COMP_WORDBREAKS`), or behind an open quote.

    Args:
        word: the word at the cursor.
        candidate: the whole word without quotes. It begins with `word.value`.
        breaks: the characters at which readline begins a word.
    """
    if word.quote:
        rest = candidate[len(words(word.raw[: word.opened])[0].value) :]
        if word.quote == "'":
            return None if "'" in rest else rest
        if "!" in rest:
            return None
        return "".join(f"\\{letter}" if letter in '$`"\\' else letter for letter in rest)
    if "'" in word.raw or '"' in word.raw:
        return None
    return escaped(candidate[len(words(word.raw[: _break(word.raw, breaks)])[0].value) :])


def _break(raw: str, breaks: str) -> int:
    """Where the part of a word begins that bash replaces: behind its last break without a backslash."""
    found = at = 0
    while at < len(raw):
        if raw[at] == "\\":
            at += 1
        elif raw[at] in breaks:
            found = at + 1
        at += 1
    return found
