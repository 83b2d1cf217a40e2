"""Several hosts in one dashboard: each with its own link, store and clock; what the keys do reaches the
chosen one alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from hoptui.client.client import Change, Link
from hoptui.domain.facts import fact
from hoptui.settings import Config
from hoptui.tui.components import header
from hoptui.tui.hosts_app import FleetApp
from hoptui.tui.screens.hosts import content
from hoptui.tui.screens.hosts.screen import HostsScreen
from hoptui.tui.screens.overview import OverviewScreen
from hoptui.tui.screens.run.screen import RunScreen
from tests.golden import Golden, sheet
from tests.tui.conftest import rendered

MakeScene = Callable[..., Any]
Play = Callable[..., None]
Read = Callable[[Any, str], str]
ReadAll = Callable[[Any], str]
SECOND = 1_000_000_000
RUN = "3f2a9c10"
DOWN = "gpu08: No route to host"


def fleet(run: str | None = None, *, here: str | None = None, **scenes: Any) -> FleetApp:
    """An app on these hosts; the clock of the first is the person's."""

    def connector(scene: Any, name: str) -> Callable[[Callable[[Change], None]], Any]:
        def connect(on_change: Callable[[Change], None]) -> Any:
            scene.client.on_change = on_change
            scene.client.again = lambda: tried.append(name)
            return scene.client

        return connect

    tried: list[str] = []
    first = next(iter(scenes.values())).client
    app = FleetApp(
        {name: connector(scene, name) for name, scene in scenes.items()},
        run,
        here=here,
        config=Config.of(theme="dark"),
        frames=False,
        clock=lambda: (first.ns - 1_000 * SECOND) / SECOND + 100.0,
    )
    app.tried = tried  # type: ignore[attr-defined]
    return app


def up(scene: Any, name: str, **link: Any) -> Any:
    """Connected through ssh."""
    scene.live()
    fields: dict[str, Any] = {"node": name, "round_trip_ms": 24.2, "answered": 100.0, **link}
    scene.client.link = Link("live", 0.0, **fields)
    return scene


def down(scene: Any, name: str) -> Any:
    scene.client.link = Link("lost", 88.0, DOWN, node=name)
    return scene


def test_every_host_has_its_own_link_and_one_that_is_down_hides_no_other(
    scene: MakeScene, play: Play, read: Read, golden: Golden
) -> None:
    shown: dict[str, str] = {}

    async def script(app: Any, pilot: Any) -> None:
        assert isinstance(app.screen, HostsScreen)
        listed = [line.split() for line in read(app, "host-list").splitlines()]
        assert [line[: 4 - (line[0] == "local")] for line in listed] == [
            ["›", "gpu07", "●", "connected"],
            ["gpu07/ppo-cartpole", "●", "live", "1"],
            ["gpu08", "◌", "link", "lost"],
            ["local", "●", "connected"],
            ["local/ppo-cartpole", "●", "live", "1"],
        ]
        shown["hosts"] = f"{read(app, 'identity')}\n{read(app, 'host-list')}"
        assert "try again" in read(app, "keys")
        await pilot.press("r")
        assert app.tried == ["gpu07", "gpu08", "local"]

    three = {"gpu07": up(scene(gpus=1), "gpu07"), "gpu08": down(scene(), "gpu08"), "local": scene().live()}
    play(fleet(**three), script)
    assert all(one.client.started and one.client.closed for one in three.values())
    golden(sheet(shown), normalize={r"\d\d:\d\d:\d\d": "HH:MM:SS"})


def test_the_hosts_too_say_that_nothing_can_be_sent(scene: MakeScene, play: Play, read: Read) -> None:
    two = {"gpu07": up(scene(), "gpu07"), "gpu08": up(scene(), "gpu08")}
    for there in two.values():
        there.client.read_only = True

    async def script(app: Any, pilot: Any) -> None:
        assert isinstance(app.screen, HostsScreen)
        assert "read-only" in read(app, "identity")

    play(fleet(**two), script, (80, 24))


def test_why_the_chosen_host_is_not_there_is_told_whole(scene: MakeScene, play: Play, read: Read) -> None:
    end = "no route to host"
    why = f"gpu08: {'a long way of saying that there is ' * 4}{end}"
    lost = scene()
    lost.client.link = Link("lost", 88.0, why, node="gpu08")

    async def script(app: Any, pilot: Any) -> None:
        app.tick()
        assert not app.screen.query_one("#host").display
        await pilot.press("j", "j")
        await pilot.pause()
        app.tick()
        await pilot.pause()
        assert end not in read(app, "host-list")
        assert " ".join(read(app, "host-why").split()) == why
        assert app.screen.query_one("#host-why").size.height == len(read(app, "host-why").splitlines())

    play(fleet(gpu07=up(scene(gpus=1), "gpu07"), gpu08=lost), script, (80, 24))


