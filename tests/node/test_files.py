"""Files that are replaced in one step, and what others can do about it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from hoptui.node.files import replaced


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.lstat().st_mode) for path in directory.iterdir()}


def test_it_is_there_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("before")
    with replaced(path, 0o640) as file:
        file.write(b"after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert modes(tmp_path) == {"out.csv": 0o640}


def test_new_files_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with replaced(tmp_path / "out") as file:
            file.write(b"")
    finally:
        os.umask(before)
    assert modes(tmp_path) == {"out": 0o640}


@pytest.mark.guarantee("written-files")
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt), replaced(path):
        raise KeyboardInterrupt
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("out", "before")]


@pytest.mark.guarantee("written-files")
def test_names_cannot_be_guessed_and_links_are_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = tmp_path / "out"
    path.symlink_to(victim)
    names = set()
    for _ in range(20):
        with replaced(path) as file:
            (part,) = tmp_path.glob(".*")
            names.add(part.name)
            file.write(b"x")
    assert len(names) == 20
    assert all(str(os.getpid()) not in name for name in names)
    assert (victim.read_text(), path.is_symlink()) == ("precious", False)


def test_a_file_that_another_one_put_there_is_not_taken(tmp_path: Path) -> None:
    def write() -> None:
        with replaced(tmp_path / "out") as file:
            file.write(b"ours")
            (part,) = tmp_path.glob(".*")
            part.unlink()
            part.write_text("theirs")

    with pytest.raises(OSError, match="replaced"):
        write()
    assert not (tmp_path / "out").exists()
