"""Processes of `hoptui run` that do not train: what they import, and what they see of it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hoptui.injection import launch
from hoptui.injection.optimizers import STEPS

TORCH = 'import os, sys\nwith open(os.environ["SEEN"], "a") as f: f.write("torch\\n")\nvalue = 1\n'
"""A module that takes the place of torch."""
HOOKS = """
import hoptui.injection
def imported(module, adapter):
    import sys
    with open(__import__("os").environ["SEEN"], "a") as f:
        f.write(f"{module} {adapter} {getattr(sys.modules[module], 'value', None)}\\n")
hoptui.injection.imported = imported
"""
"""Takes note of what `hoptui.injection` would be called with."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "torch.py").write_text(TORCH)
    return tmp_path


def python(
    place: Path, script: str, *options: str, path: tuple[Path, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a script as `hoptui run` does. `place` and `path` come behind the injection."""
    inherited = os.environ.get("PYTHONPATH", "")
    own = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (*path, place, *filter(None, [inherited])))),
        "SEEN": str(place / "seen"),
    }
    found = launch.environment(launch.Launch(["python"], "toy", []), own)
    return subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(script)],
        env=found | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def seen(place: Path) -> list[str]:
    file = place / "seen"
    return file.read_text().splitlines() if file.exists() else []


def test_a_process_without_torch_imports_nothing_of_hoptui(place: Path) -> None:
    modules = "import sys; print(sorted(sys.modules), [p for p in sys.path if 'injection' in p])"
    plain = python(place, modules, PYTHONPATH=os.environ.get("PYTHONPATH", ""), _HOPTUI_RUN="")
    done = python(place, modules)
    assert done.stderr == plain.stderr == ""
    assert done.stdout.replace(" 'sitecustomize',", "") == plain.stdout.replace(" 'sitecustomize',", "")
    assert "hoptui" not in done.stdout.replace("__editable___hoptui", "")


def test_torch_is_followed_once_it_has_run(place: Path) -> None:
    done = python(place, HOOKS + "import importlib.util, torch\nassert torch.value == 1\nimport torch")
    assert (done.returncode, done.stderr) == (0, "")
    assert seen(place) == ["torch", "torch None 1"]


def test_looking_for_torch_does_not_import_it(place: Path) -> None:
    done = python(place, HOOKS + "import importlib.util\nassert importlib.util.find_spec('torch').origin")
    assert (done.returncode, done.stderr, seen(place)) == (0, "", [])


def test_the_module_has_the_loader_that_it_has_without_hoptui(place: Path) -> None:
    look = """
    import importlib, torch
    loader = torch.__spec__.loader
    print(type(loader), vars(loader), torch.__loader__ is loader, torch.__file__, torch.__cached__)
    importlib.reload(torch)
    print(type(torch.__spec__.loader), vars(torch.__spec__.loader))
    """
    plain = python(place, look, _HOPTUI_RUN="")
    done = python(place, HOOKS + textwrap.dedent(look))
    assert (done.stderr, done.stdout) == ("", plain.stdout)
    assert seen(place)[2:] == ["torch", "torch None 1", "torch"], "a reload is not another torch"


def test_an_import_that_fails_is_followed_when_it_succeeds(place: Path) -> None:
    (place / "torch.py").write_text(TORCH + 'if "broken" in os.environ: raise ValueError("broken")\n')
    done = python(
        place,
        HOOKS
        + textwrap.dedent("""
        try:
            import torch
        except ValueError as error:
            assert str(error) == "broken"
        assert "torch" not in sys.modules
        del os.environ["broken"]
        import torch
        """).replace("try:", "import os, sys\ntry:", 1),
        broken="yes",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert seen(place) == ["torch", "torch", "torch None 1"]


def test_threads_import_torch_once(place: Path) -> None:
    (place / "torch.py").write_text("import time\ntime.sleep(0.05)\n" + TORCH)
    done = python(
        place,
        HOOKS
        + textwrap.dedent("""
        import threading
        found = []
        def look():
            import torch
            found.append(torch.value)
        threads = [threading.Thread(target=look) for _ in range(8)]
        [t.start() for t in threads]; [t.join(20) for t in threads]
        assert found == [1] * 8
        """),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert seen(place) == ["torch", "torch None 1"]


def test_a_framework_is_named_with_its_adapter(place: Path) -> None:
    (place / "transformers").mkdir()
    (place / "transformers/__init__.py").write_text("")
    (place / "transformers/trainer.py").write_text("value = 2\n")
    done = python(place, HOOKS + "import transformers\nassert True\nimport transformers.trainer")
    assert (done.returncode, done.stderr) == (0, "")
    assert seen(place) == ["transformers.trainer transformers 2"]


def test_optimizers_that_are_not_of_torch_are_named_without_an_adapter(place: Path) -> None:
    script, expected = HOOKS, []
    for number, module in enumerate(STEPS):
        path = place.joinpath(*module.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True)
        path.write_text(f"value = {number}\n")
        for folder in path.relative_to(place).parents[:-1]:
            (place / folder / "__init__.py").touch()
        script += f"\nimport {module}"
        expected.append(f"{module} None {number}")
    done = python(place, script)
    assert (done.returncode, done.stderr) == (0, "")
    assert seen(place) == expected


def test_an_error_of_the_injection_is_one_line_on_the_first_rank(place: Path) -> None:
    broken = "import hoptui.injection\nhoptui.injection.imported = None\nimport torch\nprint(torch.value)"
    done = python(place, broken)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (0, "1\n", 1)
    done = python(place, broken, RANK="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_an_error_of_the_injection_is_silent_where_stderr_is_closed(place: Path) -> None:
    done = python(
        place,
        """
        import sys
        import hoptui.injection
        hoptui.injection.imported = None
        sys.stderr = None
        import torch
        print(torch.value)
        """,
    )
    assert (done.returncode, done.stdout) == (0, "1\n")


def test_the_sitecustomize_that_is_hidden_runs_too(place: Path) -> None:
    (place / "sitecustomize.py").write_text("import sys\nsys.theirs = __file__\n")
    (place / "usercustomize.py").write_text("import sys\nsys.users = True\n")
    look = "import sys, sitecustomize\nprint(sys.theirs == sitecustomize.__file__, sitecustomize.__file__)"
    done = python(place, look)
    assert (done.stderr, done.stdout) == ("", f"True {place / 'sitecustomize.py'}\n")
    done = python(place, HOOKS + "import torch")
    assert seen(place) == ["torch", "torch None 1"]


@pytest.mark.parametrize(
    "text", ["1 / 0", "import no_such_module", "raise ImportError('x')"], ids=["error", "module", "import"]
)
def test_a_hidden_sitecustomize_that_raises_is_shown_as_without_hoptui(place: Path, text: str) -> None:
    (place / "sitecustomize.py").write_text(text)
    plain = python(place, "print(1)", _HOPTUI_RUN="", PYTHONPATH=str(place))
    done = python(place, "print(1)")
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout) == (0, "1\n")
    assert done.stderr == plain.stderr != ""


def test_a_switched_off_process_is_not_followed(place: Path) -> None:
    done = python(place, HOOKS + "import torch", HOPTUI="off")
    assert (done.returncode, done.stderr, seen(place)) == (0, "", ["torch"])


def test_an_interpreter_without_hoptui_takes_that_of_the_command(place: Path) -> None:
    done = python(
        place,
        """
        import sys
        sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in getattr(f, "__name__", "").lower()]
        sys.path[:] = [p for p in sys.path if "site-packages" not in p and p != ROOT]
        import torch
        import hoptui.injection
        print(hoptui.__file__)
        try:
            import textual
        except ImportError:
            print("nothing else")
        """.replace("ROOT", repr(str(Path(launch.__file__).parents[2]))),
        "-B",
    )
    assert done.stdout.splitlines()[1:] == ["nothing else"], done.stderr
    assert Path(done.stdout.splitlines()[0]) == Path(launch.__file__).parents[1] / "__init__.py"


def test_an_interpreter_without_the_packages_of_hoptui_has_all_of_them_before_its_run_connects(
    place: Path,
) -> None:
    done = python(
        place,
        """
        import json, os, sys
        sys.path[:] = [p for p in sys.path if "site-packages" not in p]
        from hoptui.injection import injected_run
        injected_run.runs_made(json.loads(os.environ["_HOPTUI_RUN"])["places"])
        import zmq, msgspec
        print("all")
        """,
    )
    assert (done.stdout, done.stderr) == ("all\n", "")
