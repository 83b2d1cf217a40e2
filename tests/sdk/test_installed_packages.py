"""Which files are of installed packages in any folder, and of the user in the others."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from hoptui.domain.hot_lines import hot_lines
from hoptui.domain.line_counts import CountedLine
from hoptui.domain.stacks import StackSamples, unpack
from hoptui.protocol import messages
from hoptui.sdk import installed_packages
from hoptui.sdk.installed_packages import NO_PACKAGES, InstalledPackages, PackageFolder, read
from hoptui.sdk.stack_sampler import StackSampler
from tests.conftest import TestNode, until

TORCH_LINES = 12_000


def install(folder: Path, name: str, *files: str, record: bool = True) -> None:
    """Put files into a folder as `pip install --target` does."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    if record:
        rows = [f"../../bin/{name},sha256=x,9", f"{info.name}/RECORD,,", *(f"{f},sha256=x,1" for f in files)]
        (info / "RECORD").write_text("\n".join(rows) + "\n")


def place(packages: InstalledPackages, file: Path | str) -> int:
    """Return what is known of a file once its folders have been read."""
    until(lambda: packages.place(str(file)) is not None, what="the folders")
    found = packages.place(str(file))
    assert found is not None
    return found


@pytest.fixture
def on_path(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    return lambda *folders: monkeypatch.setattr(sys, "path", [*map(str, folders), *sys.path])


def test_a_package_in_a_target_folder_is_installed(tmp_path: Path, on_path: Callable[..., None]) -> None:
    libs = tmp_path / "libs"
    install(libs, "Accel", "accel/__init__.py", "accel/utils/other.py", "six.py")
    on_path(libs)
    packages = InstalledPackages()
    assert place(packages, libs / "accel/utils/other.py") == len(f"{libs}/")
    assert place(packages, libs / "accel/generated/later.py") == len(f"{libs}/")
    assert place(packages, libs / "six.py") == len(f"{libs}/")
    assert place(packages, libs / "mine.py") == 0  # beside them
    assert place(packages, tmp_path / "train.py") == 0


def test_an_editable_project_is_of_the_user(tmp_path: Path, on_path: Callable[..., None]) -> None:
    source = tmp_path / "src"
    (source / "mine").mkdir(parents=True)
    (source / "mine/__init__.py").touch()
    (source / "mine.egg-info").mkdir()
    (source / "mine.egg-info/SOURCES.txt").write_text("mine/__init__.py\n")
    (source / "mine.egg-info/top_level.txt").write_text("mine\n")
    install(source, "mine", "mine/__init__.py", record=False)  # `dist_info` of setuptools, without a RECORD
    on_path(source)
    assert place(InstalledPackages(), source / "mine/__init__.py") == 0


def test_modules_of_the_user_on_pythonpath_are_of_the_user(
    tmp_path: Path, on_path: Callable[..., None]
) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    on_path(modules, tmp_path / "missing")
    packages = InstalledPackages()
    assert place(packages, modules / "data.py") == 0
    assert place(packages, tmp_path / "missing/data.py") == 0
    assert place(packages, "<string>") == place(packages, "data.py") == 0


def test_a_namespace_package_belongs_to_those_who_have_its_files(
    tmp_path: Path, on_path: Callable[..., None]
) -> None:
    install(tmp_path, "corp-a", "corp/a/__init__.py", "corp/a/run.py")
    install(tmp_path, "corp-b", "corp/b.py")
    on_path(tmp_path)
    packages = InstalledPackages()
    assert place(packages, tmp_path / "corp/a/run.py") == place(packages, tmp_path / "corp/b.py") > 0
    assert place(packages, tmp_path / "corp/mine/train.py") == 0


def test_the_innermost_folder_of_the_path_comes_first(tmp_path: Path, on_path: Callable[..., None]) -> None:
    libs = tmp_path / "project/libs"
    install(libs, "accel", "accel/__init__.py")
    on_path(tmp_path / "project", f"{libs}/")
    packages = InstalledPackages()
    assert place(packages, libs / "accel/__init__.py") == len(f"{libs}/")
    assert place(packages, tmp_path / "project/libs_of_mine.py") == 0


def test_packages_in_a_zip_file_are_installed(tmp_path: Path, on_path: Callable[..., None]) -> None:
    archive = tmp_path / "libs.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("zipped_accel/__init__.py", "")
        file.writestr("zipped_mine.py", "")
        file.writestr("zipped_accel-1.0.dist-info/RECORD", "zipped_accel/__init__.py,,\n")
    on_path(archive)
    __import__("zipped_accel")
    packages = InstalledPackages()
    assert place(packages, f"{archive}/zipped_accel/__init__.py") == len(f"{archive}/")
    assert place(packages, f"{archive}/zipped_mine.py") == 0


def test_each_folder_is_read_once_and_none_that_its_name_shows(
    tmp_path: Path, on_path: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "libs", "accel", "accel/__init__.py")
    on_path(tmp_path / "libs", tmp_path / "site-packages", tmp_path)
    looked_at: list[str] = []

    def noted(folder: str) -> PackageFolder:
        looked_at.append(folder)
        return read(folder)

    monkeypatch.setattr(installed_packages, "read", noted)
    packages = InstalledPackages()
    for name in ("a", "b", "c"):
        place(packages, tmp_path / f"libs/accel/{name}.py")
        place(packages, tmp_path / f"site-packages/torch/{name}.py")
    assert looked_at == [f"{tmp_path}/libs", str(tmp_path)]


def test_a_folder_that_cannot_be_read_has_no_packages(
    tmp_path: Path, on_path: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(folder: str) -> PackageFolder:
        raise RuntimeError(folder)

    monkeypatch.setattr(installed_packages, "read", broken)
    on_path(tmp_path)
    assert place(InstalledPackages(), tmp_path / "a.py") == 0


def test_a_process_without_threads_left_goes_on(
    tmp_path: Path, on_path: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    on_path(tmp_path)
    assert InstalledPackages().place(str(tmp_path / "a.py")) == 0


def test_a_folder_that_does_not_answer_keeps_nobody_waiting_and_its_late_answer_counts(
    tmp_path: Path, on_path: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "accel", "accel/__init__.py")
    answers = threading.Event()

    def slow(folder: str) -> PackageFolder:
        assert answers.wait(30)
        return read(folder)

    monkeypatch.setattr(installed_packages, "read", slow)
    monkeypatch.setattr(installed_packages, "WAIT_S", 0.0)
    on_path(tmp_path)
    packages = InstalledPackages()
    file = str(tmp_path / "accel/__init__.py")
    assert packages.place(file) is None
    monkeypatch.setattr(installed_packages, "PATIENCE_S", 0.0)
    assert packages.place(file) == 0
    assert not packages.corrected()
    answers.set()
    until(packages.corrected, what="the answer")
    assert packages.place(file) == len(f"{tmp_path}/")
    assert not packages.corrected()


def test_a_long_record_is_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_packages, "MOST_LINES", 100)
    files = [f"parts/part{n}.py" for n in range(200)]
    install(tmp_path, "parts", *files)
    assert len(read(str(tmp_path)).files) == 98  # without the script and the RECORD itself
    monkeypatch.setattr(installed_packages, "MOST_ENTRIES", 0)
    assert read(str(tmp_path)) == NO_PACKAGES


WORKS = """
import json, sys

def save(over):
    while not over():
        json.dumps(list(range(5000)))
"""
SCRIPT = """
import threading, sys, time
import msgspec
import accel_for_test
from hoptui.sdk.stack_sampler import StackSampler

over = threading.Event()
def fail(error):
    raise error
def train():
    accel_for_test.save(over.is_set)  # the line of the script
trains = threading.Thread(target=train)
trains.start()
sampler = StackSampler(lambda: trains.ident, lambda: "", fail)
ends = time.monotonic() + 60
while time.monotonic() < ends:
    sampler.sample()
    found = sampler.take()
    if found is not None:
        break
over.set()
trains.join()
sys.stdout.buffer.write(msgspec.msgpack.encode(found))
"""


@pytest.mark.parametrize("installed", [True, False])
def test_the_line_of_a_process_is_that_of_the_script(tmp_path: Path, installed: bool) -> None:
    libs = tmp_path / "libs"
    install(libs, "accel-for-test", "accel_for_test/__init__.py", record=installed)
    (libs / "accel_for_test/__init__.py").write_text(WORKS)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join((str(libs), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, script],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    )
    line = hot_lines(msgspec.msgpack.decode(done.stdout, type=StackSamples))[0]
    named = ("train.py", "train") if installed else ("__init__.py", "save")
    assert (Path(line.place.file).name, line.place.function) == named


LOOP = """
import time
import hoptui
import accel_for_test
run = hoptui.connect("toy")
for step in run.iterations():
    ends = time.monotonic() + 0.02
    accel_for_test.save(lambda: time.monotonic() > ends)  # the line of the script
    run.log(loss=1.0)
"""


def test_a_viewer_is_told_the_line_of_the_script(node: TestNode, tmp_path: Path) -> None:
    libs = tmp_path / "libs"
    install(libs, "accel-for-test", "accel_for_test/__init__.py")
    (libs / "accel_for_test/__init__.py").write_text(WORKS)
    script = tmp_path / "train.py"
    script.write_text(LOOP)
    path = os.pathsep.join((str(libs), str(Path(__file__).parents[2])))
    viewer = node.viewer()
    node.spawn([sys.executable, str(script)], PYTHONPATH=path)
    run = viewer.run().run

    def lines() -> tuple[CountedLine, ...]:
        found = viewer.ask(messages.FetchLines(id=1, run=run), messages.RunLines)
        return found.ranks[0].counts.lines if found.ranks else ()

    line = until(lines, what="samples")[0]
    assert (Path(line.file).name, line.line, line.function) == ("train.py", 8, "<module>")


def test_a_stack_waits_until_its_packages_are_known(
    tmp_path: Path, on_path: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "accel", "accel/__init__.py")
    code = compile("def inner(sample):\n    sample()\n", f"{tmp_path}/accel/__init__.py", "exec")
    space: dict[str, Callable[..., None]] = {}
    exec(code, space)
    answers = threading.Event()

    def slow(folder: str) -> PackageFolder:
        assert answers.wait(30)
        return read(folder)

    def failed(error: Exception) -> None:
        raise AssertionError from error

    monkeypatch.setattr(installed_packages, "read", slow)
    monkeypatch.setattr(installed_packages, "WAIT_S", 0.0)
    on_path(tmp_path)
    ident = threading.get_ident()
    sampler = StackSampler(lambda: ident, lambda: "", failed)

    def sample() -> None:
        other = threading.Thread(target=sampler.sample)
        other.start()
        other.join(30)
        assert not other.is_alive()

    space["inner"](sample)
    calls = [(f"{tmp_path}/accel/__init__.py", 2, "inner"), ("/home/me/train.py", 5, "main")]
    assert sampler.take() is None
    assert sampler.of_script(calls) is None
    answers.set()
    found = until(sampler.take, what="the samples")
    [stack] = unpack(found)
    of_package = [frame for frame in stack if frame.file.startswith(str(tmp_path))]
    assert [frame.package_at for frame in of_package] == [len(f"{tmp_path}/")]
    assert found.left_out == 0
    assert sampler.of_script(calls) == (calls[1],)
