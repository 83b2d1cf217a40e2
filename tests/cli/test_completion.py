"""The scripts that complete command lines in a shell."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoptui.cli.completion.candidates import candidates
from hoptui.cli.completion.candidates import main as complete
from hoptui.cli.completion.grammar import GRAMMARS
from hoptui.cli.completion.shell_words import escaped, words
from hoptui.cli.main import COMMANDS, build
from hoptui.recording import Recording, library
from tests import factories
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.client.slurm_programs import write_programs


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_has_every_command_and_is_valid(hoptui: Hoptui, tmp_path: Path, shell: str) -> None:
    ended = hoptui("completion", shell)
    assert (ended.code, ended.err) == (0, "")
    assert all(name in ended.out for name, _, _ in COMMANDS)
    assert "dry-run" in ended.out
    if program := shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(ended.out)
        subprocess.run([program, "-n", str(script)], check=True, timeout=20)


@pytest.mark.parametrize(
    ("shell", "asks"),
    [
        (
            "bash",
            "source {script}; COMP_LINE='hoptui attach slurm:2'; COMP_POINT=${{#COMP_LINE}}; "
            "COMP_WORDS=(hoptui attach slurm : 2); COMP_CWORD=4; _hoptui_and_jobs; echo ${{COMPREPLY[@]}}",
        ),
        ("fish", "source {script}; complete -C 'hoptui attach slurm:2'"),
        (
            "zsh",
            "compadd() {{ shift; print -l -- $@ | grep ^slurm:2; }}; source {script}; "
            "words=(hoptui attach slurm:2); CURRENT=3; _cyclopts_hoptui",
        ),
    ],
)
def test_running_slurm_jobs_are_completed(
    hoptui: Hoptui, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str, asks: str
) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    write_programs(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{tmp_path / 'slurm'}:{os.environ['PATH']}")
    script = tmp_path / "script"
    assert hoptui("--install-completion", "--shell", shell, "--output", str(script)).code == 0
    assert script.read_text() == hoptui("completion", shell).out.removesuffix("\n")
    command = [program, "-c", asks.format(script=script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.stdout.split() == ["2_1" if shell == "bash" else "slurm:2_1"], done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_installed_script_is_the_printed_one(hoptui: Hoptui, tmp_path: Path, shell: str) -> None:
    installed = tmp_path / "script"
    assert hoptui("--install-completion", "--shell", shell, "-o", str(installed)).code == 0
    assert "__complete" in installed.read_text()
    assert installed.read_text().rstrip() == hoptui("completion", shell).out.rstrip()


def test_another_shell_is_bad_usage(hoptui: Hoptui) -> None:
    assert hoptui("completion", "tcsh").code == 2


def options_with_values(command: str) -> set[str]:
    """What the parser itself says of the options of a command."""
    found = set()
    for argument in build()[command].assemble_argument_collection():
        names = [name for name in argument.names if name.startswith("-")]
        if argument.parse and names and bool not in (argument.hint, *get_args(argument.hint)):
            found.update(names)
    return found


@pytest.mark.parametrize("command", GRAMMARS)
def test_the_options_with_values_are_those_of_the_parser(command: str) -> None:
    assert set(GRAMMARS[command].valued) == options_with_values(command)


def test_every_command_that_takes_a_run_or_a_recording_completes_it() -> None:
    taken = {
        command
        for command, *_ in COMMANDS
        if build()[command].default_command is not None  # the others are groups of commands
        for argument in build()[command].assemble_argument_collection()
        if argument.parse and {"RUN", "RECORDING"} & set(argument.names)
    }
    assert taken - set(GRAMMARS) == set()
    assert "status" in taken


def test_recordings_that_ship_with_hoptui_are_completed() -> None:
    assert candidates(["replay", "--example", ""]) == ["lm-h200", "ppo-h200"]
    assert candidates(["replay", "--example", "p"]) == ["ppo-h200"]
    assert candidates(["replay", "--example", "ppo-h200", ""]) == []


LINES = st.lists(st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1), min_size=1)


@given(LINES)
def test_a_line_is_read_as_a_shell_reads_it(written: list[str]) -> None:
    assert [word.value for word in words(" ".join(map(escaped, written)))] == written
    assert [word.value for word in words(shlex.join(written))] == written


PATIENT = """
import sys
from hoptui import __main__
from hoptui.cli.completion import candidates
candidates.ANSWER_S = candidates.READ_S = 20.0
sys.exit(__main__.main())
"""
"""The command, on a machine that may be as busy as it likes."""


class Bash:
    """An interactive bash with the completion script, in which `hoptui` prints its arguments."""

    def __init__(self, directory: Path, script: str) -> None:
        programs = directory / "bin"
        programs.mkdir()
        (programs / "hoptui").write_text(f"#!{sys.executable}\n{PATIENT}")
        (programs / "hoptui").chmod(0o755)
        setup = directory / "setup"
        setup.write_text(
            f"{script}\nhoptui() {{ printf '<%s>' \"$@\"; echo ' end'; }}\n"
            "bind 'set bell-style none'; bind 'set enable-bracketed-paste off'; PS1='ready$ '\n"
        )
        controller, terminal = pty.openpty()
        self._terminal = controller
        environment = dict(
            os.environ, PATH=f"{programs}:{os.environ['PATH']}", TERM="dumb", INPUTRC="/dev/null"
        )
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--rcfile", str(setup), "-i"],
            stdin=terminal, stdout=terminal, stderr=terminal, env=environment, cwd=directory,
            start_new_session=True,
        )  # fmt: skip
        os.close(terminal)
        self._until("ready$ ")

    def _until(self, mark: str) -> str:
        seen, until = "", time.monotonic() + 30
        while mark not in seen:
            left = until - time.monotonic()
            assert left > 0, seen
            assert select.select([self._terminal], [], [], left)[0], seen
            seen += os.read(self._terminal, 65536).decode(errors="replace")
        return seen

    def arguments(self, typed: str) -> list[str]:
        """The arguments of the command line that comes of these keys and `enter`; a tab completes."""
        os.write(self._terminal, f"{typed}\n".encode())
        seen = self._until(" end\r\nready$ ")
        printed = seen.rpartition("\r\n<")[2]
        return printed.partition("> end")[0].split("><")

    def listed(self, typed: str) -> str:
        """What the screen shows after these keys and two tabs."""
        os.write(self._terminal, f"{typed}\t\t".encode())
        seen = self._until("ready$ ")
        os.write(self._terminal, b"\x15")
        return seen

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


@pytest.fixture
def bash(hoptui: Hoptui, daemon: FakeDaemon, tmp_path: Path) -> Iterator[Bash]:
    shell = Bash(tmp_path, hoptui("completion", "bash").out)
    yield shell
    shell.close()


ODD = ("my run", "it's $(touch hacked)", 'a"b;c|d', "über ☃", "back\\slash & co")


@pytest.mark.parametrize("name", ODD)
def test_bash_completes_a_name_that_the_shell_would_read_otherwise(
    bash: Bash, daemon: FakeDaemon, tmp_path: Path, name: str
) -> None:
    daemon.add(factories.run(name=name))
    daemon.start()
    assert bash.arguments("hoptui set \t") == ["set", name]
    assert bash.arguments(f"X=1 hoptui set --why 'a b' {escaped(name[0])}\t") == ["set", "--why", "a b", name]
    assert bash.arguments(f"hoptui get {shlex.quote(name)} gr\t") == ["get", name, "grad_accum"]
    assert not (tmp_path / "hacked").exists()


def test_bash_completes_knobs_and_their_values(bash: Bash, daemon: FakeDaemon) -> None:
    mode = factories.knob("mode", "a b", choices=("a b", "$c"))
    knobs = (*factories.run().knobs, factories.knob("compile", False), mode)
    daemon.add(factories.run(name="ppo", knobs=knobs))
    daemon.add(factories.run("other234", name="gpt", exit_reason="finished"))
    daemon.start()
    assert bash.arguments("hoptui set pp\tprec\tb\t gr\t8") == [
        "set",
        "ppo",
        "precision=bf16",
        "grad_accum=8",
    ]
    assert bash.arguments("hoptui set ppo compile=of\t") == ["set", "ppo", "compile=off"]
    assert bash.arguments("hoptui set ppo mode=a\t") == ["set", "ppo", "mode=a b"]
    assert bash.arguments("hoptui set ppo 'mode=a\t") == ["set", "ppo", "mode=a b"]
    assert bash.arguments('hoptui set ppo "mode=$\t') == ["set", "ppo", "mode=$c"]
    assert bash.arguments("hoptui tune ppo --freeze comp\t") == ["tune", "ppo", "--freeze", "compile"]
    listed = bash.listed("hoptui set ppo ")
    assert all(f"{knob.spec.name}=" in listed for knob in knobs)
    assert bash.arguments("hoptui set g\t") == ["set", "g"]  # it has exited
    assert bash.arguments("hoptui status g\t") == ["status", "gpt"]
    assert bash.arguments("hoptui set ppo --dry\t") == ["set", "ppo", "--dry-run"]  # the parser's own script


def test_bash_completes_recordings_without_a_daemon(bash: Bash, daemon: FakeDaemon, tmp_path: Path) -> None:
    daemon.where.state.mkdir(mode=0o700)
    with Recording.create(daemon.where.recording(factories.RUN)) as recording:
        known = library.KnownRun(state=factories.run(name="old run"), nonce="n", process_started=1)
        recording.remember(library.RUN, msgspec.json.encode(known))
    (tmp_path / "of a node.hoptui").touch()
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "er.hoptui").touch()
    (tmp_path / "of.txt").touch()
    assert bash.arguments("hoptui replay ol\t") == ["replay", "old run"]
    assert bash.arguments("hoptui report of\t") == ["report", "of a node.hoptui"]
    assert bash.arguments("hoptui attach dee\te\t") == ["attach", "deep/er.hoptui"]
    assert bash.arguments("hoptui set ol\t") == ["set", "ol"]
    assert not daemon.where.lock.exists()


@pytest.mark.parametrize("directory", ["missing", "relative", "open"])
def test_without_directories_nothing_is_offered_made_or_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], directory: str
) -> None:
    place = tmp_path / "run"
    if directory == "open":
        place.mkdir(mode=0o777)
        place.chmod(0o777)
    monkeypatch.setenv("HOPTUI_DIR", "run" if directory == "relative" else str(place))
    monkeypatch.setenv("HOPTUI_STATE_DIR", str(tmp_path / "state"))
    before = sorted(tmp_path.rglob("*"))
    assert complete(["zsh", "status", ""]) == 0
    assert complete(["bash", "hoptui set x ", " ="]) == 0
    assert complete([]) == 0
    assert capfd.readouterr() == ("", "")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_daemon_that_does_not_answer_is_not_waited_for(
    daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]
) -> None:
    daemon.start()
    daemon.hang()
    began = time.monotonic()
    assert complete(["fish", "status", ""]) == 0
    assert time.monotonic() - began < 5
    assert capfd.readouterr() == ("", "")


def test_runs_of_one_name_are_offered_by_their_ids(
    daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]
) -> None:
    for run, name in (("aaaa2222", "ppo"), ("bbbb2222", "ppo"), ("cccc2222", "--yes"), ("dddd2222", "a\nb")):
        daemon.add(factories.run(run, name=name))
    daemon.start()
    complete(["zsh", "stop", ""])
    assert capfd.readouterr().out.split() == ["aaaa2222", "bbbb2222", "cccc2222", "dddd2222"]


def test_what_takes_long_to_import_is_left_alone(daemon: FakeDaemon) -> None:
    daemon.add(factories.run())
    daemon.start()
    script = (
        "import sys; from hoptui.cli.completion import candidates; candidates.ANSWER_S = 20.0; "
        "candidates.main(['zsh', 'set', '']); "
        "print({'cyclopts', 'textual', 'numpy', 'torch', 'sqlite3'} & set(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["ppo", "set()"]
