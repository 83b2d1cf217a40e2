from __future__ import annotations

import signal

import pytest

import hoptui
from hoptui_trainer.common.signals import StopOnSignal


def test_a_signal_stops_the_run_also_when_nobody_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> int:
        raise BrokenPipeError  # Ctrl-C has ended `tee` too

    run = hoptui.connect("unit")
    before = signal.getsignal(signal.SIGTERM)
    assert run.boundary()
    with monkeypatch.context() as patched, StopOnSignal(run) as signals:
        patched.setattr("hoptui_trainer.common.signals.os.write", gone)
        signal.raise_signal(signal.SIGTERM)
        assert run.stop_asked
        assert signals.received
        assert signal.getsignal(signal.SIGTERM) == before  # the next one ends at once
    assert not run.boundary()


def test_a_signal_acts_as_ever_while_the_run_is_prepared() -> None:
    run = hoptui.connect("unit")
    with StopOnSignal(run) as signals:
        with pytest.raises(KeyboardInterrupt), signals.aside():
            signal.raise_signal(signal.SIGINT)
        assert not run.stop_asked
        with signals.aside():
            pass
        assert not signals.received
        signal.raise_signal(signal.SIGINT)
        assert run.stop_asked


def test_a_signal_that_the_launcher_has_set_aside_counts_while_the_run_trains_and_only_then() -> None:
    """As the batch file for Slurm does it with SIGTERM: one in the start, or a second one, ends nothing."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        run = hoptui.connect("unit")
        with StopOnSignal(run) as signals:
            with signals.aside():
                signal.raise_signal(signal.SIGTERM)
            assert not run.stop_asked
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            assert run.stop_asked
    finally:
        signal.signal(signal.SIGTERM, before)
