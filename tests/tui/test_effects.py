"""The effect of a change, in the ink that says what it is."""

from __future__ import annotations

from msgspec import structs

from hoptui.domain.facts import fact
from hoptui.domain.tuning import Measured
from hoptui.tui.components import events

LOSS = Measured(gain=-0.309, interval=0.246, detectable=True, iterations=45, settled=True)
LOAD = fact("effect.load_changed", before=0.12, after=0.81)


def test_an_effect_that_other_processes_may_have_caused_is_no_gain_or_loss() -> None:
    (own,) = events.measured_effect(LOSS)
    assert (own.text, own.ink) == ("▼ -30.9 % ± 24.6", "warn")
    (foreign,) = events.measured_effect(structs.replace(LOSS, remarks=(LOAD,)))
    assert foreign.ink == "dim"
    assert foreign.text.startswith("unclear: -30.9 % ± 24.6, but other processes used ")
