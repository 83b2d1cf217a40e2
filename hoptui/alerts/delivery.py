"""Delivers one alert to several targets at the same time, within a time limit."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence

from hoptui.alerts import command, webhook
from hoptui.alerts.secret_values import DeliveryError
from hoptui.domain.alerts import Alert, AlertTarget, Delivered
from hoptui.domain.facts import Fact, fact

LIMIT_S = 10.0
MARGIN_S = 1.0
"""A command that is killed at the limit is reaped within this time."""


def deliver(alert: Alert, targets: Sequence[AlertTarget], limit_s: float = LIMIT_S) -> Iterator[Delivered]:
    """Try each target once. Yield a result for each as soon as it is known.

    A request that ignores its limit, as the search for a host's name can, is left to its thread. The thread
    does not keep the process from ending.
    """
    done: queue.Queue[Delivered] = queue.Queue()
    running = command.Running()

    def one(target: AlertTarget, number: int) -> None:
        done.put(Delivered(target=number, problem=_sent(alert, target, limit_s, running)))

    missing = set(range(len(targets)))
    until = time.monotonic() + limit_s + MARGIN_S
    try:
        for number, target in enumerate(targets):
            threading.Thread(target=one, args=(target, number), daemon=True).start()
        while missing:
            found = done.get(timeout=max(0.0, until - time.monotonic()))
            missing.discard(found.target)
            yield found
    except queue.Empty:
        pass
    finally:  # an interrupt leaves no command behind
        running.end()
    for number in sorted(missing):
        yield Delivered(target=number, problem=fact("alert.no_answer"))


def _sent(alert: Alert, target: AlertTarget, limit_s: float, running: command.Running) -> Fact | None:
    """Try a target. Return why it failed, None if it worked."""
    try:
        if target.type == "command":
            command.send(alert, target, limit_s, running)
        else:
            webhook.send(alert, target, limit_s)
    except DeliveryError as error:
        return error.fact
    except Exception as error:  # its text may have a secret
        return fact("alert.failed", error=type(error).__name__)
    return None
