"""How often each part between a run and the screen moves, and how old a number on screen can be. Seconds.

A row of a run passes these parts, one after another:

| part | where | waits at most |
|---|---|---|
| send | the run's link thread | `ROWS_EVERY_S` |
| hear | the daemon's loop, while somebody looks | `HEARD_S` |
| gather | the daemon, for rows of other sources | `GATHER_S["run"]` |
| fetch | the viewer, between two questions | `FETCH_S` |
| draw | the dashboard | `NUMBERS_S`, `CHARTS_S` or `LISTS_S` |

In the worst case a number of a run is as old as their sum: 0.1 + 0.6 + 0.2 + 0.1 + 0.25 = 1.25 s. Readings of
GPUs wake the daemon and are not gathered: they wait at most `FETCH_S + NUMBERS_S` = 0.35 s after they were
sampled. Those of the host wake it too, and are gathered for up to `LONGEST_GATHER_S`. A command and its
outcome skip `hear`, `gather` and `fetch`: the daemon passes them on at once.

Over a slow line `FETCH_MODEST_S` or `FETCH_THRIFTY_S` stands for `FETCH_S`, and the time on the line is
added. On a slow terminal the dashboard draws up to eight times as rarely.
"""

from __future__ import annotations

ROWS_EVERY_S = 0.1
"""A run sends at most ten messages of rows a second, however fast its loop is."""

HEARD_S = 0.6
"""While somebody looks, the daemon hears runs at least this often: twice a second, with the GPUs."""

GATHER_S = {"gpu": 0.0, "run": 0.2}
LONGEST_GATHER_S = 0.6
"""How long rows of a kind wait for others: a viewer gets one answer for all. Other kinds wait the longest."""

FETCH_S = 0.1
FETCH_MODEST_S = 0.25
FETCH_THRIFTY_S = 0.5
"""Between two questions of a viewer for rows: on a fast line, a slower one, and one that carries little."""

TICK_S = 0.125
"""The dashboard looks this often at what is due."""
NUMBERS_S = 0.25
CHARTS_S = 0.25
LISTS_S = 1.0
"""Between two drawings of a part. Nobody reads digits faster; one write carries numbers and charts."""
REST_S = 1.0
"""Between two looks where nothing trains, or where the terminal takes nothing."""
