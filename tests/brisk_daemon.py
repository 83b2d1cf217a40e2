"""A daemon whose times are shorter: `brisk_daemon.py TIMINGS [METRICS PROGRAM...]`, TIMINGS as JSON.

With a PROGRAM it samples GPUs by that; else it is the daemon as it is.
"""

from __future__ import annotations

import json
import sys

from hoptui.domain.pacing import Timings


def main() -> int:
    """Serve until nobody needs it."""
    timings, *rest = sys.argv[1:]
    shorter = Timings(**json.loads(timings))
    if not rest:
        from hoptui.daemon.__main__ import main as daemon

        sys.argv = sys.argv[:1]
        return daemon(shorter)
    from hoptui.daemon.server import Server
    from hoptui.node.addresses import addresses

    metrics, *program = rest
    Server(addresses(), 20.0, metrics, {"gpus": program}, shorter).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
