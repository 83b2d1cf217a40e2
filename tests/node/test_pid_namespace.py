"""Whose count of pids it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from hoptui.node.processes import whose_pids


@pytest.mark.parametrize(
    ("link", "whose"), [("pid:[4026531836]", "machine"), ("pid:[4026532281]", "container"), ("", "unknown")]
)
def test_the_kernel_tells(tmp_path: Path, link: str, whose: str) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    if link:
        (tmp_path / "self/ns/pid").symlink_to(link)
    assert whose_pids(tmp_path) == whose