def test_commands_reach_the_host_that_is_on_screen(scene: MakeScene, play: Play, read: Read) -> None:
    here, there = up(scene(gpus=1), "gpu07"), up(scene(gpus=1), "gpu08")  # their runs have the same id

    async def script(app: Any, pilot: Any) -> None:
        await pilot.press("j", "j", "j", "enter")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        assert "gpu08/ppo-cartpole" in read(app, "identity")
        assert "ssh 24 ms" in read(app, "identity")
        app.tick()
        assert "gpu07 ● 1 run" in read(app, "host-bar")
        await pilot.press("p")
        assert (len(here.client.sent), [c.verb for c in there.client.sent]) == (0, ["pause"])
        await pilot.press("f", "n")
        await pilot.pause()
        assert "gpu07/ppo-cartpole" in read(app, "identity")
        assert (here.client.asked_hz, there.client.asked_hz) == ([], [10.0, 0.0])
        for one in (here, there):
            one.client.ns += 30 * SECOND
        app.tick()
        assert there.client.renewed == [RUN], "what was paused there stays paused"
        assert here.client.renewed == []
        await pilot.press("H")
        await pilot.pause()
        assert isinstance(app.screen, HostsScreen)
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, OverviewScreen)

    play(fleet(gpu07=here, gpu08=there), script)


def test_one_host_needs_no_list_of_hosts(scene: MakeScene, play: Play, read: Read, read_all: ReadAll) -> None:
    async def script(app: Any, pilot: Any) -> None:
        assert isinstance(app.screen, OverviewScreen)
        assert not app.screen.query("#host-bar")
        await pilot.press("H")
        assert isinstance(app.screen, OverviewScreen)
        assert "hosts" not in read(app, "keys")

    play(fleet(gpu07=up(scene(gpus=1), "gpu07")), script)


def test_a_run_that_is_named_is_opened_on_its_host(scene: MakeScene, play: Play, read: Read) -> None:
    async def script(app: Any, pilot: Any) -> None:
        assert "gpu08/ppo-cartpole" in read(app, "identity")
        assert there.client.watched[-1] == RUN

    there = up(scene(gpus=1), "gpu08")
    play(fleet("ppo-cartpole", here="gpu08", gpu07=up(scene(), "gpu07"), gpu08=there), script, (80, 24))


def test_ages_are_told_by_each_hosts_own_clock(scene: MakeScene, play: Play) -> None:
    ahead = scene()
    ahead.node = msgspec.structs.replace(ahead.node, wall_offset_ns=ahead.node.wall_offset_ns + 3600 * SECOND)
    ahead.run = msgspec.structs.replace(ahead.run, started_wall=ahead.run.started_wall + 3600.0)
    ahead.node = msgspec.structs.replace(ahead.node, runs=(ahead.run,))

    async def script(app: Any, pilot: Any) -> None:
        lines = [line for line in app.screen.query_one("#host-list").text.splitlines() if "ppo" in line]
        assert [line.split()[-4:] for line in lines] == [["4", "m", "0", "s"]] * 2

    play(fleet(gpu07=up(scene(), "gpu07"), gpu08=up(ahead, "gpu08")), script)


def test_the_link_tells_how_far_how_old_and_how_slow(scene: MakeScene, play: Play, golden: Golden) -> None:
    there = up(scene(gpus=1), "gpu07")

    def told(**link: Any) -> str:
        there.client.link = there.client.link._replace(**link)
        return "".join(span.text for span in header.link(app.view(None))).strip()

    app = fleet(gpu07=there)
    shown = {
        "24 ms": told(),
        "slow": told(slow=True),
        "slow, 1.4 s under way": told(under_way_s=1.4),
        "slow, answered 5 s ago": told(answered=95.0, under_way_s=0.0),
        "answered 1 s ago after 4 s under way": told(answered=99.0, under_way_s=4.0, slow=False),
    }
    golden(sheet(shown))
    assert told(state="lost") == ""
    assert told(state="live", node="") == "", "a daemon of this node is not far"


def test_of_a_run_that_is_not_live_it_is_told_why_and_no_old_throughput(scene: MakeScene) -> None:
    there = up(scene(gpus=1), "gpu07")
    app = fleet(gpu07=there)

    def told() -> str:
        return "".join(span.text for span in content.rows(app.hosts_seen(), 120, 0)[1])

    assert "env steps/s" in told()
    there.update(vital={"state": "unresponsive", "because": fact("state.no_pulse", age_s=9.0)})
    assert "not answering" in told()
    assert "no pulse for 9 s" in told()
    assert "env steps/s" not in told()


def test_the_runs_of_a_host_that_does_not_answer_are_not_called_live(
    scene: MakeScene, golden: Golden
) -> None:
    there = up(scene(gpus=1), "gpu07")
    app = fleet(gpu07=there)
    there.client.link = Link("lost", 60.0, "gone", node="gpu07")
    lines = content.rows(app.hosts_seen(), 120, 0)
    golden(rendered(lines, 120))
