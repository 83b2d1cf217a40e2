"""The table of `nvidia-smi dmon`, and what counts as equal."""

from __future__ import annotations

import pytest

from benchmarks.against_dmon import COLUMNS, SHARES, judged, share, table
from hoptui.domain.columns import pack
from hoptui.presentation.gpu_readings import GPU

PRINTED = """\
# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk  pviol  tviol     fb   bar1
# Idx      W      C      C      %      %      %      %      %      %    MHz    MHz      %   bool     MB     MB
    0     71     33     44      0      0      0      0      0      0   2619    345      0      0    521      2
    0     72     33      -      0      0      0      0      0      0   2619    345      3      0    521      2
"""
SECOND = 1_000_000_000


def test_a_value_that_dmon_does_not_know_is_left_out() -> None:
    found = table(PRINTED)
    assert (found["pwr"], found["mtemp"], found["pviol"], found["bar1"]) == ([71, 72], [44], [0, 3], [2, 2])
    with pytest.raises(ValueError, match="no heading"):
        table("No devices were found")


def test_every_column_has_a_reading() -> None:
    assert {reading for reading, _ in COLUMNS.values()} | set(SHARES.values()) <= GPU.keys()


def test_a_time_that_rises_is_a_share() -> None:
    rows = [(i * SECOND, -1, {"power_violation_s": 7 + 0.25 * i}) for i in range(1, 9)]
    assert share(pack("gpu/a", rows), "power_violation_s") == 25.0
    assert share(pack("gpu/a", rows[:1]), "power_violation_s") is None
    assert share(pack("gpu/a", rows), "thermal_violation_s") is None


def test_what_dmon_knows_and_hoptui_does_not_is_a_miss() -> None:
    columns: dict[str, list[float | None]] = {column: [1.0, 1.0] for column in (*COLUMNS, *SHARES)}
    found = {"power_ratio_of_means": 1.0, "memory_mib": [520.6, 521], "columns": columns}
    assert all(judged(found).values())
    columns |= {"enc": [None, 0.0], "pviol": [1.0, 9.0], "pclk": [1980.0, 1755.0], "jpg": [None, None]}
    assert [what for what, fine in judged(found).items() if not fine] == [
        "nothing that dmon knows is missing",
        "pclk equal",
        "pviol within 5 points",
    ]
