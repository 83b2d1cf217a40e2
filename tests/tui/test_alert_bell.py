"""An open dashboard rings for alerts that fire now, once, and writes nothing else to the terminal."""

from __future__ import annotations

import pytest

from hoptui.domain.alert_settings import AlertSettings
from hoptui.protocol.messages import Event
from hoptui.tui.alert_bell import AlertBell

NOW = 1000.0


def event(seq: int, alert: str = "nan", wall: float = NOW, text: str = "loss; \x1b]0;x\x07") -> Event:
    return Event(seq=seq, t=1, wall=wall, kind="note", text=text, alert=alert)


@pytest.mark.parametrize(
    ("settings", "environ", "written"),
    [
        (AlertSettings(bell=True), {}, "\a"),
        (AlertSettings(osc=9), {}, "\x1b]9;hoptui: loss, ]0,x\a"),
        (AlertSettings(osc=777), {}, "\x1b]777;notify;hoptui;loss, ]0,x\a"),
        (
            AlertSettings(bell=True, osc=9),
            {"TMUX": "/tmp/tmux"},
            "\a\x1bPtmux;\x1b\x1b]9;hoptui: loss, ]0,x\a\x1b\\",
        ),
    ],
)
def test_what_is_written(settings: AlertSettings, environ: dict[str, str], written: str) -> None:
    assert AlertBell(settings, environ).signal([event(1)], NOW) == written


def test_it_rings_once_for_alerts_and_only_for_new_ones() -> None:
    bell = AlertBell(AlertSettings(bell=True), {})
    old = event(1, wall=NOW - 3600)
    assert bell.signal([old, event(2, alert="")], NOW) == ""
    assert bell.signal([old, event(3), event(4)], NOW) == "\a"
    assert bell.signal([old, event(3), event(4)], NOW) == ""
    assert bell.signal([event(4), event(5)], NOW) == "\a"


def test_without_the_setting_it_is_silent() -> None:
    assert AlertBell(AlertSettings(), {}).silent
    assert not AlertBell(AlertSettings(osc=9), {}).silent
