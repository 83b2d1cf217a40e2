"""`hoptui run`: its command line, the environment of the command, and the command in place of this process.

Only modules that Python has imported at its start are imported here: the command starts without a delay.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VARIABLE = "_HOPTUI_RUN"
SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
USAGE = 2
NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""The exit codes of a shell for a command that cannot be started."""
CONTAINERS = ("docker", "podman", "nerdctl")
OTHER_ENVIRONMENT = ("ssh", "sudo", "su", "doas")
WITHOUT_PATH = {"I": "ignores PYTHONPATH", "E": "ignores PYTHONPATH", "S": "imports no sitecustomize"}
"""Options of Python with which it does not import `site/sitecustomize.py`."""


class LaunchError(Exception):
    """The command cannot be started: one sentence, and the exit code."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


class Launch:
    """A command and how it is shown. `name` is None without `--name`. `output`: it is copied."""

    def __init__(self, command: list[str], name: str | None, tags: list[str], output: bool = False) -> None:
        self.command, self.name, self.tags, self.output = command, name, tags, output


def parse(words: Sequence[str]) -> Launch:
    """Read the words after `hoptui run`. The first one that is no option of hoptui begins the command.

    Raises:
        LaunchError: an option is unknown or lacks its value, or there is no command.
    """
    name: str | None = None
    tags: list[str] = []
    output = False
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        if word == "--output":
            output = True
            continue
        option, equals, value = word.partition("=")
        if option not in ("--name", "--tag"):
            raise LaunchError(
                f"hoptui run has no option {option}; options of the command come after it: "
                "hoptui run -- COMMAND; try hoptui run --help",
                USAGE,
            )
        if not equals:
            if not rest or rest[0] == "--":
                raise LaunchError(f"hoptui run needs a value for {option}; try hoptui run --help", USAGE)
            value = rest.pop(0)
        if option == "--name":
            name = value
        else:
            tags.append(value)
    if not rest:
        raise LaunchError("hoptui run needs a COMMAND, such as: hoptui run -- python train.py", USAGE)
    return Launch(rest, name, tags, output)


def environment(launch: Launch, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the command."""
    found = dict(environ)
    places = {name: place for name in ("msgspec", "zmq") if (place := _directory(name))}
    found[VARIABLE] = _object(
        name="null" if launch.name is None else _quoted(launch.name),
        tags=f"[{', '.join(map(_quoted, launch.tags))}]",
        places=_object(**{name: _quoted(place) for name, place in places.items()}),
        python=_quoted(sys.executable),
    )
    if launch.output:
        found["HOPTUI_OUTPUT"] = "copy"
    path = found.get("PYTHONPATH", "")
    if path.split(os.pathsep)[0] != SITE:
        found["PYTHONPATH"] = f"{SITE}{os.pathsep}{path}" if path else SITE
    return found


def doubt(command: Sequence[str]) -> str:
    """Return one sentence if the command seems to keep hoptui out of its processes, else ""."""
    program = command[0].rpartition("/")[2]
    if program in CONTAINERS:
        return (
            f"{program} gives its processes another environment, so hoptui will not see them: "
            "use hoptui run inside the container"
        )
    if program in OTHER_ENVIRONMENT:
        return (
            f"{program} gives its command another environment, so hoptui will not see it: "
            f"use hoptui run after {program}"
        )
    if program.startswith(("python", "pypy")) and (letter := _without_path(command[1:])):
        why = WITHOUT_PATH[letter]
        return f"{program} -{letter} {why}, so hoptui will not see this run: leave out -{letter}"
    return ""


def _without_path(words: Sequence[str]) -> str:
    """Return the option of Python among its words that keeps hoptui out, "" if none does."""
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        for place, letter in enumerate(word[1:], 2):
            if letter in WITHOUT_PATH:
                return letter
            if letter in "cm-":
                return ""
            if letter in "WX":  # the rest of the word, or the next one, is its value
                del rest[: place == len(word)]
                break
    return ""


def start(launch: Launch, environ: Mapping[str, str]) -> None:
    """Replace this process by the command. Its exit code, signals and terminal are then its own.

    Raises:
        LaunchError: there is no such program, or it cannot be started.
    """
    import _signal  # type: ignore[import-not-found]  # built in; `signal` takes milliseconds, for `enum`

    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # one that is closed
            stream.flush()
    for name in ("SIGPIPE", "SIGXFZ", "SIGXFSZ"):  # Python ignores them, and a new program would too
        if hasattr(_signal, name):
            _signal.signal(getattr(_signal, name), _signal.SIG_DFL)
    program = launch.command[0]
    try:
        _replace(program, launch.command, environ)
    except (FileNotFoundError, NotADirectoryError):
        raise LaunchError(f"there is no program {program!r}{_hint(program)}", NOT_FOUND) from None
    except OSError as error:
        why = "it is a directory" if os.path.isdir(program) else error.strerror
        raise LaunchError(f"{program} cannot be started: {why}{_hint(program)}", NOT_EXECUTABLE) from None
    except ValueError as error:  # an empty word, or one with a NUL
        raise LaunchError(f"the command cannot be started: {error}", NOT_FOUND) from None


def _replace(program: str, command: list[str], environ: Mapping[str, str]) -> None:
    """Do what `os.execvpe` does, without its import of `warnings`.

    Raises:
        OSError: of the first place that has the program, else of the last one.
        ValueError: see `os.execve`.
    """
    if "/" in program:
        os.execve(program, command, environ)
    found: OSError | None = None
    for place in environ.get("PATH", os.defpath).split(os.pathsep):
        try:
            os.execve(os.path.join(place, program), command, environ)
        except (FileNotFoundError, NotADirectoryError) as error:
            missing: OSError = error
        except OSError as error:
            found = found or error
    raise found or missing


def main(words: Sequence[str]) -> int:
    """Run `hoptui run` with these words. It only returns if the command could not be started."""
    try:
        launch = parse(words)
        environ = dict(os.environ)
        if environ.get("HOPTUI", "").lower() not in ("off", "0", "no", "false"):
            environ = environment(launch, environ)
            if sentence := doubt(launch.command):
                _say(sentence)
        start(launch, environ)
    except LaunchError as error:
        _say(str(error))
        return error.code
    raise AssertionError("exec returned")


def _say(sentence: str) -> None:
    if sys.stderr is not None:  # else print would take stdout
        print(f"hoptui: {sentence}", file=sys.stderr)


def _directory(package: str) -> str | None:
    """Return the directory on the path that holds a package. None if there is none. Imports nothing."""
    for place in sys.path:
        if os.path.isdir(os.path.join(place, package)):
            return os.path.abspath(place)
    return None


def _quoted(text: str) -> str:
    """Return a text in JSON. Only an unusual one needs the module."""
    if text.isascii() and text.isprintable() and not ('"' in text or "\\" in text):
        return f'"{text}"'
    import json

    return json.dumps(text)


def _object(**fields: str) -> str:
    """Return an object in JSON. Each value is JSON already."""
    return "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}"


def _hint(program: str) -> str:
    for end, interpreter in ((".py", "python"), (".sh", "bash")):
        if program.endswith(end) and os.path.isfile(program):
            return f"; try hoptui run -- {interpreter} {program}"
    if " " in program:
        return "; give the command as words, without quotes around it"
    name, equals, _ = program.partition("=")
    if equals and name.isidentifier():
        return "; set variables before hoptui run"
    return ""
