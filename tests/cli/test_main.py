from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import hoptui as package
from hoptui.cli import main as main_module
from hoptui.cli.support.terminal import Fail, say
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.golden import Golden

COMMANDS = [name for name, _, _ in main_module.COMMANDS if name != "train"]  # the trainer has its own help


def test_help_names_every_command(hoptui: Hoptui) -> None:
    ended = hoptui("--help")
    assert (ended.code, ended.err) == (0, "")
    assert all(f"│ {command} " in ended.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(hoptui: Hoptui, command: str) -> None:
    ended = hoptui(command, "--help")
    assert ended.code == 0
    assert ended.out.startswith(f"Usage: hoptui {command}")


def test_version(hoptui: Hoptui) -> None:
    assert hoptui("--version") == (0, f"hoptui {package.__version__}\n", "")


def test_bad_usage_is_one_sentence(hoptui: Hoptui, golden: Golden) -> None:
    for words in (
        "xyzzy",
        "stat",
        "top",
        "stat --bogus",
        "--xyzzy",
        "ls extra",
        "ls --bogus",
        "ls --jsn",
        "status",
        "replay",
        "report",
        "tune x --freeze",
        "tune x --allow",
        "watch x --every soon",
    ):
        ended = hoptui(*words.split())
        assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
        assert " --help" in ended.err
    golden(hoptui.transcript())


def test_without_a_terminal_the_dashboard_points_to_plain_text(hoptui: Hoptui, golden: Golden) -> None:
    for words in ("", "attach", "attach ppo"):
        ended = hoptui(*words.split())
        assert (ended.code, ended.out) == (2, "")
        assert "hoptui status" in ended.err
    golden(hoptui.transcript())


def test_a_directory_that_is_not_to_be_trusted(
    hoptui: Hoptui, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    (tmp_path / "d").mkdir(mode=0o755)
    monkeypatch.setenv("HOPTUI_DIR", str(tmp_path / "d"))
    for words in (("ls",), ("status", "x"), ("daemon", "status")):
        ended = hoptui(*words)
        assert (ended.code, str(tmp_path / "d") in ended.err) == (3, True)
    golden(hoptui.transcript())


def test_the_unexpected_is_one_line_and_a_traceback_in_a_file(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    def fall(argv: list[str]) -> int:
        raise RuntimeError("a\nb")

    monkeypatch.setattr(main_module, "_run", fall)
    ended = hoptui("ls")
    log = daemon.where.directory / "cli.log"
    assert (ended.code, ended.err.count("\n"), str(log) in ended.err) == (1, 1, True)
    golden(hoptui.transcript())
    assert "in fall" in log.read_text()


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [(Fail("x is y", 3), 3, "hoptui: x is y\n"), (Fail("", 0), 0, ""), (KeyboardInterrupt(), 130, "")],
)
def test_exit_codes(
    hoptui: Hoptui, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, text: str
) -> None:
    def fall(argv: list[str]) -> int:
        raise error

    monkeypatch.setattr(main_module, "_run", fall)
    assert hoptui("ls") == (code, "", text)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("status", "nosuch", "--json"), 3),
        (("watch", "nosuch", "--json"), 3),
        (("get", "nosuch", "--json"), 3),
        (("set", "nosuch", "lr=1", "--json"), 3),
        (("history", "nosuch", "--json"), 3),
        (("tune", "nosuch", "--json"), 3),
        (("get", "ppo", "nosuch", "--json"), 2),
        (("ls", "--bogus", "--json"), 2),
    ],
)
def test_an_error_of_a_command_that_prints_json_is_json_too(
    hoptui: Hoptui, ppo: FakeDaemon, words: tuple[str, ...], code: int
) -> None:
    ended = hoptui(*words)
    assert ended.code == code
    told = ended.json
    assert told["code"] == code
    assert ended.err == f"hoptui: {told['error']}\n"


def test_an_argument_that_is_not_utf_8_is_quoted_in_json(hoptui: Hoptui) -> None:
    ended = hoptui("ls", "-\udcad", "--json")
    assert (ended.code, ended.json["code"]) == (2, 2)
    assert "hoptui ls has no option -?" in ended.json["error"]


def test_a_terminal_without_utf_8_gets_ascii(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Through a file descriptor, because Python picks the encoding of the stream."""
    command = "from hoptui.cli.support.terminal import say; say('grad_accum 4 → 8  ● live\\x1b[2J')"
    out = subprocess.run(
        [sys.executable, "-c", command], env={"PYTHONIOENCODING": "ascii"}, capture_output=True, check=True
    ).stdout
    assert out == b"grad_accum 4 -> 8  * live[2J\n"
    say("●")
    assert capfdbinary.readouterr().out == "●\n".encode()


@pytest.mark.parametrize("words", [["ls"], ["daemon", "--help"]])
def test_a_reader_that_leaves_early_is_no_error(daemon: FakeDaemon, words: list[str]) -> None:
    """As in `hoptui ls | true`: the pipe is closed before the first line."""
    code = f"import os, sys; os.close(0); from hoptui.cli.main import main; sys.exit(main({words}))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(20) == 141


HEAVY = ("textual", "torch", "zmq", "numpy", "psutil", "pynvml", "sqlite3", "hoptui.tui", "hoptui.daemon")


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (("--help",), ()),
        (("--version",), ()),
        (("ls",), ("zmq",)),
        (("set", "x", "a=1"), ("zmq",)),
    ],
)
def test_what_a_command_imports(daemon: FakeDaemon, words: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    code = (
        "import json, sys; from hoptui.cli.main import main; main(sys.argv[2:]); "
        "print(json.dumps([m for m in json.loads(sys.argv[1]) if m in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(HEAVY), *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == list(allowed)


def test_the_package_is_a_command_too(daemon: FakeDaemon) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hoptui", "bogus"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")


def test_every_module_of_a_command_is_in_the_table_of_commands() -> None:
    """`daemon_forward` is a subcommand that `__main__` starts without the parser."""
    folder = Path(__file__).parents[2] / "hoptui/cli/commands"
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "daemon_forward"}
    named = {main_module.FUNCTIONS.get(name, name) for name, _, _ in main_module.COMMANDS}
    assert modules == named, "see COMMANDS in hoptui/cli/main.py"
