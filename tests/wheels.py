"""`python -m tests.wheels`: build both wheels, install them into a new environment, and run what they
install.

The new environment gets the dependencies of hoptui by pip, through `constraints.txt`. It borrows torch, numpy
and gymnasium from the environment that runs this script: torch alone is gigabytes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import zipfile
from collections.abc import Mapping
from fcntl import ioctl
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("hoptui", "trainer", "pyproject.toml", "README.md", "LICENSE")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
SHIPPED = (
    "hoptui/py.typed",
    "hoptui/examples/lm-h200.hoptui",
    "hoptui/examples/ppo-h200.hoptui",
    "hoptui/web/focus.js",
    "hoptui/tui/styles/tokens.tcss",
    "hoptui/cli/report/assets/report.css",
    "hoptui/cli/report/assets/report.js",
    "hoptui/cli/report/assets/uPlot.LICENSE",
    "hoptui/cli/report/assets/uPlot.iife.min.js",
    "hoptui/cli/report/assets/uPlot.min.css",
)
DRAWN = b"700 W"
"""On the screen of a run on an H200: the power limit of its GPU."""
SHOWN_S = 30.0


def main() -> int:
    """Check both wheels; an exception says what is wrong with them."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hoptui-wheels-") as folder:
        here = Path(folder)
        hoptui, trainer = build(here)
        check_contents(hoptui, trainer)
        python = make_environment(here / "environment")
        environ = private_environment(here)
        install(python, hoptui)
        check_hoptui_alone(python, environ)
        install(python, trainer, "--no-deps")
        borrow_torch(python)
        check_trainer(python, environ)
    print(f"both wheels work ({time.monotonic() - began:.0f} s)")
    return 0


def build(here: Path) -> tuple[Path, Path]:
    """The wheels of hoptui and of the trainer, built from a copy: no earlier build gets into them."""
    sources, wheels = here / "sources", here / "wheels"
    sources.mkdir()
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, sources / name, ignore=LEFT_OUT)
        else:
            shutil.copy(path, sources / name)
    pip("wheel", "--no-deps", "--wheel-dir", str(wheels), str(sources), str(sources / "trainer"))
    [hoptui], [trainer] = list(wheels.glob("hoptui-*.whl")), list(wheels.glob("hoptui_trainer-*.whl"))
    return hoptui, trainer


def check_contents(hoptui: Path, trainer: Path) -> None:
    """Each wheel has one top-level package, and data files are in it."""
    for wheel, package in ((hoptui, "hoptui"), (trainer, "hoptui_trainer")):
        names = zipfile.ZipFile(wheel).namelist()
        packages = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
        assert packages == {package}, f"{wheel.name} installs {sorted(packages)}"
    missing = set(SHIPPED) - set(zipfile.ZipFile(hoptui).namelist())
    assert not missing, f"{hoptui.name} lacks {sorted(missing)}"


def make_environment(folder: Path) -> Path:
    """The Python of a new virtual environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def install(python: Path, wheel: Path, *options: str) -> None:
    """Install a wheel into the environment of `python`."""
    pip("--python", str(python), "install", "-c", str(ROOT / "constraints.txt"), *options, str(wheel))


def pip(*words: str) -> None:
    """Run pip; it prints errors alone."""
    command = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check", *words]
    subprocess.run(command, check=True)


def private_environment(here: Path) -> dict[str, str]:
    """An environment in which nothing of this checkout and of this user's hoptui is seen."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOPTUI", "PYTHON", "XDG_", "TEXTUAL"))
    }
    own = {"HOPTUI_DIR": str(here / "run"), "HOPTUI_STATE_DIR": str(here / "state"), "HOPTUI_IDLE_S": "1"}
    return kept | own | {"TERM": "xterm-256color", "LANG": "C.UTF-8", "HOME": str(here)}


