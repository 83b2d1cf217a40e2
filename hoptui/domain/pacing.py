"""How often each part between a run and the screen acts, and how old a number on screen can be. In seconds.

A row of a run passes these parts in order:

| part | where | waits at most |
|---|---|---|
| send | the run's link thread | `ROWS_EVERY_S` |
| receive | the daemon's loop, while a viewer is connected | `HEARD_S` |
| gather | the daemon, for rows of other sources | `GATHER_S["run"]` |
| fetch | the viewer, between two requests | `FETCH_S` |
| draw | the dashboard | `NUMBERS_S`, `CHARTS_S` or `LISTS_S` |

The greatest age of a run's number is their sum: 0.1 + 0.6 + 0.2 + 0.1 + 0.25 = 1.25 s. GPU readings wake the
daemon and are not gathered. They wait at most `FETCH_S + NUMBERS_S` = 0.35 s after sampling. Host readings
wake it too, and are gathered for up to `LONGEST_GATHER_S`. A command and its outcome skip `receive`, `gather`
and `fetch`: the daemon forwards them at once.

On a slow line `FETCH_MODEST_S` or `FETCH_THRIFTY_S` replaces `FETCH_S`, and the transfer time is added. On a
slow terminal the dashboard draws up to eight times less often.
"""

from __future__ import annotations

ROWS_EVERY_S = 0.1
"""A run sends at most ten messages of rows per second, however fast its loop is."""

HEARD_S = 0.6
"""While a viewer is connected, the daemon reads runs at least this often: twice per second, with the GPUs."""

GATHER_S = {"gpu": 0.0, "run": 0.2}
LONGEST_GATHER_S = 0.6
"""How long rows of a kind wait for others, so that a viewer gets one answer. Other kinds wait the longest."""

FETCH_S = 0.1
FETCH_MODEST_S = 0.25
FETCH_THRIFTY_S = 0.5
"""Time between two requests of a viewer for rows: on a fast, a slower and a very slow line."""

TICK_S = 0.125
"""How often the dashboard checks what is due."""
NUMBERS_S = 0.25
CHARTS_S = 0.25
LISTS_S = 1.0
"""Time between two drawings of a part. Users cannot read digits faster. One write has numbers and charts."""
REST_S = 1.0
"""Time between two checks if no run trains, or if the terminal accepts no output."""
