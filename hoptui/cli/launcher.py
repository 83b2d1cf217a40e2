"""Open the dashboard. Only this module imports `hoptui.tui`. `main` avoids the command-line parser."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from hoptui import settings
from hoptui.cli.support.snapshot import look
from hoptui.cli.support.terminal import MISSING, REJECTED, Fail, interactive, usage
from hoptui.client.routes import Here, There, Way
from hoptui.client.target import BadPlace, Place, is_path, is_slurm, parse
from hoptui.model.runs import StartingRun
from hoptui.node.addresses import AddressError, addresses
from hoptui.settings import Config


def open_hosts(places: Sequence[Place], hoptui: str, config: Config) -> int:
    """Open the dashboard on these places until the user quits. `hoptui` is the command on remote hosts.

    Raises:
        Fail: a recording or two runs of one node are named (exit code 2), or no socket directory (3).
    """
    named: dict[Place, str] = {}
    for place in places:
        if not place.remote and is_path(place.run):
            raise usage(f"a recording cannot be combined with hosts: hoptui replay {place.run}")
        before = named.setdefault(place.node, place.run)
        if before and place.run and before != place.run:
            there = place.name if place.remote else "this node"
            raise usage(
                f"two runs of {there} are named, {before} and {place.run}: open one, n goes to the next"
            )
        named[place.node] = before or place.run
    ways: dict[str, Way] = {}
    try:
        for node in named:
            ways[node.name] = way = There(node, hoptui=hoptui) if node.remote else Here(addresses())
            if node.remote:
                way.begin(time.monotonic())
    except AddressError as error:
        raise Fail(str(error), MISSING) from None
    here, run = next(((node.name, run) for node, run in named.items() if run), (None, None))
    from hoptui.tui import hosts_app

    return hosts_app.run(ways, here, run, config=config)


Options = Mapping[str, str | bool | None]
"""Command-line options by their names in `settings.SETTINGS`.

