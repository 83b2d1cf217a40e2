"""How long the daemon waits before it does something. Tests pass shorter times."""

from __future__ import annotations

from dataclasses import dataclass

from hoptui.domain import pacing


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
        close_s: the longest wait for the disk at the end.
        flush_s: between two writes to the disk.
        first_tidy_s: from the start to the first removal of old recordings. A live run whose daemon was
            killed is back in a few seconds; until then its recording is open nowhere and looks as if it may
            go.
        last_words_s: after the end of a run's process, for the message that explains it. The kernel reports
            the end before ZeroMQ's thread has read what the run sent last.
        gone_s: a viewer that is silent for so long has left.
        no_pulse_s: a run without a pulse for so long, whose process exists, is `unresponsive`.
        diagnose_s: between two diagnoses of a run.
        sampler_silence_s: a sampler that has sent readings and is silent for so long hangs; longer at less
            than 2 Hz.
    """

    tick_s: float = 0.4
    still_tick_s: float = 0.9
    latest_tick_s: float = 1.1
    heard_s: float = pacing.HEARD_S
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
    diagnose_s: float = 2.0
    sampler_silence_s: float = 2.0


DEFAULT = Timings()
