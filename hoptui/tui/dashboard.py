"""The dashboard on this terminal, from when it is opened until the person leaves: what the command line calls."""

from __future__ import annotations

from collections.abc import Callable

from hoptui.client.client import Change, Client
from hoptui.settings.config import Config
from hoptui.tui.app import HoptuiApp
from hoptui.tui.run_control import left_paused


def run(run: str | None, *, config: Config | None = None, client: Client | None = None) -> int:
    """Open the dashboard on a run (its name or the beginning of its id), or on the overview; blocks until the person leaves.

    `client` is one that may have set out already; it is closed when the person leaves. Returns the exit code: 0, or 128 + the
    signal that ended it. No run is touched by leaving.
    """
    config = config or Config()
    ours = client or Client(read_only=config.read_only)

    def connect(on_change: Callable[[Change], None]) -> Client:
        ours.on_change = on_change
        return ours

    app = HoptuiApp(connect, run, config=config)
    app.alone = True
    app.run(mouse=config.mouse)
    for held in app.steering.held:
        print(left_paused(app.client.store, held))
    return app.return_code or 0


def replay(path: str, *, config: Config | None = None) -> int:
    """Open a recording in the dashboard; blocks until the person leaves it. No daemon, GPU or run is needed.

    Returns the exit code: 0, or 128 + the signal that ended it.

    Raises:
        RecordingError: the file is no recording, cannot be read, or has nothing in it.
    """
    from hoptui.client.replay import Replay
    from hoptui.tui.replay_app import (
        ReplayApp,  # here, because it needs SQLite, which a live dashboard does not
    )

    config = config or Config()
    app = ReplayApp(Replay(path), config=config)
    app.alone = True
    app.run(mouse=config.mouse)
    return app.return_code or 0
