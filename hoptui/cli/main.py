"""The console script: which commands there are."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from hoptui import __version__
from hoptui.cli.support.errors import carried_out
from hoptui.cli.support.options import AS_SET, Dashboard
from hoptui.cli.support.terminal import OK, usage

SEE = "Look"
STEER = "Steer"
KEPT = "Recordings"
NODE = "This node"

COMMANDS = (  # the module in `hoptui.cli.commands` and its function have the command's name
    (
        "attach",
        SEE,
        "The dashboard of a run, here or on ssh://HOST; without RUN the overview of this node.",
    ),
    ("ls", SEE, "One line per run on this node; --all also lists recordings."),
    ("serve", SEE, "The dashboard in a browser on this machine, read-only unless told otherwise."),
    ("status", SEE, "One run as plain text: state, throughput, phases, knobs, last events."),
    ("watch", SEE, "A stream of a run's rows, one line each."),
    ("gpus", SEE, "One line per GPU: readings, and the processes on it with their runs."),
    ("history", SEE, "Every command ever given to a run: who, when, from, to, effect."),
    ("get", STEER, "The knobs of a run and the values in effect."),
    ("set", STEER, "Change knobs of a run: k=v ...; waits until they took effect."),
    ("tune", STEER, "Have the daemon turn a run's speed knobs, keep what helps, take back the rest."),
    ("pause", STEER, "Pause a run; it goes on by itself after a while."),
    ("resume", STEER, "Let a paused run go on."),
    ("checkpoint", STEER, "Have a run write a checkpoint."),
    ("profile", STEER, "Have a run trace its next iterations with its profiler."),
    ("stop", STEER, "Have a run end after its present iteration."),
    ("replay", KEPT, "The dashboard on a recording, as it was."),
    ("report", KEPT, "One page on a recorded run, as Markdown or HTML, to send to others."),
    ("export", KEPT, "A recording as CSV, JSON lines or Parquet."),
    ("rm", KEPT, "Delete recordings of runs that have exited."),
    ("demo", NODE, "A real PPO run on this machine, and the dashboard on it."),
    ("train", NODE, "Train a model: ppo, lm or vision; slurm prints a batch file."),
    ("daemon", NODE, "The background process that connects runs and viewers."),
    ("doctor", NODE, "What works on this node and what does not, and why."),
)

HELP = """The cockpit of GPU training runs: watch them, turn their knobs while they run.

Without a command: the dashboard of this node. Exit codes: 0 done, 1 refused, 2 bad usage, 3 no such run or no answer."""


def build() -> App:
    """The command line; the modules behind it are imported only when their command runs."""
    app = App(
        name="hoptui",
        help=HELP,
        version=f"hoptui {__version__}",
        help_format="plaintext",
        suppress_keyboard_interrupt=False,
    )
    for name, group, text in COMMANDS:
        app.command(f"hoptui.cli.commands.{name}:{name}", name=name, group=group, help=text)

    @app.default
    def overview(*, options: Dashboard = AS_SET) -> int:
        """Open the dashboard on the overview of this node."""
        from hoptui.cli.commands.attach import attach

        return attach(options=options)

    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 refused, 2 bad usage, 3 no such run or no answer."""
    words = list(sys.argv[1:] if argv is None else argv)
    return carried_out(lambda: _run(words), words)


def _run(words: list[str]) -> int:
    if words[:1] == ["train"]:  # its arguments, --help too, are the trainer's
        from hoptui.cli.commands.train import train

        train(*words[1:])
    try:
        code = build()(words, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        from hoptui.cli.support.usage_errors import usage_sentence

        names = [name for name, _, _ in COMMANDS]
        raise usage(usage_sentence(error, words, names)) from None
    return code if isinstance(code, int) else OK
