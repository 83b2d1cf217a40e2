"""`hoptui alerts test`: send a test alert to every target, and report which worked."""

from __future__ import annotations

import platform
import time

from cyclopts import App

from hoptui import settings
from hoptui.alerts.delivery import deliver
from hoptui.cli.support.options import Json
from hoptui.cli.support.terminal import OK, REJECTED, Fail, dump, say, warn
from hoptui.domain.alerts import TEST, Alert, target_label
from hoptui.domain.facts import fact
from hoptui.presentation import sentences

alerts = App(name="alerts", help="Test where alerts go: alerts test sends one to each target.")


@alerts.command(name="test")
def try_targets(*, json: Json = False) -> int:
    """Send a test alert to each target of config.toml, and report for each whether it worked.

    Exit codes: 0 each target worked, 1 one failed, or there is none.
    """
    config = settings.read()
    for problem in config.problems:
        warn(f"hoptui: {problem}")
    targets = config.alerts.targets
    if not targets:
        where = settings.short(config.file) if config.file else "config.toml"
        raise Fail(f"no targets: {where} has no [[alerts.targets]] that can be used", REJECTED)
    alert = Alert(kind=TEST, what=fact("alert.test"), host=platform.node(), wall=time.time(), level="info")
    found = []
    for result in deliver(alert, targets):
        label = target_label(targets[result.target])
        why = sentences.text_of(result.problem)
        found.append((result.target, {"target": label, "worked": not why, "problem": why}))
        if not json:
            say(f"✕ {label}: {why}" if why else f"✓ {label}")
    if json:
        dump({"targets": [each for _, each in sorted(found, key=lambda one: one[0])]})
    return REJECTED if any(not each["worked"] for _, each in found) else OK
