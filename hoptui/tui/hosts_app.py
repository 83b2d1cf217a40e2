"""The dashboard on other nodes through ssh, on one or several at once. The screens show the chosen host.

Each host has a client, a store, a clock and pauses of its own, and does not wait for the others. One host is
chosen; the other screens and the keys refer to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from textual.binding import BindingType
from textual.screen import Screen

from hoptui.client.client import Change, Client
from hoptui.client.routes import Way
from hoptui.protocol.messages import RunState
from hoptui.settings import Config
from hoptui.tui.actions import Action, bindings, of
from hoptui.tui.app import HoptuiApp
from hoptui.tui.app_protocol import Frame
from hoptui.tui.components import runs
from hoptui.tui.render_loop import RENEW_EVERY_S
from hoptui.tui.run_control import Staging, Steering, left_paused
from hoptui.tui.screen_base import LiveScreen
from hoptui.tui.screens.hosts import content
from hoptui.tui.screens.hosts.screen import Fleet, HostsScreen
from hoptui.tui.snapshot import SECOND, View, ViewerClient
from hoptui.tui.widgets import KeyBar, Lines

SOON_S = 2.0
"""A link that is younger than this may come by itself."""


class Reached(ViewerClient, Protocol):
    """A connection that may be tried again before its time."""

    def again(self) -> None: ...


class HostConnection(NamedTuple):
    """What belongs to one host: its client, and what this dashboard does to its runs."""

    name: str
    client: Reached
    steering: Steering
    staging: Staging


class FleetApp(HoptuiApp):
    """The app on several hosts: it shows a run of the host `here`, or all hosts, or the overview of the only
    host.

    `connect` maps the name of a host to a function that makes its client. Its argument is the callback for
    changes of state. Without `here`, a run is looked up on the first host.
    """

    CSS_PATH = [*HoptuiApp.CSS_PATH, "screens/hosts/screen.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = bindings("hosts")

    def __init__(
        self,
        connect: Mapping[str, Callable[[Callable[[Change], None]], Reached]],
        run: str | None = None,
        *,
        here: str | None = None,
        **options: Any,
    ) -> None:
        clients = {name: made(self._on_change) for name, made in connect.items()}
        super().__init__(lambda on_change: next(iter(clients.values())), run, **options)
        self.hosts = [HostConnection(name, one, Steering(one), Staging()) for name, one in clients.items()]
        self._others_at = 0.0
        self.choose(here or self.hosts[0].name)

    # hosts ------------------------------------------------------------------------------------------------

    @property
    def several(self) -> bool:
        """Whether there is more than one host."""
        return len(self.hosts) > 1

    def choose(self, name: str) -> None:
        """Switch the screens and keys to this host; the GPUs of the others are sampled at their usual rate
        again.
        """
        if self._fast:
            self.action_sample_fast()
        self.here = next(host for host in self.hosts if host.name == name)
        _, self.client, self.steering, self.staging = self.here
        for host in self.hosts:
            if host is not self.here:
                host.client.watch(None)

    def hosts_seen(self) -> list[content.HostStatus]:
        """Every host at this moment, by its own clock."""
        here = self.view(None)
        return [
            content.HostStatus(host.name, here if host is self.here else _seen(here, host))
            for host in self.hosts
        ]

    def wall(self) -> float:
        """The person's own clock."""
        return time.time()

    def has_other_run(self, here: str | None) -> bool:
        return any((name, run.run) != (self.here.name, here) for name, run in self._runs())

    def open_next_run(self, here: str | None, step: int) -> None:
        """The next run on this host or the next one."""
        listed = self._runs()
        now = next((one for one in listed if one[0] == self.here.name and one[1].run == here), None)
        other = runs.beside(listed, now, step)
        if other is not None:
            self.choose(other[0])
            self.open_run(other[1])

    def _runs(self) -> list[tuple[str, RunState]]:
        return [
            (name, run)
            for name, view in self.hosts_seen()
            if view.link.state == "live"
            for run in runs.living(view)
        ]

    # life -------------------------------------------------------------------------------------------------

    def get_default_screen(self) -> Screen[Any]:
        return HostsScreen() if self.several and not self._asked else super().get_default_screen()

    def on_mount(self) -> None:  # Textual calls that of HoptuiApp too, which starts the chosen one
        for host in self.hosts:
            if host is not self.here:
                host.client.start()
                host.client.watch(None)

    def on_unmount(self) -> None:
        with ThreadPoolExecutor(
            len(self.hosts)
        ) as pool:  # a host that does not answer keeps no other from being left
            for host in self.hosts:
                pool.submit(host.client.close)

    def tick(self) -> None:
        super().tick()
        now = self.clock()
        if now < self._others_at:
            return
        self._others_at = now + RENEW_EVERY_S
        for host in self.hosts:
            if host is not self.here:  # what is paused there stays paused
                host.steering.renew(now)
                for told in host.steering.answers(now):
                    self.tell(f"{host.name}: {told}")

    def furnish(self, screen: LiveScreen) -> None:
        super().furnish(screen)
        if self.several and not isinstance(screen, HostsScreen) and not screen.query("#host-bar"):
            screen.mount(Lines("host-bar"), before=screen.query_one(KeyBar))

    @property
    def calm(self) -> bool:
        stores = [host.client.store for host in self.hosts if host is not self.here]
        return super().calm and all(
            vital.state == "exited" for store in stores for vital in store.vitals.values()
        )

    def _moment(self) -> tuple[object, ...]:
        others = ((host.client.store.changes, host.client.link) for host in self.hosts)
        return *super()._moment(), *others

    def _draw(self, frame: Frame) -> None:
        super()._draw(frame)
        if frame.numbers:
            for bar in self.screen.query("#host-bar").results(Lines):
                bar.show([content.bar(self.hosts_seen(), self.here.name)])

    # keys -------------------------------------------------------------------------------------------------

    def offered(self, actions: list[Action]) -> list[Action]:
        """Also the way back to all hosts, and to one that cannot be reached."""
        own = [
            a
            for a in of("hosts")
            if isinstance(self.screen, LiveScreen) and self.check_action(a.action[4:], ())
        ]
        return super().offered([*own, *actions])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "hosts":
            return self.several and not isinstance(self.screen, HostsScreen)
        if action == "again":
            links = [host.client.link for host in self.hosts]
            return any(link.state != "live" and self.clock() - link.since > SOON_S for link in links)
        return super().check_action(action, parameters)

    def action_hosts(self) -> None:
        if isinstance(self.screen, LiveScreen):
            self.client.watch(None)
            self._go(HostsScreen())

    def action_again(self) -> None:
        for host in self.hosts:
            host.client.again()


def _seen(here: View, host: HostConnection) -> View:
    """A host that is not the chosen one, by its own clock."""
    store = host.client.store
    now, node = store.now(), store.node
    wall = (now + node.wall_offset_ns) / SECOND if node else time.time()
    return here._replace(store=store, link=host.client.link, now=now, wall=wall)


def run(ways: Mapping[str, Way], here: str | None, run: str | None, *, config: Config) -> int:
    """Open the dashboard on these hosts, on a run of `here` if one is named; blocks until the user leaves.

    Leaving affects no run and leaves no ssh process behind.

    Returns:
        The exit code: 0, or 128 + the signal that ended the dashboard.
    """

    def connector(way: Way) -> Callable[[Callable[[Change], None]], Client]:
        return lambda on_change: Client(way=way, on_change=on_change, read_only=config.read_only)

    app = FleetApp({name: connector(way) for name, way in ways.items()}, run, here=here, config=config)
    app.alone = True
    app.run(mouse=config.mouse)
    for host in app.hosts:
        for held in host.steering.held:
            print(left_paused(host.client.store, held, host.name))
    return app.return_code or 0


if TYPE_CHECKING:

    def _satisfies_protocol(app: FleetApp) -> Fleet:
        return app