def check_hoptui_alone(python: Path, environ: Mapping[str, str]) -> None:
    """Without the trainer: help, one sentence in place of training, and an example in the dashboard."""
    hoptui = str(python.with_name("hoptui"))
    scripts = {path.name for path in python.parent.iterdir()}
    assert "trainer" not in scripts, "a script called trainer is installed"
    assert ran(environ, hoptui, "--version").startswith("hoptui ")
    assert "replay" in ran(environ, hoptui, "--help")
    for package in ("trainer", "hoptui_trainer", "torch"):
        assert "ModuleNotFoundError" in ran(environ, str(python), "-c", f"import {package}", code=1)
    needed = "pip install 'hoptui[trainer]'"
    assert needed in ran(environ, hoptui, "train", "ppo", code=1)
    assert needed in ran(environ, hoptui, "demo", "--headless", code=1)
    examples = ran(environ, hoptui, "replay", "--example", "x", code=3)
    assert all(name in examples for name in ("lm-h200", "ppo-h200"))
    watch(environ, hoptui, "replay", "--example")
    assert needed.encode() in watch(environ, hoptui, "demo")


def borrow_torch(python: Path) -> None:
    """Let the environment of `python` import the packages that this one has, after its own."""
    own = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    )
    places = set()
    for package in ("torch", "numpy", "gymnasium"):
        found = importlib.util.find_spec(package)
        assert found is not None, f"{package} is not installed here"
        assert found.origin is not None
        places.add(str(Path(found.origin).parents[1]))
    (Path(own.stdout.strip()) / "borrowed.pth").write_text("\n".join(sorted(places)) + "\n")


def check_trainer(python: Path, environ: Mapping[str, str]) -> None:
    """The trainer trains, as a module and as a command of hoptui."""
    where = ran(environ, str(python), "-c", "import hoptui_trainer; print(hoptui_trainer.__file__)")
    assert Path(where.strip()).is_relative_to(python.parents[1]), f"it is imported from {where}"
    assert "ModuleNotFoundError" in ran(environ, str(python), "-c", "import trainer", code=1)
    words = ("ppo", "--preset", "tiny", "--iterations", "3", "--json")
    quiet = {**environ, "HOPTUI": "off"}
    for command in (
        (str(python), "-m", "hoptui_trainer"),
        (str(python.with_name("hoptui")), "train"),
    ):
        result = json.loads(ran(quiet, *command, *words).splitlines()[-1])
        assert (result["workload"], result["iterations"]) == ("ppo", 3), result
    assert "Usage: hoptui train" in ran(quiet, str(python.with_name("hoptui")), "train", "--help")


def ran(environ: Mapping[str, str], *command: str, code: int = 0) -> str:
    """What a command prints, on both streams; it must exit with `code`."""
    ended = subprocess.run(
        command,
        cwd=environ["HOME"],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert ended.returncode == code, f"{' '.join(command)} exited with {ended.returncode}:\n{ended.stdout}"
    return ended.stdout


def watch(environ: Mapping[str, str], *command: str) -> bytes:
    """Run a command on a terminal until the example is drawn; then `q` must end it with exit code 0.

    Returns everything that it wrote.
    """
    child, terminal = pty.fork()
    if not child:
        os.chdir(environ["HOME"])
        os.execve(command[0], command, dict(environ))
    seen = b""
    try:
        ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        until = time.monotonic() + SHOWN_S
        while DRAWN not in seen and time.monotonic() < until:
            seen += read(terminal)
        assert DRAWN in seen, f"{' '.join(command)} shows no run:\n{seen[-2000:]!r}"
        os.write(terminal, b"q")
        while part := read(terminal, SHOWN_S):
            seen += part
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        child = 0
        assert code == 0, f"{' '.join(command)} exited with {code}:\n{seen[-2000:]!r}"
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(terminal)
    return seen


def read(terminal: int, seconds: float = 1.0) -> bytes:
    """What was written on a terminal; b"" after `seconds` without anything, and at its end."""
    if not select.select([terminal], [], [], seconds)[0]:
        return b""
    try:
        return os.read(terminal, 65536)
    except OSError:  # nobody has it open any more
        return b""


if __name__ == "__main__":
    sys.exit(main())
