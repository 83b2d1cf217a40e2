"""What the tuner does, why, and how its trials end; changes of the throughput that no command made."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hoptui.domain.facts import nested
from hoptui.domain.knobs import shown
from hoptui.domain.tuning import Limits, check_limits
from hoptui.presentation import numbers
from hoptui.presentation.sentences.template import Entry, Fields, Write, changes, facts

MOST_NAMED = 12
"""The number of knobs that an event names."""
MOST_WORDS = 20
"""The number of words of a message."""


def _effect(gain: float, interval: float) -> str:
    """`+6.1 % ± 1.2`."""
    return f"{100 * gain:+.1f} % ± {100 * interval:.1f}"


def _kept_in_doubt(text: str) -> Entry:
    """Of a trial that is kept without a sure gain: with the effect, where the trial shows none."""

    def write_it(fields: Fields, write: Write) -> str:
        effect = nested(fields["effect"])
        return text if effect is None else f"{text}: {write(effect)}"

    return write_it


def _limit(fields: Fields, write: Write) -> str:
    verb = "was" if fields["stale"] else "is"
    before = " before the last change" if fields["stale"] else ""
    evidence = facts(fields["evidence"], write)
    return ": ".join(filter(None, (f"the run {verb} {fields['verdict']}{before}", evidence)))


def _drift(fields: Fields, _: Write) -> str:
    gain = fields["gain"]
    pace = "faster" if gain > 0 else "slower"
    return f"the run is {numbers.percent(abs(gain))} {pace} than when it was reverted"


def _may_change(fields: Fields, _: Write) -> str:
    """Who did it comes first, because a narrow line is cut at its end."""
    named, others = fields["knobs"][:MOST_NAMED], len(fields["knobs"][MOST_NAMED:])
    more = f" and {numbers.counted(others, 'other')}" if others else ""
    return f"released by {fields['by']}: {', '.join(named)}{more}"


def _words(text: str) -> int:
    """The number of words. Numbers and signs are none."""
    return sum(any(c.isalpha() for c in word) for word in text.split())


def _ended(fields: Fields, write: Write) -> str:
    """`kept micro_batch 32 → 64, +6.1 % ± 1.2: memory was free`.

    If that is too long, the reasons for the trial are left out from the front. How it ended is the last one.
    """
    gain, interval = fields["gain"], fields["interval"]
    figure = ""
    if gain is not None and interval is not None:
        none = f"no detectable change (± {100 * interval:.1f} %)"
        figure = f", {_effect(gain, interval) if fields['detectable'] else none}"
    head = f"{fields['result']} {changes(fields['changes'])}{figure}"
    for first in range(len(fields["why"])):
        why = facts(fields["why"][first:], write)
        if first == len(fields["why"]) - 1 or _words(head) + _words(why) <= MOST_WORDS:
            return f"{head}: {why}" if why else head
    return head


def _power(fields: Fields, _: Write) -> str:
    drawn = "unknown" if fields["power_w"] is None else f"{fields['power_w']:.0f} W"
    return f"the power drawn is {drawn}, the limit is {fields['limit_w']:.0f} W"


def _goes_on(fields: Fields, write: Write) -> str:
    """After the daemon or the run has restarted; the rest where a trial had to be reverted first."""
    cause = nested(fields["cause"])
    text = f"continues: {write(cause)}" if cause is not None else "continues"
    if fields.get("in_trial"):
        text = f"{text} in the middle of a trial"
    if values := fields.get("values"):
        text = f"{text}; in effect: {', '.join(f'{knob} {shown(value)}' for knob, value in values.items())}"
    if missing := fields.get("missing"):
        text = f"{text}; left alone, as the script does not declare it: {', '.join(missing)}"
    return text


def _away(fields: Fields, _: Write) -> str:
    """`rank 0 of lm is on gpu00: tune it there`."""
    host = numbers.clean(str(fields.get("host") or ""), 60) or "another node"
    return f"rank 0 of {numbers.clean(str(fields['run']), 40)} is on {host}: tune it there"


def _on_already(fields: Fields, _: Write) -> str:
    by = f", started by {fields['user']}" if fields["user"] else ""
    return f"{fields['run']} is being tuned already{by}: stop that first"


def _bad_limits(fields: Fields, _: Write) -> str:
    """The sentence of the check that the daemon has made."""
    try:
        check_limits(msgspec.convert(fields["limits"], Limits))
    except msgspec.ValidationError:
        raise
    except ValueError as error:
        return str(error)
    return "the limits cannot be met"


def _throughput(fields: Fields, write: Write) -> str:
    change = f"throughput {100 * fields['gain']:+.0f} % since iteration {fields['step']}"
    cause = nested(fields["cause"])
    return f"{change}, and no knob was changed: {write(cause) if cause is not None else numbers.UNKNOWN}"


SENTENCES: Mapping[str, Entry] = {
    # what the tuner does now
    "tuner.begins": "starts",
    "tuner.measures_baseline": "measures the current speed: {iterations} iterations to go",
    "tuner.tries": "tries {changes:changes}",
    "tuner.sets": "waits until {changes:changes} is in effect",
    "tuner.measures": "measures {changes:changes}: {iterations} iterations",
    "tuner.would_set": "would set {changes:changes}: {why:facts}",
    "tuner.not_now": "not now: {why:fact}",
    "tuner.nothing_tried": "done: {why:fact}",
    "tuner.knobs_left_alone": "left alone: {knobs:names} (release a knob to let the tuner change it)",
    "tuner.run_ended": "the run's process has ended: {reason}",
    "tuner.broken": "stopped by an internal error: see the daemon's log",
    # what happens to it
    "tuner.started": lambda fields, _: f"started by {fields['by']}{', dry run' if fields['dry'] else ''}",
    "tuner.stopped": lambda fields, _: f"stopped by {fields['by']}" if "by" in fields else "stopped",
    "tuner.frozen": "leaves {knob} alone: {by} asked for it",
    "tuner.released": "may change {knob}: {by} asked for it",
    "tuner.may_change": _may_change,
    "tuner.leaves_alone": "leaves {knobs:names} alone: {why:fact}",
    "tuner.in_trial": "{cause:fact} in the middle of a trial",
    "tuner.goes_on": _goes_on,
    "tuner.broke": "the tuner has stopped: internal error",
    "daemon.restarted": "the daemon was restarted",
    "daemon.ends": "the daemon ends",
    "run.crashed": "the run crashed",
    "run.process_ended": "the run's process ended",
    # why nothing is tried now
    "wait.run_state": "the run is {state}",
    "wait.disk": "the trial is not on disk yet; without that, it could not be undone after a crash",
    "wait.straggler": "rank {rank} is about {slower:percent} slower: {why:fact}; tuning waits",
    "wait.power_unknown": "the power that the GPUs draw is unknown",
    "wait.total_power_unknown": "the total power of the run's GPUs is unknown",
    "budget.too_small": "the next trial may exceed the budget ({left_s:.0f} s left); --budget allows more",
    "budget.cautious": (
        "until a change is kept, only a quarter of the budget may be spent ({left_s:.0f} s left); "
        "--budget allows more"
    ),
    "search.no_knob": "the run has no speed knob, and no other is allowed (--allow)",
    "search.all_left_alone": (
        "all its knobs are left alone: {knobs:names} (release a knob to let the tuner change it)"
    ),
    "search.limit_unseen": "the bottleneck with the current values is not known yet",
    "search.memory_unseen": "the memory use with the current values is not known yet",
    "search.no_remedy": "the run is {verdict}; none of its knobs helps against that",
    "search.exhausted": "nothing is left to try",
    "memory.unknown": "the memory use of the run is unknown, so no size is raised",
    "memory.unknown_choice": "the memory use of the run is unknown, so {knob} {value:value} is not tried",
    "memory.too_little": "too little free memory to try {knob} {value:value}",
    "memory.taken": "{share:percent} of the memory is used already; the limit is {limit:percent}",
    "memory.limit": (
        "{knob} {value:value} may take {need:percent} of the memory, the limit is {limit:percent}"
    ),
    "memory.rare_peaks": "{knob} {value:value} takes {need:percent} of the memory; short peaks may exceed it",
    "power.limit": _power,
    # why something is tried
    "trial.no_clear_limit": "bottleneck unknown; trying the next value",
    "trial.limit": _limit,
    "trial.samples_changed": (
        "{knobs:names} changes the work of an iteration ({before:.4g} → {after:.4g}), "
        "not only the speed: left alone"
    ),
    "trial.loss_changed": (
        "{knobs:names} changes the loss ({before:.3g} → {after:.3g}), not only the speed: left alone"
    ),
    "trial.room_for": "a smaller size leaves enough memory for {knob}",
    "trial.both": "both together: each may hide the gain of the other",
    "trial.prior_result": "the best values of an earlier run of this kind",
    "trial.memory_expected": "expected memory {share:percent}",
    "trial.memory_at_most": "memory of at most {share:percent}, if it grows no faster than the size",
    "trial.again": "tried again: {why:fact}",
    "again.unclear": "the first measurement was not clear",
    "again.farther": "a smaller step was not clear",
    "again.other_knob": "another knob has changed since",
    "again.drift": _drift,
    "memory.taken_by_others": "other processes took {size_bytes:gib} of the memory: the size is reduced",
    "memory.peaks_near_limit": "short peaks come near the memory limit: the size is reduced",
    # how a trial ends
    "trial.ended": _ended,
    "trial.note": "{text}",
    "trial.effect": lambda fields, _: _effect(fields["gain"], fields["interval"]),
    "trial.too_few": "too few iterations to measure the effect",
    "trial.likely": _kept_in_doubt("probably a gain"),
    "trial.smaller": _kept_in_doubt("no certain gain; kept because it is smaller"),
    "trial.harmful": "less than half as fast",
    "trial.unmeasured": "too few iterations finished in the trial",
    "trial.stalled": "almost no iteration finished in the trial",
    "trial.alloc_retries": "GPU memory was nearly full: an allocation had to be repeated",
    "trial.memory": "{share:percent} of the memory is taken",
    "trial.power": "it draws {power_w:.0f} W, the limit is {limit_w:.0f} W",
    "trial.ignored": "the run kept its previous values",
    "trial.no_change": "no change: the run takes it for the value before",
    "trial.command_ended": lambda fields, _: fields["reason"] or fields["stage"],
    "trial.user_set": "a user set {knobs:names}",
    "trial.left_alone": "a user asked to leave {knobs:names} alone",
    "trial.disturbed": "a user's {verb} disturbed the measurement",
    "trial.load_changed": (
        "the load of other processes changed: {before:percent} → {after:percent} of the CPUs"
    ),
    "trial.gpu_load_changed": (
        "the load of other processes on the GPU changed: {before:percent} → {after:percent} of its time"
    ),
    "trial.gpu_memory_taken": "other processes took {size_bytes:gib} of the GPU's memory",
    "trial.gpu_memory_freed": "other processes freed {size_bytes:gib} of the GPU's memory",
    "trial.gpu_process_came": "another process began to use the GPU (pid {pid})",
    "trial.gpu_process_went": "another process ceased to use the GPU (pid {pid})",
    "trial.straggler": "a rank became slow: {why:fact}",
    "trial.run_went_back": "the run went back to an earlier iteration",
    "trial.run_restarted": "the run was restarted",
    "trial.tuner_stopped": "the tuner was stopped",
    "trial.cut_off": "{cause:fact} in the middle of it",
    "trial.not_declared": "the restarted script has not declared {knobs:names}",
    # the way back from a trial
    "rollback.trial": "back to the values before the trial",
    "rollback.unfinished": "back to the values before the trial: {cause:fact}",
    "rollback.ended": "reverts the trial: {why:fact}",
    "rollback.waits": "{why:facts}, {until:fact}",
    "rollback.once_declared": "as soon as the script has declared {knobs:names}",
    "rollback.once_possible": "as soon as it can be set",
    "rollback.once_answered": "as soon as the change of a user has ended",
    "rollback.refused": "refused {tries} times, so it keeps its value and is left alone",
    "rollback.not_declared": "the script does not declare it any more, so it is left alone",
    "rollback.not_declared_yet": (
        "{knobs:names} may still have the tried value: the script has not declared it yet"
    ),
    "rollback.impossible": "{knob} could not be reverted to {value:value}: {why:fact}",
    "rollback.user_chose": "does not revert {knobs:names}: a user has just set it",
    # refused requests
    "tune.no_live_run": "no live run has the id {run:quoted}",
    "tune.off": "{run} is not being tuned",
    "tune.away": _away,
    "tune.on_already": _on_already,
    "tune.fewer_gpus": (
        "energy cannot be measured: the {ranks} ranks of {run} use {gpus} GPU(s) of this machine"
    ),
    "tune.energy_of_instance": "energy cannot be measured for a part of a GPU: GPU {gpu} is in MIG mode",
    "tune.no_energy_counter": "energy cannot be measured: GPU {gpu} does not report it ({why:fact})",
    "tune.gpu_shared": "energy cannot be measured: another process computes on GPU {gpu} (pid {pid})",
    "tune.no_gpu": "{run} uses no GPU, so its power and energy cannot be measured",
    "tune.bad_limits": _bad_limits,
    "tune.no_knobs": "{run} has declared no knobs yet: there is nothing to tune",
    "tune.nothing_to_turn": (
        "{run} has no speed knob, and no other is allowed (--allow): there is nothing to tune"
    ),
    # changes of the throughput without a command
    "shift.throughput": _throughput,
    "shift.throttled": "the clocks are held down ({reason})",
    "shift.not_throttled": "the clocks are free again",
    "shift.memory_taken": "another process has taken {size_bytes:gib} of its memory",
    "shift.memory_freed": "another process has freed {size_bytes:gib} of memory",
    "shift.others_busier": "other processes take more of the CPUs ({before:percent} → {share:percent})",
    "shift.others_calmer": "other processes take less of the CPUs ({before:percent} → {share:percent})",
    "shift.host_busier": "the host is busier (CPUs {before:percent} → {share:percent})",
    "shift.host_calmer": "the host is less busy (CPUs {before:percent} → {share:percent})",
    "shift.no_cause": "no cause is seen on this node",
    "shift.no_cause_busy": (
        "no cause is seen on this node, whose CPUs are at work for {share:percent} of the time"
    ),
}
