"""The command line of `hoptui run`, and the process that it becomes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hoptui.injection import launch
from tests.conftest import TestNode
from tests.golden import Golden, sheet
from tests.injection.scripts import run_command


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("-- python train.py --name x", (None, [], "python train.py --name x")),
        ("python train.py --name x", (None, [], "python train.py --name x")),
        ("--name a --tag b --tag=c -- python", ("a", ["b", "c"], "python")),
        ("--name=a=b torchrun --nproc 2 t.py", ("a=b", [], "torchrun --nproc 2 t.py")),
        ("-- -odd", (None, [], "-odd")),
        ("-- -- x", (None, [], "-- x")),
    ],
)
def test_the_first_word_that_is_no_option_begins_the_command(
    words: str, found: tuple[str | None, list[str], str]
) -> None:
    made = launch.parse(words.split())
    assert (made.name, made.tags, " ".join(made.command)) == found


def test_what_cannot_be_started_is_one_sentence_and_the_code_of_a_shell(
    golden: Golden, tmp_path: Path
) -> None:
    script, shell = tmp_path / "train.py", tmp_path / "train.sh"
    script.write_text("")
    shell.write_text("true")
    shell.chmod(0o755)
    cases = [
        [], ["--"], ["--name"], ["--name", "--", "x"], ["--nmae", "x", "y"], ["no-such-program"],
        [str(tmp_path)], [str(script)], [str(tmp_path / "train.py/x")], [""], [str(shell)],
        ["python train.py"], ["LR=1", "python"],
    ]  # fmt: skip
    texts = {}
    for words in cases:
        done = subprocess.run(run_command(*words), capture_output=True, text=True, timeout=30, check=False)
        assert done.stdout == ""
        texts[shlex.join(words)] = f"{done.returncode}: {done.stderr.strip()}"
    golden(sheet(texts), normalize={str(tmp_path): "FOLDER"})


def test_a_command_that_keeps_hoptui_out_is_named(golden: Golden) -> None:
    cases = (
        "docker run image python train.py", "/usr/bin/podman run image", "sudo python train.py",
        "ssh host python train.py", "python -I train.py", "python3.12 -uE -m train",
        "python -X dev -S train.py", "python -m train -I", "python -c pass -E", "python train.py -I",
        "python -W ignore train.py -S", "python -Xdev train.py", "python -", "torchrun train.py -I",
        "apptainer exec image.sif python train.py",
    )  # fmt: skip
    golden(sheet({case: launch.doubt(case.split()) for case in cases}))


def test_the_environment_has_the_injection_first_and_once() -> None:
    made = launch.Launch(["x"], "n", ["t"])
    found = launch.environment(made, {"PYTHONPATH": "a::b"})
    assert found["PYTHONPATH"] == f"{launch.SITE}:a::b"
    assert launch.environment(made, found)["PYTHONPATH"] == found["PYTHONPATH"]
    assert launch.environment(made, {})["PYTHONPATH"] == launch.SITE
    settings = json.loads(found[launch.VARIABLE])
    assert (settings["name"], settings["tags"]) == ("n", ["t"])
    assert all((Path(place) / name).is_dir() for name, place in settings["places"].items())


def test_unusual_texts_arrive_as_they_are() -> None:
    texts = ['a "b"', "back\\slash", "épée", "line\nend", "\udcff", "😀"]
    found = launch.environment(launch.Launch(["x"], texts[0], texts[1:]), {})
    settings = json.loads(found[launch.VARIABLE])
    assert [settings["name"], *settings["tags"]] == texts


def test_a_program_is_looked_for_as_in_a_shell(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "train").write_text("")  # not executable
    path = f"{tmp_path}/none:{tmp_path}/a:{tmp_path}/b"
    with pytest.raises(PermissionError):
        launch._replace("train", ["train"], {"PATH": path})
    with pytest.raises(FileNotFoundError):
        launch._replace("no-such-program", ["no-such-program"], {"PATH": path})
    with pytest.raises(FileNotFoundError):
        launch._replace("no-such-program", ["no-such-program"], {})


def test_nothing_is_imported_that_delays_the_command() -> None:
    def imported(*words: str) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-S", "-X", "importtime", *words],
            env=os.environ | {"PYTHONPATH": root}, capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
        lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
        return {line.rpartition("|")[2].strip() for line in lines}

    root = str(Path(__file__).parents[2])
    script = "import sys; from hoptui.__main__ import main; sys.exit(main())"
    own = {"hoptui", "hoptui.__main__", "hoptui.injection", "hoptui.injection.launch", "hoptui.protocol"}
    more = imported("-c", script, "run", "--name=n", "--tag=t", "--", "true") - imported("-c", "import os")
    assert more == own | {"__future__"}


@pytest.mark.parametrize(
    ("command", "code"), [("exit 7", 7), ("kill -TERM $$", -signal.SIGTERM), ("kill -9 $$", -signal.SIGKILL)]
)
def test_exit_codes_and_signals_are_those_of_the_command(command: str, code: int) -> None:
    done = subprocess.run(run_command("--", "bash", "-c", command), timeout=30, check=False)
    assert done.returncode == code


def test_the_command_takes_the_place_of_hoptui() -> None:
    script = "import os, signal; print(os.getpid(), signal.getsignal(signal.SIGINT).__name__)"
    with subprocess.Popen(
        run_command("--", sys.executable, "-c", script), stdout=subprocess.PIPE, text=True
    ) as child:
        out, _ = child.communicate(timeout=30)
    assert out == f"{child.pid} default_int_handler\n"


def test_a_pipe_that_is_closed_ends_the_command_as_in_a_shell() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{' '.join(run_command('--', 'yes'))} | head -1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (f"y\n{128 + signal.SIGPIPE}\n", "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_runs_where_a_stream_is_closed(tmp_path: Path, closed: str) -> None:
    words = shlex.join(run_command("--", "touch", str(tmp_path / "ran")))
    done = subprocess.run(["bash", "-c", f"{words} {closed}"], capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (tmp_path / "ran").exists()


def test_off_changes_nothing(node: TestNode) -> None:
    script = "import os; print(os.environ.get('PYTHONPATH'), '_HOPTUI_RUN' in os.environ)"
    done = subprocess.run(
        run_command("--", sys.executable, "-c", script),
        env=node.environment | {"HOPTUI": "off"}, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.stdout == f"{os.environ.get('PYTHONPATH')} False\n"
