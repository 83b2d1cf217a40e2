"""The console script: its table of commands, and one sentence for a command line that the parser refuses."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Sequence

from cyclopts import App, CycloptsError
from cyclopts.exceptions import MissingArgumentError, UnknownOptionError, UnusedCliTokensError

from hoptui import __version__
from hoptui.cli.completion.scripts import register_install
from hoptui.cli.support.options import AS_SET, Dashboard
from hoptui.cli.support.terminal import OK, carried_out, one_line, usage

LISTED = {"RUN": "hoptui ls lists them", "RECORDING": "hoptui ls --all lists them"}
ELSEWHERE = {"top": "hoptui alone shows every GPU and run"}
"""Commands of other programs, and their equivalent here."""


def usage_sentence(error: CycloptsError, words: Sequence[str], commands: Sequence[str]) -> str:
    """Explain a parser error. `words` is the command line, `commands` are the valid first words."""
    first = words[0] if words else ""
    known = first in commands
    command = f"hoptui {first}" if known else "hoptui"
    unused = (error.unused_tokens or []) if isinstance(error, UnusedCliTokensError) else []
    typed = unused[0] if unused else first
    if not known and typed and not typed.startswith("-"):
        said = f"there is no command {typed!r}{_meant(typed, commands)}"
    elif isinstance(error, UnusedCliTokensError):
        said = f"{command} does not take {typed!r}"
    elif isinstance(error, UnknownOptionError):
        option = error.token.keyword or error.token.value
        options = [name for one in error.argument_collection for name in one.names if one.parse]
        said = f"{command} has no option {option}{_near(option, options)}"
    elif isinstance(error, MissingArgumentError):
        said = f"{command} needs {_missing(error)}"
    else:
        sentence = one_line(str(error)).rstrip(".")
        said = sentence[:1].lower() + sentence[1:]
    return f"{said}; try {command} --help"


def _missing(error: MissingArgumentError) -> str:
    name = error.keyword or (error.argument.name if error.argument else "")
    if name.startswith("-"):
        return f"a value for {name}"
    return f"{name} ({LISTED[name]})" if name in LISTED else name


def _meant(typed: str, commands: Iterable[str]) -> str:
    return f" ({ELSEWHERE[typed]})" if typed in ELSEWHERE else _near(typed, commands)


def _near(typed: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(typed, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


SEE = "Look"
STEER = "Steer"
KEPT = "Recordings"
NODE = "This node"

COMMANDS = (  # the module in `hoptui.cli.commands` and its function have the command's name
    (
        "attach",
        SEE,
        "Open the dashboard of a run, here, on ssh://HOST or in slurm:JOB; without one, this node.",
    ),
    ("ls", SEE, "List the runs on this node, one per line; --all adds recordings."),
    (
        "runs",
        SEE,
        "List recorded and live runs as a table: configuration, results, verdict; filter and sort.",
    ),
    ("serve", SEE, "Serve the dashboard to a browser on this machine, read-only by default."),
    ("status", SEE, "Show one run as plain text: state, throughput, phases, knobs, last events."),
    ("watch", SEE, "Print a run's rows as they arrive, one per line."),
    ("wait", SEE, "Wait until something happens to a run: an iteration, a measured effect, its end."),
    ("where", SEE, "Show the lines of the script that the time of a run goes to."),
    ("stack", SEE, "Show where the ranks of a run are now, the odd one first."),
    ("output", SEE, "Print what a run writes to stdout and stderr; --follow goes on."),
    ("gpus", SEE, "List the GPUs: readings, processes and their runs; --watch repeats."),
    ("history", SEE, "List every command sent to a run: who, when, from, to, effect."),
    ("note", SEE, "Add a dated note to a live or recorded run; without a text, list its notes."),
    ("get", STEER, "Show the knobs of a run and their current values."),
    ("set", STEER, "Change knobs of a run: k=v ...; wait until the changes take effect."),
    ("tune", STEER, "Let the daemon tune a run's speed knobs: keep what helps, revert the rest."),
    ("target", STEER, "Set targets for the GPUs of a run, such as busy=90; list them and how they stand."),
    ("pause", STEER, "Pause a run; it resumes automatically after a time."),
    ("resume", STEER, "Resume a paused run."),
    ("checkpoint", STEER, "Ask a run to write a checkpoint."),
    ("profile", STEER, "Ask a run to trace its next iterations with its profiler."),
    ("stop", STEER, "Ask a run to stop after its current iteration."),
    ("record", KEPT, "Record this node without a run, until Ctrl-C."),
    ("replay", KEPT, "Play a recording in the dashboard."),
    ("report", KEPT, "Write a one-page report of a recorded run, as Markdown or HTML."),
    ("export", KEPT, "Export a recording as CSV, JSON lines or Parquet."),
    ("import", KEPT, "Make recordings of runs that TensorBoard or wandb have logged."),
    ("rm", KEPT, "Delete recordings of runs that have exited."),
    ("run", NODE, "Run any training script unchanged, and show it: hoptui run -- python train.py."),
    ("demo", NODE, "Start a real PPO run on this machine and open its dashboard."),
    ("train", NODE, "Train a model: ppo, lm or vision. check tests the machine, slurm prints a batch file."),
    ("mcp", NODE, "Let an LLM agent observe runs, and with --control steer them, over MCP on stdio."),
    ("daemon", NODE, "Manage the background process that connects runs and viewers."),
    ("alerts", NODE, "Test where alerts go: alerts test sends one to each target."),
    ("completion", NODE, "Print the completion script for bash, zsh or fish."),
    ("doctor", NODE, "Check what works on this node, what does not, and why."),
)

FUNCTIONS = {"import": "import_runs"}
"""Modules and functions of commands whose name is a keyword of Python."""

HELP = """Watch GPU training runs and change their knobs while they run.

Without a command, hoptui opens the dashboard of this node.
Exit codes: 0 done, 1 refused, 2 bad usage, 3 no such run or no answer."""


def build() -> App:
    """Build the command line. The module of a command is imported only when that command runs."""
    app = App(
        name="hoptui",
        help=HELP,
        version=f"hoptui {__version__}",
        help_format="plaintext",
        suppress_keyboard_interrupt=False,
    )
    for name, group, text in COMMANDS:
        function = FUNCTIONS.get(name, name)
        app.command(f"hoptui.cli.commands.{function}:{function}", name=name, group=group, help=text)

    register_install(app)

    @app.default
    def overview(*, options: Dashboard = AS_SET) -> int:
        """Open the dashboard on the overview of this node."""
        from hoptui.cli.commands.attach import attach

        return attach(options=options)

    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. `HELP` lists the codes."""
    words = list(sys.argv[1:] if argv is None else argv)
    return carried_out(lambda: _run(words), words)


def _run(words: list[str]) -> int:
    if words[:1] == ["train"]:  # the trainer parses its own arguments, including --help
        from hoptui.cli.commands.train import train

        train(*words[1:])
    try:
        code = build()(words, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        names = [name for name, _, _ in COMMANDS]
        raise usage(usage_sentence(error, words, names)) from None
    return code if isinstance(code, int) else OK
