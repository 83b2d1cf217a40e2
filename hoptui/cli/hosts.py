"""`hoptui attach ssh://…`: the dashboard on other hosts. Each way is set out on before the dashboard is even imported."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hoptui.cli.terminal import MISSING, Fail, usage
from hoptui.viewer.config import Config
from hoptui.viewer.places import Place, is_path
from hoptui.viewer.way import Here, There, Way
from hoptui.wire.addresses import AddressError, addresses


def open_hosts(places: Sequence[Place], hoptui: str, config: Config) -> int:
    """The dashboard on these places, until the person leaves it. `hoptui` is the command on the other hosts.

    Raises:
        Fail: two runs of one node are named, or a recording among them (exit code 2); there is no directory for sockets (3).
    """
    named: dict[Place, str] = {}
    for place in places:
        if not place.remote and is_path(place.run):
            raise usage(f"a recording is opened by itself: hoptui replay {place.run}")
        before = named.setdefault(place.node, place.run)
        if before and place.run and before != place.run:
            there = place.name if place.remote else "this node"
            raise usage(
                f"two runs of {there} are named, {before} and {place.run}: open one, n goes to the next"
            )
        named[place.node] = before or place.run
    ways: dict[str, Way] = {}
    try:
        for node in named:
            ways[node.name] = way = There(node, hoptui=hoptui) if node.remote else Here(addresses())
            if node.remote:
                way.begin(time.monotonic())
    except AddressError as error:
        raise Fail(str(error), MISSING) from None
    here, run = next(((node.name, run) for node, run in named.items() if run), (None, None))
    from hoptui.tui import fleet

    return fleet.run(ways, here, run, config=config)
