"""Who gave a command: the same words everywhere."""

from __future__ import annotations

import pytest

from hoptui.protocol.authors import author, author_word
from hoptui.protocol.messages import Origin


@pytest.mark.parametrize(
    ("origin", "label", "sentence", "word"),
    [
        (Origin(user="ana", pid=7), "ana (pid 7)", "ana (pid 7)", "ana"),
        (Origin(user="Ana B\n"), "Ana B ", "Ana B ", "ana_b"),
        (Origin(user="a\x1b[2Jb", pid=7), "a[2Jb (pid 7)", "a[2Jb (pid 7)", "a[2jb"),
        (Origin(user="x" * 40), "x" * 31 + "…", "x" * 31 + "…", "x" * 31 + "…"),
        (Origin(pid=7), "somebody (pid 7)", "somebody (pid 7)", "somebody"),
        (
            Origin(kind="agent", user="ana", pid=7, client="My Coder"),
            "agent My Coder (pid 7)",
            "agent My Coder (pid 7)",
            "agent_my_coder",
        ),
        (Origin(kind="agent", user="ana"), "agent", "agent", "agent"),
        (Origin(kind="tuner", user="ana", pid=7), "tuner", "the tuner", "tuner"),
        (Origin(kind="daemon", pid=7), "daemon", "daemon", "daemon"),
    ],
)
def test_an_author_is_named(origin: Origin, label: str, sentence: str, word: str) -> None:
    assert (author(origin), author(origin, sentence=True), author_word(origin)) == (label, sentence, word)
