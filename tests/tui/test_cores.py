"""The strip of cores on the overview, from one core to 256, live, old and recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hoptui.domain.columns import pack
from hoptui.domain.devices import CORES
from hoptui.tui.components import host
from tests.golden import Golden
from tests.tui.conftest import Scene, read, rendered

MakeScene = Callable[..., Scene]
Play = Callable[..., None]
SECOND = 1_000_000_000


def loaded(scene: MakeScene, count: int) -> Scene:
    """A node of which the core 1, or the only one, is at 100 %, and every tenth from 5 on is half busy."""
    there = scene().live()
    loads = {str(i): 100.0 if i == min(1, count - 1) else 50.0 if i % 10 == 5 else 3.0 for i in range(count)}
    summary = {"cpu_busiest_core_percent": 100.0, "cpu_busy_cores": 1.0}
    t = there.client.ns
    there.tell(columns=(pack(CORES, [(t, -1, loads)]), pack("host", [(t, -1, summary)])))
    return there


@pytest.mark.parametrize("count", [1, 2, 16, 64, 128, 256])
def test_the_strip_fits_from_one_core_to_256(scene: MakeScene, golden: Golden, count: int) -> None:
    view = loaded(scene, count).app().view(None)
    for width in (36, 52, 76, 160):
        lines = rendered(host.core_lines(view, width), 500)
        assert len(lines) <= host.MOST_STRIPS + 1
        assert sum(line.count("█") for line in lines) in (0, 1)
        assert all(len(line) <= width for line in lines)
    golden("\n".join(rendered(host.core_lines(view, 80), 80)) + "\n")


@pytest.mark.parametrize("count", [1, 2, 16])
@pytest.mark.parametrize("width", [0, 1, host.CORE_LABEL, host.CORE_LABEL + 1])
def test_a_panel_without_width_has_cores_too(scene: MakeScene, count: int, width: int) -> None:
    view = loaded(scene, count).app().view(None)
    lines = rendered(host.core_lines(view, width), 500)
    assert 1 <= len(lines) <= host.MOST_STRIPS + 1


def test_a_panel_of_the_host_that_is_hidden_is_told_all_the_same(scene: MakeScene, play: Play) -> None:
    there = loaded(scene, 2)

    async def script(app: Any, pilot: Any) -> None:
        for key in ("1", "escape"):
            await pilot.press(key)
            there.client.ns += SECOND
            there.tell(columns=(pack(CORES, [(there.client.ns, -1, {"0": 100.0, "1": 100.0})]),))
            app.tick()
            await pilot.pause()
        assert read(app, "readings").count("cores") == 1

    play(there.app(), script)


def test_old_loads_are_not_shown(scene: MakeScene) -> None:
    there = loaded(scene, 16)
    there.client.ns += 60_000_000_000
    assert host.core_lines(there.app().view(None), 80) == []


def test_where_only_the_summary_is_known_it_is_shown(scene: MakeScene) -> None:
    there = scene().live()
    assert host.core_lines(there.app().view(None), 80) == []
    summary = {"cpu_busiest_core_percent": 100.0, "cpu_busy_cores": 1.0}
    there.tell(columns=(pack("host", [(there.client.ns, -1, summary)]),))
    assert rendered(host.core_lines(there.app().view(None), 80), 80) == ["cores  1 ≥ 90 %; most 100 %"]


def test_the_loads_of_cores_are_no_series(scene: MakeScene) -> None:
    store: Any = loaded(scene, 256).client.store
    assert store.names(CORES) == []
    assert len(store.cores.percent) == 256


def test_one_line_of_the_host_names_the_busiest_core(scene: MakeScene) -> None:
    view = loaded(scene, 4).app().view(None)
    assert "busiest core 100 %" in rendered([host.short(view, 76)], 76)[0]
