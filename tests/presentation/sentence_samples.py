"""Fields of every sentence of the catalogue, by code. A list has the variants of one sentence."""

from __future__ import annotations

from typing import Any

import msgspec

from hoptui.domain.facts import Fact, fact
from hoptui.domain.knobs import KnobSpec
from hoptui.domain.targets import Target
from hoptui.presentation.sentences import hardware
from hoptui.presentation.sentences.diagnosis import CURES, VERDICTS
from tests.presentation import sentence_samples_tuner

Fields = dict[str, Any]
LR = msgspec.to_builtins(KnobSpec(name="lr", kind="float", default=3e-4, min=1e-5, max=1e-2, scale="log"))
BATCH = msgspec.to_builtins(KnobSpec(name="batch_size", kind="int", default=8, choices=(8, 16), scale="pow2"))


def _nested(inner: Fact) -> Fields:
    found: Fields = msgspec.to_builtins(inner)
    return found


def _nested_target(reading: str, value: float, **fields: Any) -> Fields:
    found: Fields = msgspec.to_builtins(Target(reading=reading, value=value, **fields))
    return found


UNKNOWN_ERROR = {"nvml": 999, "error": "Unknown Error"}
RAISED = _nested(fact("raised", error="ValueError: no"))

HUNG: dict[str, Any] = {
    "age_s": 42.0,
    "usual_s": 0.1,
    "rows": False,
    "world": 8,
    "groups": [
        {
            "ranks": [5],
            "count": 1,
            "kind": "input",
            "file": "/home/ana/data.py",
            "line": 37,
            "function": "read",
            "inside": "recv",
        },
        {
            "ranks": [0, 1, 2, 3, 4, 6, 7],
            "count": 7,
            "kind": "collective",
            "file": "/home/ana/train.py",
            "line": 120,
            "function": "main",
            "inside": "all_reduce",
        },
    ],
    "silent": [],
    "unsampled": [],
    "elsewhere": 0,
}
DEVICE: Fields = {
    "host": "gpu07",
    "gpu": 3,
    "clock_mhz": 1410.0,
    "others_mhz": 1980.0,
    "throttled": {"thermal_software": 0.4},
}
DEVICES: list[Fields] = [
    {**DEVICE, "gpu": None, "clock_mhz": None, "others_mhz": None, "throttled": None},
    {**DEVICE, "others_mhz": None, "throttled": {}},
]
"""Of a rank whose GPU is not known, and of one that is alone on its node."""
SAMPLES: dict[str, Fields | list[Fields]] = {
    # runs
    "state.starting": {},
    "state.restarting": {},
    "state.not_connected": {},
    "state.no_pulse": {"age_s": 6.2},
    "state.rank_silent": {"rank": 1, "age_s": 26.3},
    "state.no_row": {"age_s": 12.4},
    "state.hung": [HUNG, {"age_s": 42.0}, {**HUNG, "world": 1, "groups": HUNG["groups"][:1], "silent": []}],
    "run.hung": {
        **HUNG,
        "groups": HUNG["groups"][1:],
        "silent": [
            {"rank": 4, "state": "R", "seen": {**HUNG["groups"][0], "age_s": 12.0}},
            *({"rank": 3, "state": state} for state in ("T", "R", "t", "D", "Z", "")),
        ],
        "unsampled": [2],
        "elsewhere": 4,
    },
    "run.straggler": [
        {
            "rank": 3,
            "world": 8,
            "waits": 0.02,
            "others_wait": 0.31,
            "where": HUNG["groups"][0],
            "share": 0.45,
            "others_share": 0.14,
            "unsampled": [],
            "elsewhere": 0,
        },
        {
            "rank": 0,
            "world": 8,
            "waits": 0.02,
            "others_wait": 0.31,
            "where": None,
            "share": 0.45,
            "others_share": 0.44,
            "unsampled": [2],
            "elsewhere": 4,
            **DEVICE,
        },
        *(
            {
                "rank": 0,
                "world": 8,
                "waits": 0.02,
                "others_wait": 0.31,
                "where": None,
                "share": 0.45,
                "others_share": 0.44,
                "unsampled": [],
                "elsewhere": 0,
                **device,
            }
            for device in DEVICES
        ),
    ],
    "memory.soon_full": {"of": "GPU 0", "minutes": 40, "used_bytes": 48 << 30, "total_bytes": 80 << 30},
    "memory.steady": {"of": "the node"},
    "run.even": {"rank": 3, "after_s": 130.0},
    "run.progress": {"after_s": 62.0},
    "state.works": [
        {"age_s": 42.0, "phase": "", "rows": False, "groups": HUNG["groups"][:1]},
        {"age_s": 42.0, "phase": "evaluation", "rows": True, "groups": []},
        {"age_s": 42.0, "phase": "", "rows": False, "groups": []},
    ],
    "state.no_stack": {"age_s": 42.0},
    "state.off": {"error": "OSError: no space left on device"},
    "rank.ended": {"rank": 1, "pid": 7, "reason": "killed", "detail": "by SIGKILL"},
    "rank.off": {"rank": 3, "why": _nested(fact("state.off", error="OSError: no space left on device"))},
    "state.paused": {"left_s": 41.0},
    "state.in_phase": [{"phase": "checkpoint", "age_s": 140.0}, {"phase": "", "age_s": 12.0}],
    "run.started": {"pid": 4121},
    "run.restarted": {"restart": 1, "pid": 4121},
    "run.reconnected": {},
    "knobs.undescribed": {"knobs": 1500},
    "knobs.left_out": {"shown": 2000, "knobs": 30000},
    "run.exited": [
        {"reason": "finished", "detail": ""},
        {"reason": "stopped", "detail": "by kim (pid 7)"},
        {"reason": "exception", "detail": "ValueError: no"},
    ],
    "knob.refused": {"knob": "lr", "problem": "lr: effect='fast': must be 'speed' or 'learning'"},
    "knob.again": {"knob": "lr"},
    "number.bad": [{"metric": "train_loss", "value": "NaN"}, {"metric": "grad_norm", "value": "-inf"}],
    "number.good": [{"metric": "train_loss", "since": 12}, {"metric": "grad_norm", "since": -1}],
    "stacks.ended": {"problem": "RuntimeError: no frames"},
    "call.refused": {"call": "gpus", "problem": "TypeError: 'int' object is not iterable"},
    "command.reverted": {
        "knob": "batch_size",
        "value": 16,
        "why": _nested(fact("reverted", reason="no room")),
    },
    "knob.reverted": {"knob": "batch_size", "before": 32, "value": 16, "why": RAISED},
    "pause.expired": {},
    "ranks.differ": [
        {"knobs": [{"knob": "lr", "rank": 1, "value": 3e-4, "first": 1e-3}], "more": 0},
        {"knobs": [{"knob": "n", "rank": 1, "value": None, "first": 4}] * 3, "more": 2},
    ],
    "ranks.agree": {},
    "ranks.missing": {"rank": 1},
    "ranks.left": {"rank": 1},
    "ranks.not_all_later": {"rank": 1},
    "ranks.apart": {"error": "rank 1 has left the loop"},
    "metrics.bad_address": {"address": "9400"},
    "metrics.not_installed": {},
    "metrics.unavailable": {"address": "127.0.0.1:9400", "error": "Address already in use"},
    "metrics.ended": {"address": "127.0.0.1:9400", "error": "OSError: too many open files"},
    # alerts
    "gpu.idle": [{"gpus": [0], "idle_s": 600.0}, {"gpus": [0, 3], "idle_s": 5400.0}],
    "gpu.not_idle": {},
    "alerts.suppressed": {"most": 20},
    "alert.test": {},
    "alerts.thread_ended": {"error": "RuntimeError: can't start new thread"},
    "alerts.dropped": {"count": 3},
    "alerts.undelivered": {
        "target": "webhook 1 (slack)",
        "count": 2,
        "why": _nested(fact("alert.refused", status=404)),
    },
    "alert.no_answer": {},
    "alert.killed": {"limit_s": 10.0},
    "alert.exit_code": {"exit_code": 3},
    "alert.not_started": {"error": "No such file or directory"},
    "alert.refused": {"status": 404},
    "alert.redirected": {},
    "alert.unreachable": {"error": "Connection refused"},
    "alert.certificate": {},
    "alert.bad_url": {},
    "alert.bad_secret": {"key": "url"},
    "alert.no_variable": {"key": "url_env"},
    "alert.no_file": {"key": "url_file"},
    "alert.unreadable": {"key": "url_file", "error": "Permission denied"},
    "alert.failed": {"error": "KeyError"},
    "alerts.no_table": {},
    "alerts.no_targets_table": {},
    "alerts.too_many_targets": {"most": 16},
    "alerts.unknown_key": [{"key": "bel", "like": "bell"}, {"key": "colour", "like": ""}],
    "alerts.wrong_value": {"key": "bell", "wanted": "true or false"},
    "alerts.lacking": {"key": "command"},
    # targets
    "target.set": {"target": _nested_target("busy", 90.0), "by": "ana (pid 7)"},
    "target.removed": {"target": _nested_target("temperature_c", 80.0, side="most"), "by": "ana (pid 7)"},
    "target.missed": [
        {"target": _nested_target("busy", 90.0), "mean": 71.2, "seconds": 34.0},
        {
            "target": _nested_target("memory_used_bytes", 0.9, share=True),
            "mean": 0.71,
            "seconds": 34.0,
            "gpu": 3,
        },
    ],
    "target.met": {"target": _nested_target("power_w", 600.0), "mean": 641.0, "seconds": 30.5},
    "target.no_live_run": {"run": "abcd2345"},
    "target.invalid": {"reading": "busy"},
    "target.too_many": {"most": 16},
    "target.none": {"run": "ppo", "reading": "busy"},
    # notes
    "note.no_run": {"run": "abcd2345"},
    "note.invalid": {"most": 500},
    "note.too_many": {"most": 50},
    # commands
    "bad_type": [
        {"spec": LR, "value": "fast"},
        {"spec": LR, "value": float("nan")},
        {"spec": BATCH, "value": 12},
        {"spec": LR, "value": 1e-3},  # fits by the rules of this version
    ],
    "out_of_range": [
        {"spec": LR, "value": 0.5},
        {"spec": LR, "value": 1e-9},
        {"iterations": 2000, "most": 1000},
        {"iterations": -1, "most": 1000, "option": "warmup"},
    ],
    "unknown_knob": [
        {"knob": "grad_acum", "known": ["grad_accum", "lr"]},
        {"knob": "width", "known": []},
        {"run": "ppo", "knob": "width", "known": ["grad_accum", "lr"]},
    ],
    "declined": [
        {"knob": "batch_size", "reason": "the data loader reads it once"},
        {"verb": "stop", "reason": "the loop ends with its data"},
    ],
    "unsupported": [
        {"verb": "checkpoint"},
        {"verb": "profile", "option": "stacks"},
        {"world": 8},
    ],
    "no_such_run": [{"run": "abc"}, {"name": "ppo", "exit_reason": "finished"}],
    "stale_epoch": [{}, {"name": "ppo"}],
    "version_conflict": [
        {"knob": "lr", "value": 1e-3, "version": 3, "by": "ana (pid 4121)"},
        {"knob": "lr", "value": 1e-3, "version": 3, "by": ""},
    ],
    "pending_conflict": {"by": "ana (pid 4121)", "knob": "lr", "value": 1e-3},
    "recording": {},
    "no_boundaries": {"name": "ppo"},
    "too_many_commands": {"name": "ppo", "most": 2000},
    "held_by_person": [{"knob": "lr"}, {"knob": "lr", "by": "ana (pid 4121)"}, {"knob": "lr", "by": ""}],
    "later_command": {"by": "the tuner"},
    "no_boundary": {"ttl_s": 600.0},
    "no_answer": {},
    "no_daemon": {"waited_s": 31.4},
    "run_ended": {"reason": "killed"},
    "run_restarted": {"restart": 2},
    "too_large": [{"code": "setter_failed"}, {"code": ""}],
    "daemon_ended": {},
    "fate_unknown": {"why": _nested(fact("run_ended", reason="killed"))},
    "lost_in_restart": {"why": _nested(fact("run_ended", reason="killed")), "checkpoint": "step_3.pt"},
    "tracing": [{"iterations": 1}, {"iterations": 20}],
    "written": {"path": "/runs/step_3.pt"},
    "later": {},
    "restarting": [{"checkpoint": "step_3.pt"}, {"name": "ppo"}],
    "restarted": {},
    "not_as_asked": [{}, {"reason": "a rollout has 32 samples"}],
    "setter_failed": {"knob": "n", "value": 13, "error": "unlucky"},
    "undo_failed": {"knob": "n", "value": 8, "error": "OSError: gone"},
    "raised": {"error": "ValueError: no"},
    "on_ranks": [
        {"problems": [{"rank": 1, "problem": RAISED}], "more": 0},
        {"problems": [{"rank": rank, "problem": RAISED} for rank in (1, 2, 3)], "more": 4},
    ],
    "several": {"facts": [RAISED, _nested(fact("undo_failed", knob="n", value=8, error="OSError: gone"))]},
    "no_knob_after_restart": {"knob": "width"},
    "other_value_after_restart": {"knob": "width", "value": 8},
    "reverted": {"reason": "out of memory"},
    "effect.too_few_before": {"had": 7, "least": 15},
    "effect.measuring": {"had": 7, "least": 15},
    "effect.cut_short": {},
    "effect.restarted": {},
    "effect.load_changed": {"before": 0.12, "after": 0.81},
    "effect.gpu_shared": {"gpu": 3, "pid": 4121},
    "effect.shared": {"knobs": ["lr", "grad_accum"]},
    # diagnosis
    "diagnosis.verdict": [
        {
            "verdict": "launch-bound",
            "facts": [
                _nested(fact("gpu.sm_active", share=0.056)),
                _nested(fact("gpu.any_kernel", share=0.32)),
            ],
        },
        {"verdict": "healthy", "facts": []},
    ],
    "diagnosis.newer_verdict": {"verdict": "moon-bound"},
    "diagnosis.text": {"text": "SM active 5.6 %"},
    "phase.share": {"phase": "rollout/env", "share": 0.7},
    "phase.largest": {"phase": "update", "share": 0.61},
    "time.aside": {"share": 0.31},
    "time.all_aside": {"share": 1.0},
    "gpu.busy": {"share": 0.32},
    "gpu.idle_share": {"share": 0.86},
    "gpu.none_used": [{"count": 1}, {"count": 8}],
    "advice.cure": [
        {"cure": "autocast"},
        *({"cure": cure, "file": "/home/kim/data.py", "line": 37, "function": "augment"} for cure in CURES),
    ],
    "line.brief": {
        "kind": "input",
        "share": 0.83,
        "file": "/home/kim/data.py",
        "line": 37,
        "function": "augment.<locals>.<listcomp>",
        "inside": "rotate",
    },
    "rank.slow": [
        {"rank": 5, "world": 8, "waits": 0.02, "others_wait": 0.24},
        {"rank": 5, "world": 8, "waits": 0.02, "others_wait": 0.24, **DEVICE},
    ],
    "cpu.computes": {"share": 0.92},
    "line.hot": [
        {
            "kind": "input",
            "share": 0.83,
            "file": "/home/kim/data.py",
            "line": 37,
            "function": "augment",
            "inside": "rotate",
        },
        {"kind": "script", "share": 0.5, "file": "train.py", "line": 3, "function": "main", "inside": ""},
        {
            "kind": "environment",
            "share": 0.13,
            "whole": 0.83,
            "file": "envs.py",
            "line": 107,
            "function": "Acrobot.step",
            "inside": "min",
        },
    ],
    "gpu.any_kernel": {"share": 0.32},
    "gpu.sm_active": [{"share": 0.056}, {"share": 0.94}, {"share": 0.0}],
    "gpu.tensor_active": {"share": 0.94},
    "gpu.fp32_active": {"share": 0.77},
    "gpu.dram_active": {"share": 0.9},
    "gpu.kernel_fill": {"share": 0.18},
    "gpu.memory": {"share": 0.23},
    "gpu.pcie": [{"bytes_per_s": 58e9}, {"bytes_per_s": 0.6e9}],
    "gpu.nvlink": {"bytes_per_s": 29e9},
    "host.memory": {"share": 0.017},
    "host.cpu": {"share": 0.92, "cores": 16},
    "batch.pieces": {"pieces": 64},
    "gpu.power": [{"watts": 693.0, "limit_w": 700.0}, {"watts": 144.0}],
    "gpu.at_power_limit": {},
    "gpu.clock": {"mhz": 1365.0, "max_mhz": 1980.0},
    "gpu.hot": [{"share": 0.6, "gpu": 3}, {"share": 0.6}],
    "gpu.temperature": {"celsius": 91.0},
    "gpu.power_brake": [{"share": 0.4, "gpu": 3}, {"share": 0.4}],
    "gpu.shared": [{"gpus": [0]}, {"gpus": [0, 2]}],
    "gpu.less_work": {"gpu": 1, "share": 0.5, "other": 0, "other_share": 0.9},
    "gpu.slower": {"gpu": 1, "mhz": 1400.0, "other": 0, "other_mhz": 1980.0},
    "gpu.no_readings": {"problem": _nested(fact("driver.not_loaded"))},
    "gpu.none_of_run": {},
    "gpu.no_counters": [
        {"problem": _nested(fact("gpm.needs_hopper", architecture="Ampere"))},
        {"problem": _nested(fact("gpm.needs_hopper", architecture="Ampere")), "gpu": 1},
    ],
    "gpu.no_rows": {},
    "gpu.counters_not_read": [{}, {"gpu": 1}],
    "gpu.waits_for_host": {},
    "cause.none_clear": {},
    "advice.knob": [
        {
            "knob": "num_envs",
            "before": 2048,
            "value": 4096,
            "effect": "learning",
            "cost": "shape",
            "took_s": 8.3,
        },
        {"knob": "grad_accum", "before": 4, "value": 2, "effect": "speed", "cost": "free"},
        {"knob": "precision", "before": "fp32", "value": "bf16", "effect": "speed", "cost": "rebuild"},
        {"knob": "checkpointing", "before": True, "value": False, "effect": "speed", "cost": "shape"},
    ],
    "advice.change": {"knob": "num_envs", "before": 2048, "value": 4096},
    "advice.without_a_knob": [
        {"verdict": verdict} for verdict, text in VERDICTS.items() if text.without_a_knob
    ],
    **sentence_samples_tuner.SAMPLES,
    # hardware
    "gpu.xid": [{"number": number} for number in (*hardware.XIDS, 777)],
    "gpu.double_bit": {},
    "gpu.throttle": [
        {"reason": reason, "active": active} for reason in hardware.THROTTLE for active in (True, False)
    ],
    "gpu.slow_clocks": {"clock_hz": 1.2e9, "share": 0.606},
    "gpu.ecc": [{"counter": counter, "count": 2} for counter in hardware.COUNTERS],
    "repeated": [
        {"what": _nested(fact("gpu.double_bit")), "times": 1},
        {"what": _nested(fact("gpu.double_bit")), "times": 5},
    ],
    "gpu.back": {},
    "gpu.fell_off_bus": {"nvml": 15, "error": "GPU is lost"},
    "gpu.needs_reset": {"nvml": 16, "error": "GPU requires restart"},
    "gpu.gone": {"nvml": 28, "error": "GPU not found"},
    "gpu.not_opened": UNKNOWN_ERROR,
    "gpu.nothing_readable": {"nvml": 10, "error": "Timeout"},
    "gpu.not_listed": {},
    "gpu.hung": {"again_s": 60.0},
    "gpu.none_recorded": {},
    "driver.not_asked": {},
    "driver.no_access": {},
    "driver.not_loaded": {},
    "driver.not_found": {},
    "driver.mismatched": {},
    "driver.broken": UNKNOWN_ERROR,
    "driver.no_gpu": {},
    "driver.hung": [{}, {"again_s": 120.0}],
    "reading.not_supported": {},
    "reading.refused": {},
    "reading.failed": UNKNOWN_ERROR,
    "reading.no_value": {},
    "reading.not_in_mig_mode": {},
    "reading.whole_gpus_only": {},
    "nvlink.none_up": {},
    "gpm.in_mig_mode": {},
    "gpm.needs_hopper": [{"architecture": "Ampere"}, {"architecture": ""}],
    "gpm.needs_driver": {},
    "gpm.failed": UNKNOWN_ERROR,
    "starting": {},
    "sampler.starting": [{"sampler": "gpus"}, {"sampler": "host"}],
    "sampler.not_answered": {"sampler": "gpus"},
    "sampler.ended": {"sampler": "gpus", "exit_code": 2},
    "sampler.closed": {"sampler": "host"},
    "sampler.bad_message": {"sampler": "gpus", "error": "a frame of 4294967295 bytes"},
    "sampler.undead": {"sampler": "gpus", "count": 3},
    "sampler.not_started": {"sampler": "gpus", "error": "No such file or directory"},
    "sampler.silent": {"sampler": "host", "silent_s": 5.2},
    "sampler.gpu_hung": {"gpu": 1, "silent_s": 5.2},
    "sampler.driver_hung": {"again_s": 60.0},
    "sampler.gpus_left": [{"gpus": [1]}, {"gpus": [1, 3]}],
    "recorded": {"text": "as it was written"},
}
