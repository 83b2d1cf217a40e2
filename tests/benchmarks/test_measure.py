"""What benchmarks share."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks.measure import tell


def test_a_case_is_told_at_once_beside_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"cpu": {"median": 1.5}}
    assert tell("a case: quick", figures) is figures
    out, error = capsys.readouterr()
    assert not out, "the result alone goes there"
    told = re.fullmatch(r" *\d+ s  a case: quick: (.*)\n", error)
    assert told
    assert json.loads(told[1]) == figures
