"""Chains of ancestors, from a /proc of the test's own and from the real one."""

from __future__ import annotations

import os
from pathlib import Path

from hoptui.daemon.state.gpu_ownership import Ancestry


def process(proc: Path, pid: int, parent: int) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} (a (b) c) S {parent} 1 1 0 -1")


def test_the_way_up(tmp_path: Path) -> None:
    for pid, parent in ((1, 0), (10, 1), (20, 10)):
        process(tmp_path, pid, parent)
    assert Ancestry(tmp_path).of([20, 99]) == {20: (20, 10, 1), 99: None}


def test_a_parent_that_vanishes_meanwhile_ends_the_chain(tmp_path: Path) -> None:
    process(tmp_path, 20, 10)
    assert Ancestry(tmp_path).of([20]) == {20: (20, 10)}


def test_a_chain_is_kept_while_it_is_asked_for_and_no_longer(tmp_path: Path) -> None:
    process(tmp_path, 1, 0)
    process(tmp_path, 20, 1)
    ancestry = Ancestry(tmp_path)
    assert ancestry.of([20])[20] == (20, 1)
    (tmp_path / "20" / "stat").unlink()
    assert ancestry.of([20])[20] == (20, 1)
    assert ancestry.of([]) == {}
    assert ancestry.of([20])[20] is None


def test_this_process() -> None:
    chain = Ancestry().of([os.getpid()])[os.getpid()]
    assert chain is not None
    assert chain[:2] == (os.getpid(), os.getppid())
