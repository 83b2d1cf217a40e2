"""Which places are trusted, and what is said of the others."""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
from pathlib import Path

import pytest

from hoptui.node.addresses import IPC_PATH_MAX, AddressError, Addresses, StateError, addresses, secure
from tests.golden import Golden


@pytest.fixture(autouse=True)
def _no_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOPTUI_DIR", raising=False)
    monkeypatch.delenv("HOPTUI_STATE_DIR", raising=False)


def refusal(directory: Path, *, create: bool = True) -> str:
    with pytest.raises(AddressError) as error:
        secure(directory, create=create)
    return str(error.value)


@pytest.mark.guarantee("private-directory")
def test_the_directory_is_made_for_the_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        secure(tmp_path / "a")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


def test_missing_parents_are_made_too(tmp_path: Path) -> None:
    secure(tmp_path / "a" / "b" / "c")
    assert stat.S_IMODE((tmp_path / "a" / "b" / "c").stat().st_mode) == 0o700


def test_a_directory_that_is_right_is_left_as_it_is(tmp_path: Path) -> None:
    directory = tmp_path / "a"
    directory.mkdir(mode=0o700)
    (directory / "daemon.lock").touch()
    secure(directory)
    secure(directory, create=False)
    assert [file.name for file in directory.iterdir()] == ["daemon.lock"]


def test_without_create_nothing_is_made(tmp_path: Path) -> None:
    directory = tmp_path / "a"
    found = refusal(directory, create=False)
    assert (str(directory) in found, found.endswith(f": {os.strerror(errno.ENOENT)}")) == (True, True)
    assert not directory.exists()


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.guarantee("private-directory")
def test_a_symlink_is_refused_even_to_a_good_directory(tmp_path: Path, create: bool) -> None:
    (tmp_path / "good").mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "good")
    assert refusal(link, create=create).startswith(f"{link} is a symlink")


def test_a_dangling_symlink_is_refused_and_not_followed(tmp_path: Path, golden: Golden) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    assert refusal(link).startswith(f"{link} is a symlink")
    assert not (tmp_path / "elsewhere").exists()
    golden(refusal(link), normalize={re.escape(str(tmp_path)): ""})


@pytest.mark.guarantee("private-directory")
def test_a_directory_open_to_others_is_refused(tmp_path: Path, golden: Golden) -> None:
    directory = tmp_path / "a"
    directory.mkdir()
    text = ""
    for mode in (0o750, 0o701, 0o770, 0o777, 0o1777):
        directory.chmod(mode)
        text += f"{refusal(directory)}\n"
        assert f" {mode:o})" in text.splitlines()[-1]
    golden(text, normalize={re.escape(str(tmp_path)): ""})


def test_a_file_is_refused(tmp_path: Path, golden: Golden) -> None:
    file = tmp_path / "a"
    file.touch(mode=0o600)
    golden(f"{refusal(file)}\n{refusal(file / 'b')}\n", normalize={re.escape(str(tmp_path)): ""})


@pytest.mark.guarantee("private-directory")
def test_somebody_elses_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    directory = tmp_path / "a"
    directory.mkdir(mode=0o700)
    owner = os.getuid()
    if owner == 0:
        os.chown(directory, 65534, 65534)
        owner = 65534
    else:  # nobody but root can give a directory away: be somebody else instead
        monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    golden(
        refusal(directory),
        normalize={
            re.escape(str(tmp_path)): "",
            rf"uid {owner}\b": "uid OWNER",
            rf"uid {os.getuid()}\b": "uid YOURS",
        },
    )


def test_addresses_follow_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPTUI_DIR", str(tmp_path / "d"))
    monkeypatch.setenv("HOPTUI_STATE_DIR", str(tmp_path / "s"))
    found = addresses()
    assert found == Addresses(tmp_path / "d", tmp_path / "s")
    assert [p.name for p in (found.lock, found.runs, found.viewers, found.info, found.log)] == [
        "daemon.lock",
        "runs.sock",
        "viewers.sock",
        "daemon.json",
        "daemon.log",
    ]
    assert found.recording("r1") == tmp_path / "s" / "r1.hoptui"
    assert (tmp_path / "d").is_dir()


def test_by_default_they_are_in_tmp_and_bear_the_uid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 424242)
    with pytest.raises(AddressError, match=r"^/tmp/hoptui-424242 cannot be used: No such file"):
        addresses(create=False)
    monkeypatch.setenv("HOPTUI_DIR", "")
    with pytest.raises(AddressError, match=r"^/tmp/hoptui-424242 cannot be used: No such file"):
        addresses(create=False)


def test_a_path_too_long_for_a_socket_is_told_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    longest = IPC_PATH_MAX - len(os.fsencode(f"{tmp_path}/")) - len("/viewers.sock.new")
    assert longest > 1
    texts = []
    for characters, name in ((longest, "d" * longest), (longest, "d" * (longest % 2) + "é" * (longest // 2))):
        good = tmp_path / name
        assert len(os.fsencode(name)) == characters
        monkeypatch.setenv("HOPTUI_DIR", str(good))
        found = addresses()
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"{found.viewers}.new")
        bad = tmp_path / f"{name}d"
        monkeypatch.setenv("HOPTUI_DIR", str(bad))
        with pytest.raises(AddressError) as error:
            addresses()
        assert "HOPTUI_DIR" in str(error.value)
        texts.append(str(error.value).replace(str(bad), "DIRECTORY"))
        assert not bad.exists()
    assert texts[0] == texts[1]
    golden(texts[0])


@pytest.mark.parametrize("variable", ["HOPTUI_DIR", "HOPTUI_STATE_DIR"])
@pytest.mark.parametrize("path", ["hop", "./hop", "~/hop"])
def test_a_relative_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, path: str
) -> None:
    """Else each working directory would have a daemon of its own, on the same recordings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOPTUI_DIR", str(tmp_path / "a"))
    monkeypatch.setenv(variable, path)
    with pytest.raises(AddressError) as error:
        addresses()
    assert str(error.value).startswith(f"{variable} is {str(Path(path))!r}: ")
    assert str(error.value).endswith("absolute path")
    assert list(tmp_path.iterdir()) == []


def test_a_state_directory_that_is_not_private_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv("HOPTUI_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("HOPTUI_STATE_DIR", str(state))
    assert addresses().state == state
    state.mkdir(mode=0o700)
    addresses()
    state.chmod(0o750)
    for create in (True, False):
        with pytest.raises(StateError, match="chmod 700"):
            addresses(create=create)
    state.rmdir()
    state.symlink_to(tmp_path)
    with pytest.raises(StateError, match="symlink"):
        addresses()


@pytest.mark.parametrize("variable", ["HOPTUI_DIR", "HOPTUI_STATE_DIR"])
def test_a_path_that_is_not_utf_8_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("HOPTUI_DIR", str(tmp_path / "run"))
    monkeypatch.setenv(variable, os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    with pytest.raises(AddressError, match=f"{variable}.*UTF-8") as error:
        addresses()
    str(error.value).encode()
