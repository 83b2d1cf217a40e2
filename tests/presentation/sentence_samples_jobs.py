"""Fields of the sentences about a run on several nodes."""

from __future__ import annotations

from typing import Any

RANK = {"rank": 301, "host": "gpu37", "gpu": 5, "line": "data.py:37 read", "kind": "input"}
BARE: dict[str, Any] = {"rank": 301, "host": "", "gpu": None, "line": "", "kind": ""}
SLOW: dict[str, Any] = {
    "rank": 37,
    "world": 512,
    "host": "node-4",
    "waits": 0.01,
    "others_wait": 0.11,
    "work_s": None,
    "usual_work_s": None,
    "phases": "",
    "iteration_s": 0.52,
    "usual_s": 0.51,
    "line": "train.py:12 step",
    "gpu": 5,
    "throttled": "power_cap",
}
OWN = {"value": 0.92, "usual": 0.41, "deviation": 3.1, "needed": 5.0, "slower": None}
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
        {**RANK, **OWN, "doubt": None},
        {**RANK, **OWN, "doubt": "chance"},
        {**RANK, **OWN, "doubt": "small"},
        {**RANK, **OWN, "doubt": "slower_rank", "slower": 37},
        {**RANK, **OWN, "doubt": "few_samples"},
        {**RANK, **OWN, "doubt": "late"},
    ],
    "job.slow_rank": [
        {**SLOW, "basis": "waits"},
        {**SLOW, "basis": "waits", "ranks": [32, 33, 34, 35, 36, 37, 38, 39]},
        {**SLOW, "basis": "time", "ranks": [36, 37], "waits": None, "others_wait": None},
        {**SLOW, "basis": "backward"},
        {**SLOW, "basis": "phases", "work_s": 0.11, "usual_work_s": 0.1, "phases": "data,optimizer"},
        {**SLOW, "basis": "time", "waits": None, "others_wait": None},
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
