"""How often each part between a run and the screen acts, how old a number on screen can be, and how long the
daemon waits. In seconds.

A row of a run passes these parts in order:

| part | where | waits at most |
|---|---|---|
| send | the run's link thread | `ROWS_EVERY_S` |
| receive | the daemon's loop, while a viewer is connected | `HEARD_S` |
| gather | the daemon, for rows of other sources | `GATHER_S["run"]` |
| fetch | the viewer, between two requests | `FETCH_S` |
| draw | the dashboard | `NUMBERS_S`, `CHARTS_S` or `LISTS_S` |

The greatest age of a run's number is their sum: 0.2 + 0.6 + 0.1 + 0.1 + 0.25 = 1.25 s. GPU readings wake the
daemon and are not gathered. They wait at most `FETCH_S + NUMBERS_S` = 0.35 s after sampling. Host readings
wake it too, and are gathered for up to `LONGEST_GATHER_S`. A command and its outcome skip `receive`, `gather`
and `fetch`: the daemon forwards them at once.

On a slow line `FETCH_MODEST_S` or `FETCH_THRIFTY_S` replaces `FETCH_S`, and the transfer time is added. On a
slow terminal the dashboard draws up to eight times less often.
"""

from __future__ import annotations

from dataclasses import dataclass

ROWS_EVERY_S = 0.2
"""A run sends at most five messages of rows per second, however fast its loop is."""

HEARD_S = 0.6
"""While a viewer is connected, the daemon reads runs at least this often: twice per second, with the GPUs."""

GATHER_S = {"gpu": 0.0, "run": 0.1}
LONGEST_GATHER_S = 0.6
"""How long rows of a kind wait for others, so that a viewer gets one answer. Other kinds wait the longest."""

MOST_HZ = 10.0
"""GPUs are sampled at most so often, whatever a viewer requests."""

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


@dataclass(frozen=True)
class Timings:
    """Every field is in seconds.

    Attributes:
        tick_s: between two rounds of periodic work, when the loop is awake anyway and something has changed.
        still_tick_s: the same, when nothing has changed.
        latest_tick_s: the loop wakes for a round after so long.
        heard_s: between two readings of what runs sent, while a viewer is connected.
        welcome_s: after a connection, what runs send wakes the loop for so long. A run that lives for a
            second is heard whole.
        heal_s: between two checks that the sockets are still in their directory.
        publish_s: between two updates of the metrics for Prometheus.
        restore_s: the longest wait for recordings at the start.
        close_s: the longest wait at the end for the disk to finish one thing.
        flush_s: between two writes to the disk.
        first_tidy_s: from the start to the first removal of old recordings. A live run whose daemon was
            killed is back in a few seconds; until then its recording is open nowhere and looks as if it may
            go.
        last_words_s: after the end of a run's process, for the message that explains it. The kernel reports
            the end before ZeroMQ's thread has read what the run sent last.
        gone_s: a viewer that is silent for so long has left.
        no_pulse_s: a run without a pulse for so long, whose process exists, is `unresponsive`.
        hung_s: a run is hung after so long without progress at least.
        diagnose_s: between two diagnoses of a run.
        alerts_s: between two looks at whether `config.toml` has changed.
        alert_pause_s: before the second try to deliver an alert; five times as long before the third.
        sampler_silence_s: a sampler that has sent readings and is silent for so long hangs; longer at less
            than 2 Hz.
    """

    tick_s: float = 0.4
    still_tick_s: float = 0.9
    latest_tick_s: float = 1.1
    heard_s: float = HEARD_S
    welcome_s: float = 2.0
    heal_s: float = 5.0
    publish_s: float = 1.0
    restore_s: float = 2.0
    close_s: float = 3.0
    flush_s: float = 2.0
    first_tidy_s: float = 30.0
    last_words_s: float = 1.5
    gone_s: float = 15.0
    no_pulse_s: float = 5.0
    hung_s: float = 10.0
    diagnose_s: float = 2.0
    sampler_silence_s: float = 2.0
    alerts_s: float = 10.0
    alert_pause_s: float = 2.0


DEFAULT = Timings()


def sampling_hz(interval_s: float) -> float:
    """Return how often a viewer requests samples for rows at this interval; 0 leaves it to the daemon."""
    return min(1 / interval_s, MOST_HZ) if 0 < interval_s < 1 else 0.0