None or absent means: use the environment or `config.toml`."""


def is_plain(words: Sequence[str]) -> bool:
    """Whether a command line is `hoptui` or `hoptui attach PLACE …`, without an option.

    Most command lines are plain. Skipping the import of the parser saves a sixth of the time to the first
    frame.
    """
    return not words or (words[0] == "attach" and not any(word.startswith("-") for word in words))


def main(words: Sequence[str]) -> int:
    """Run a plain command line."""
    from hoptui.cli.support.terminal import carried_out

    return carried_out(lambda: attach(words[1:]), words)


def attach(
    typed: Sequence[str], hoptui: str = "hoptui", options: Options | None = None, *, srun: bool = False
) -> int:
    """Open the dashboard of a run, a recording or remote hosts; without a place, the overview of this node.

    Args:
        typed: a run's name or id, a recording's path, hosts, or Slurm jobs; see `hoptui.client.target` and
            `hoptui.client.slurm_jobs`.
        hoptui: the command on the remote hosts.
        srun: run the dashboard in a Slurm job, on its node, instead of a connection by ssh.
    """
    if srun:
        return _attach_in_job(typed, hoptui, options)
    places = [_place(one) for one in typed]
    remote = len(places) > 1 or any(place.remote for place in places)
    if not remote and places and is_path(places[0].run):
        return replay(places[0].run, options)
    if not _drawable():
        raise usage(
            "the dashboard needs a terminal; "
            "hoptui ls, hoptui status RUN and hoptui watch RUN print plain text"
        )
    refuse_dumb()
    if remote:
        with _uncollected():
            return open_hosts(places, hoptui, configured(options))
    found = None
    if places and places[0].run:
        with look(readings=False) as seen:
            found = seen.find(places[0].run).run
    return open_dashboard(found, options)


def _place(typed: str) -> Place:
    if is_slurm(typed):
        return _place_of_job(typed)
    try:
        return parse(typed)
    except BadPlace as error:
        raise usage(str(error)) from None


def _place_of_job(typed: str) -> Place:
    from hoptui.client import slurm_jobs

    try:
        return slurm_jobs.place(slurm_jobs.parse(typed))
    except BadPlace as error:
        raise usage(str(error)) from None
    except slurm_jobs.SlurmError as error:
        raise Fail(str(error), MISSING) from None


def _attach_in_job(typed: Sequence[str], hoptui: str, options: Options | None) -> int:
    """Replace this process by a dashboard inside a Slurm job, on its node."""
    from hoptui.client import slurm_jobs

    if len(typed) != 1 or not is_slurm(typed[0]):
        raise usage(f"--srun takes one Slurm job: hoptui attach --srun {slurm_jobs.FORM}")
    if not interactive():
        raise usage("--srun needs a terminal for the dashboard")
    try:
        target = slurm_jobs.parse(typed[0])
        found = slurm_jobs.allocation(target)
        words = slurm_jobs.srun(found, [hoptui, "attach", *_given(options), *filter(None, [target.run])])
        os.execvp(words[0], words)
    except BadPlace as error:
        raise usage(str(error)) from None
    except slurm_jobs.SlurmError as error:
        raise Fail(str(error), MISSING) from None
    except OSError as error:
        raise Fail(f"srun cannot be started: {error.strerror}", MISSING) from None


def _given(options: Options | None) -> Iterator[str]:
    """Yield options as they are typed on a command line."""
    for name, value in (options or {}).items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{option}" if value else f"--no-{option}"
        elif value is not None:
            yield f"--{option}={value}"


def open_dashboard(
    run: str | None, options: Options | None = None, *, starting: StartingRun | None = None
) -> int:
    """Open the dashboard on this terminal until the user quits. `run` is a run's id.

    The client connects while the dashboard is imported, so that data is ready for the first frame. With
    `starting`, it opens before that run has connected, and shows the hints of the demo. `run` is then its
    name.
    """
    from hoptui.client.client import Client

    found = configured(options)
    with _uncollected(), contextlib.closing(Client(read_only=found.read_only)) as client:
        client.watch(None if starting else run)
        client.start()
        from hoptui.tui import app

        if starting is not None:
            from hoptui.tui.guided_app import GuidedApp

            return app.run(run, config=found, client=client, kind=partial(GuidedApp, starting=starting))
        return app.run(run, config=found, client=client)


def configured(options: Options | None = None) -> Config:
    """The settings from these options, the environment, `config.toml` and the encoding of stdout."""
    return settings.read(options, encoding=sys.stdout.encoding or "")


def replay(
    recording: str, options: Options | None = None, *, more: Sequence[str] = (), guided: str = ""
) -> int:
    """Open the dashboard on a recording: its file, or the name or id of the recorded run.

    `more` are the recordings of other nodes of the same run. `guided` shows the hints of the demo. It names
    what the recording is of.
    """
    from hoptui.cli.support import recordings
    from hoptui.recording import RecordingError

    if not _drawable():
        raise usage(
            "a replay needs a terminal; hoptui export writes the same rows as CSV, JSON lines or Parquet"
        )
    refuse_dumb()
    path = recordings.find(recording)
    others = [str(recordings.find(one)) for one in more]
    with _uncollected():
        from hoptui.model.recorded.joined import JoinError
        from hoptui.tui import replay_app

        try:
            if guided:
                from hoptui.tui.components.hints import Hints
                from hoptui.tui.guided_app import GuidedReplay

                app = partial(GuidedReplay, hints=Hints(guided))
                return replay_app.replay(str(path), config=configured(options), app=app)
            return replay_app.replay(str(path), *others, config=configured(options))
        except JoinError as error:
            raise usage(str(error)) from None
        except RecordingError as error:
            raise Fail(str(error), REJECTED) from None


def _drawable() -> bool:
    """Whether there is a terminal to draw on, or a web server instead."""
    return interactive() or "TEXTUAL_DRIVER" in os.environ


def refuse_dumb() -> None:
    """Refuse to draw on a terminal that cannot move its cursor. Raises Fail."""
    if os.environ.get("TERM") == "dumb" and "TEXTUAL_DRIVER" not in os.environ:
        raise usage(
            "TERM=dumb cannot draw the dashboard; "
            "hoptui ls, hoptui status RUN and hoptui watch RUN print plain text"
        )


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Disable garbage collection during imports. The app enables it again with its first frame."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
