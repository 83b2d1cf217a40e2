"""Fields of the sentences about the tuner."""

from __future__ import annotations

from typing import Any

import msgspec

from hoptui.domain.facts import fact
from hoptui.domain.tuning import Limits


def _nested(code: str, **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(fact(code, **fields))
    return found


def _limits(limits: Limits) -> dict[str, Any]:
    return fact("tune.bad_limits", limits=limits).fields


UP = [{"knob": "micro_batch", "before": 32, "value": 64}, {"knob": "grad_accum", "before": 16, "value": 8}]
RESTARTED = _nested("daemon.restarted")
CRASHED = _nested("run.crashed")
HARMFUL = _nested("trial.harmful")
SM_ACTIVE = _nested("gpu.sm_active", share=0.08)
IN_TRIAL = _nested("tuner.in_trial", cause=fact("run.crashed"))
CUT_OFF = _nested("trial.cut_off", cause=fact("run.crashed"))
STRAGGLER = _nested(
    "run.straggler", rank=3, world=8, waits=0.02, others_wait=0.31, where=None, unsampled=[], elsewhere=0
)
EFFECT = _nested("trial.effect", gain=0.01, interval=0.03)
LEARNED = _nested("trial.samples_changed", knobs=["batch_size"], before=64.0, after=128.0)
AGAIN = [
    _nested("trial.again", why=fact("again.drift", gain=-0.2)),
    _nested("trial.memory_expected", share=0.81),
]
WHY = [_nested("trial.no_clear_limit"), _nested("trial.memory_expected", share=0.81)]
ENDED = {
    "t": 1,
    "result": "kept",
    "changes": UP,
    "gain": 0.061,
    "interval": 0.012,
    "detectable": True,
    "why": WHY,
}

SAMPLES: dict[str, dict[str, Any] | list[dict[str, Any]]] = {
    "tuner.begins": {},
    "tuner.measures_baseline": {"iterations": 30},
    "tuner.tries": {"changes": UP},
    "tuner.sets": {"changes": UP},
    "tuner.measures": {"changes": UP, "iterations": 12},
    "tuner.would_set": [{"changes": UP, "why": WHY}, {"changes": UP[:1], "why": AGAIN}],
    "tuner.not_now": [
        {"why": _nested("wait.total_power_unknown")},
        {"why": _nested("tune.gpu_shared", gpu=3, pid=41_007)},
    ],
    "tuner.nothing_tried": [
        {"why": _nested("search.exhausted")},
        {"why": _nested("budget.cautious", left_s=11.7)},
        {"why": _nested("memory.unknown_choice", knob="compile", value="on")},
    ],
    "tuner.knobs_left_alone": {"knobs": ["lr", "micro_batch"]},
    "tuner.run_ended": {"reason": "finished"},
    "tuner.broken": {},
    "tuner.started": [{"by": "ana (pid 7)", "dry": False}, {"by": "ana (pid 7)", "dry": True}],
    "tuner.stopped": [{}, {"by": "ana (pid 7)"}],
    "tuner.frozen": {"knob": "lr", "by": "ana (pid 7)"},
    "tuner.released": {"knob": "lr", "by": "ana (pid 7)"},
    "tuner.may_change": [
        {"knobs": ["compile", "lr"], "by": "ana (pid 7)"},
        {"knobs": [f"group_{i}_lr" for i in range(14)], "by": "ana (pid 7)"},
    ],
    "tuner.leaves_alone": {"knobs": ["micro_batch"], "why": IN_TRIAL},
    "tuner.in_trial": {"cause": CRASHED},
    "tuner.goes_on": [
        {"cause": RESTARTED},
        {"cause": CRASHED, "in_trial": True, "values": {"micro_batch": 32, "grad_accum": 16}, "missing": []},
        {"cause": RESTARTED, "in_trial": False, "values": {"grad_accum": 16}, "missing": ["micro_batch"]},
    ],
    "tuner.broke": {},
    "daemon.restarted": {},
    "daemon.ends": {},
    "run.crashed": {},
    "run.process_ended": {},
    "wait.run_state": {"state": "paused"},
    "wait.disk": {},
    "wait.straggler": {"rank": 3, "slower": 0.42, "why": STRAGGLER},
    "wait.power_unknown": {},
    "wait.total_power_unknown": {},
    "budget.too_small": {"left_s": 41.7},
    "budget.cautious": {"left_s": 11.7},
    "search.no_knob": {},
    "search.all_left_alone": {"knobs": ["grad_accum", "micro_batch"]},
    "search.limit_unseen": {},
    "search.memory_unseen": {},
    "search.no_remedy": {"verdict": "heat-limited"},
    "search.exhausted": {},
    "memory.unknown": {},
    "memory.unknown_choice": {"knob": "compile", "value": "on"},
    "memory.too_little": {"knob": "compile", "value": "on"},
    "memory.taken": {"share": 0.9125, "limit": 0.9},
    "memory.limit": {"knob": "micro_batch", "value": 1024, "need": 0.973, "limit": 0.92},
    "memory.rare_peaks": {"knob": "micro_batch", "value": 1024, "need": 0.91},
    "power.limit": [{"power_w": 412.4, "limit_w": 400.0}, {"power_w": None, "limit_w": 400.0}],
    "trial.no_clear_limit": {},
    "trial.limit": [
        {"verdict": "launch-bound", "stale": False, "evidence": []},
        {"verdict": "launch-bound", "stale": True, "evidence": [SM_ACTIVE]},
        {"verdict": "data-bound", "stale": False, "evidence": [SM_ACTIVE]},
    ],
    "trial.both": {},
    "trial.room_for": {"knob": "compile"},
    "trial.samples_changed": {"knobs": ["batch_size"], "before": 64.0, "after": 128.0},
    "trial.loss_changed": {"knobs": ["chunks"], "before": 2.31, "after": 4.62},
    "trial.prior_result": {},
    "trial.memory_expected": {"share": 0.81},
    "trial.memory_at_most": {"share": 0.94},
    "trial.again": {"why": _nested("again.unclear")},
    "again.unclear": {},
    "again.farther": {},
    "again.other_knob": {},
    "again.drift": [{"gain": -0.2}, {"gain": 0.31}],
    "memory.taken_by_others": {"size_bytes": 17 << 30},
    "memory.peaks_near_limit": {},
    "trial.ended": [
        ENDED,
        {**ENDED, "detectable": False},
        {**ENDED, "result": "failed", "gain": None, "interval": None, "why": []},
        {**ENDED, "result": "unfinished", "gain": None, "why": [*WHY, CUT_OFF]},
        {**ENDED, "detectable": False, "result": "reverted", "why": [*WHY, *AGAIN, HARMFUL]},
        {**ENDED, "result": "interrupted", "why": [*WHY, *AGAIN, STRAGGLER]},
    ],
    "trial.note": {"text": "memory was free"},
    "trial.effect": {"gain": 0.061, "interval": 0.012},
    "trial.too_few": {},
    "trial.likely": [{"effect": None}, {"effect": _nested("trial.effect", gain=0.5, interval=0.8)}],
    "trial.smaller": [{"effect": None}, {"effect": EFFECT}],
    "trial.harmful": {},
    "trial.unmeasured": {},
    "trial.stalled": {},
    "trial.alloc_retries": {},
    "trial.memory": {"share": 0.975},
    "trial.power": {"power_w": 420.0, "limit_w": 400.0},
    "trial.ignored": {},
    "trial.no_change": {},
    "trial.command_ended": [
        {"stage": "expired", "reason": ""},
        {"stage": "failed", "reason": "micro_batch could not be set to 64: MemoryError"},
    ],
    "trial.user_set": {"knobs": ["grad_accum", "micro_batch"]},
    "trial.left_alone": {"knobs": ["micro_batch"]},
    "trial.disturbed": {"verb": "profile"},
    "trial.load_changed": {"before": 0.12, "after": 0.81},
    "trial.gpu_load_changed": {"before": 0.02, "after": 0.45},
    "trial.gpu_memory_taken": {"size_bytes": 9.5 * 2**30},
    "trial.gpu_memory_freed": {"size_bytes": 9.5 * 2**30},
    "trial.gpu_process_came": {"pid": 4711},
    "trial.gpu_process_went": {"pid": 4711},
    "trial.straggler": {"why": STRAGGLER},
    "trial.run_went_back": {},
    "trial.run_restarted": {},
    "trial.tuner_stopped": {},
    "trial.cut_off": {"cause": RESTARTED},
    "trial.not_declared": {"knobs": ["micro_batch"]},
    "rollback.trial": {},
    "rollback.unfinished": {"cause": RESTARTED},
    "rollback.ended": [{"why": HARMFUL}, {"why": EFFECT}, {"why": LEARNED}],
    "rollback.waits": {"why": [_nested("rollback.trial")], "until": _nested("rollback.once_possible")},
    "rollback.once_declared": {"knobs": ["grad_accum", "micro_batch"]},
    "rollback.once_possible": {},
    "rollback.once_answered": {},
    "rollback.refused": {"tries": 5},
    "rollback.not_declared": {},
    "rollback.not_declared_yet": {"knobs": ["micro_batch"]},
    "rollback.impossible": {"knob": "micro_batch", "value": 32, "why": _nested("restarting", name="ppo")},
    "rollback.user_chose": {"knobs": ["micro_batch", "grad_accum"]},
    "tune.no_live_run": {"run": "nobody12"},
    "tune.off": {"run": "ppo"},
    "tune.away": [{"run": "ppo"}, {"run": "ppo", "host": "gpu00"}],
    "tune.on_already": [{"run": "ppo", "user": "ben"}, {"run": "ppo", "user": ""}],
    "tune.fewer_gpus": {"run": "lm", "ranks": 4, "gpus": 2},
    "tune.energy_of_instance": {"gpu": 3},
    "tune.no_energy_counter": {"gpu": 3, "why": _nested("reading.not_supported")},
    "tune.gpu_shared": {"gpu": 3, "pid": 41_007},
    "tune.no_gpu": {"run": "ppo"},
    "tune.bad_limits": [
        _limits(Limits(memory=1.5)),
        _limits(Limits(power_w=-1.0)),
        _limits(Limits(budget=0.0)),
        _limits(Limits()),  # fits by the rules of this version
    ],
    "tune.no_knobs": {"run": "ppo"},
    "tune.nothing_to_turn": {"run": "ppo"},
    "shift.throughput": [
        {"gain": -0.152, "step": 1204, "cause": _nested("shift.no_cause")},
        {"gain": 0.31, "step": 17, "cause": _nested("shift.not_throttled")},
    ],
    "shift.throttled": {"reason": "thermal slowdown"},
    "shift.not_throttled": {},
    "shift.memory_taken": {"size_bytes": 35 << 30},
    "shift.memory_freed": {"size_bytes": 35 << 30},
    "shift.others_busier": {"before": 0.05, "share": 0.65},
    "shift.others_calmer": {"before": 0.65, "share": 0.05},
    "shift.host_busier": {"before": 0.3, "share": 0.95},
    "shift.host_calmer": {"before": 0.95, "share": 0.3},
    "shift.no_cause": {},
    "shift.no_cause_busy": {"share": 0.99},
}  # fmt: skip
