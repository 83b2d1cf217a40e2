"""How targets are written and read."""

from __future__ import annotations

import pytest

from hoptui.domain.enumerations import convert
from hoptui.domain.targets import Target, TargetState, valid
from hoptui.presentation import targets
from hoptui.presentation.targets import READINGS, Removal, goal, parse, standing


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("busy=90", Target(reading="busy", value=90.0)),
        ("busy>=90%", Target(reading="busy", value=90.0)),
        ("SM > 80 %", Target(reading="sm_active", value=80.0)),
        ("power=600", Target(reading="power_w", value=600.0)),
        ("power=0.6kW", Target(reading="power_w", value=600.0)),
        ("power=85%", Target(reading="power_w", value=0.85, share=True)),
        ("power<=650W", Target(reading="power_w", value=650.0, side="most")),
        ("memory=100GB", Target(reading="memory_used_bytes", value=100e9)),
        ("memory=72GiB", Target(reading="memory_used_bytes", value=72.0 * 2**30)),
        ("memory=90%", Target(reading="memory_used_bytes", value=0.9, share=True)),
        ("temp<80", Target(reading="temperature_c", value=80.0, side="most")),
        ("clock=1.5GHz", Target(reading="sm_clock_mhz", value=1500.0)),
        ("nvlink_rx_bytes_per_s=20GB/s", Target(reading="nvlink_rx_bytes_per_s", value=20e9)),
        ("busy=off", Removal("busy")),
        ("power=off", Removal("power_w")),
    ],
)
def test_a_target_as_it_is_written(written: str, meant: Target | Removal) -> None:
    assert parse(written) == meant


@pytest.mark.parametrize(
    "written",
    ["busy", "=90", "busy=", "busy=ninety", "busy=120", "busy=90W", "memory=5", "memory=0%", "temp=80",
     "energy_j=5", "throttle=4", "memory_headroom_bytes=1GB", "loss=1", "busy=-5", "busy=nan", "busy=inf"],
)  # fmt: skip
def test_what_is_no_target(written: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        parse(written)
    assert "\n" not in str(error.value)


def test_the_daemon_takes_every_reading() -> None:
    assert set(targets.ALIASES.values()) <= READINGS.keys()
    assert all(valid(Target(reading=reading, value=1.0)) for reading in READINGS)


def test_how_a_target_reads() -> None:
    power = Target(reading="power_w", value=0.85, share=True)
    assert goal(power) == "power ≥ 85 %"
    assert goal(Target(reading="temperature_c", value=80.0, side="most")) == "temp ≤ 80 °C"
    assert standing(TargetState(target=power)) == "power ≥ 85 %: unknown"
    missed = TargetState(target=Target(reading="busy", value=90.0), standing="missed", mean=71.2, gpu="b")
    assert standing(missed, targets.index_of(missed, [("a", 0), ("b", 1)])) == "busy ≥ 90 %: 71 % on GPU 1"
    assert standing(missed, targets.index_of(missed, [("b", 1)])) == "busy ≥ 90 %: 71 %"


def test_a_side_that_only_a_newer_hoptui_knows_is_unknown() -> None:
    newer = convert({"reading": "busy", "value": 90.0, "side": "exactly"}, Target)
    assert goal(newer) == "busy ? 90 %"
