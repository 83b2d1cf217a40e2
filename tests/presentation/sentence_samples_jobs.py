"""Fields of the sentences about a run on several nodes."""

from __future__ import annotations

from typing import Any

RANK = {"rank": 301, "host": "gpu37", "gpu": 5, "line": "data.py:37 read", "kind": "input"}
BARE: dict[str, Any] = {"rank": 301, "host": "", "gpu": None, "line": "", "kind": ""}
LINK = {
    "node": 3,
    "host": "gpu03",
    "rank": None,
    "gpu": None,
    "value": 2.1e9,
    "usual": 1.8e10,
    "waiting": 0.41,
}

SAMPLES: dict[str, Any] = {
    "job.own_time": [
        {**RANK, "value": 0.92, "usual": 0.41},
        {**BARE, "value": 0.92, "usual": 0.41},
    ],
    "job.missing_node": {"node": 9, "after_s": 100.0},
    "job.no_progress": [
        {"node": 5, "host": "gpu05", "step": 1204, "after_s": 30.0},
        {"node": 5, "host": "", "step": None, "after_s": 30.0},
    ],
    "job.stalled": {"nodes": 8, "after_s": 30.0},
    "job.throttled": {**RANK, "reason": "thermal_software", "value": 1402.0, "usual": 1972.0},
    "job.low_clock": [
        {**RANK, "reason": "", "value": 1402.0, "usual": 1972.0},
        {**BARE, "reason": "of_a_newer_driver", "value": 1402.0, "usual": 1972.0},
    ],
    "job.slow_link": [
        {**LINK, "link": "network"},
        {**RANK, "link": "nvlink", "value": 1e9, "usual": 2.1e11, "waiting": 0.41},
    ],
    "job.slower_network": {"value": 8e9, "usual": 1.8e10, "waiting": 0.5, "waited": 0.12},
}
