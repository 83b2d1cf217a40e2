"""`python -m hoptui.alerts`: reads a `Delivery` as JSON from stdin, and prints the results as a JSON list."""

from __future__ import annotations

import os
import sys

import msgspec

from hoptui.alerts.delivery import deliver
from hoptui.domain.alerts import Delivery


def main() -> int:
    """Deliver one alert. The result is on stdout; the exit code is 0 even if a target failed."""
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=Delivery)
    results = list(deliver(given.alert, given.targets))
    sys.stdout.buffer.write(msgspec.json.encode(results))
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    code = main()
    os._exit(code)  # without waiting for the thread of a request that hangs
