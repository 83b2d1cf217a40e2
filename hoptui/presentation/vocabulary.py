"""The words and symbols of states, stages, commands and effects, for the command line and the dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hoptui.domain.enumerations import ByValue
from hoptui.domain.knobs import KnobState
from hoptui.domain.targets import Standing
from hoptui.domain.tuning import WORK_PER_JOULE, Measured
from hoptui.presentation import numbers, sentences
from hoptui.protocol.authors import author
from hoptui.protocol.messages import (
    FATE_UNKNOWN,
    HUNG,
    STARTING,
    CommandRecord,
    Event,
    RunState,
    Stage,
    State,
    Vital,
)


class Word(NamedTuple):
    """A symbol of one cell and its word. Both are shown, with or without colour."""

    symbol: str
    text: str


STATES: dict[State, Word] = ByValue(
    {
        "live": Word("●", "live"),
        "busy": Word("◐", "busy"),
        "paused": Word("‖", "paused"),
        "unresponsive": Word("◌", "not answering"),
        "exited": Word("✕", "exited"),
    },
    lambda value: Word("?", value),
)
RESTARTED = Word("↻", "restarted")
PLAYING = Word("▶", "replay")
HALTED = Word("‖", "replay")
BEGINNING = Word("◐", "starting")
"""For a run before its first iteration. Its state is `busy`, which older viewers know."""
HANGING = Word("◔", "hung")
"""For a run without progress for much longer than an iteration takes."""
UNKNOWN_STATE = Word("–", "unknown")

STAGES: dict[Stage, Word] = ByValue(
    {
        "sent": Word("→", "sent"),
        "accepted": Word("✓", "accepted"),
        "scheduled": Word("◷", "scheduled"),
        "applied": Word("●", "applied"),
        "rejected": Word("✕", "rejected"),
        "superseded": Word("»", "superseded"),
        "expired": Word("◌", "expired"),
        "failed": Word("✕", "failed"),
        "reverted": Word("↶", "reverted"),
        "voided": Word("↻", "voided"),
    },
    lambda value: Word("?", value),
)

FATE = Word("?", "unknown")
"""For the stage of a command whose run ended before it said what became of it."""

STANDINGS: dict[Standing, Word] = ByValue(
    {
        "met": Word("✓", "met"),
        "missed": Word("⚠", "missed"),
        "unknown": Word("?", "unknown"),
    },
    lambda value: Word("?", value),
)
"""How a target stands."""

EFFECTS = ByValue({"speed": "speed only", "learning": "changes what is learned"}, str)
COSTS = ByValue(
    {
        "free": "free: a value read inside the step",
        "shape": "a new shape, compiled anew",
        "rebuild": "a rebuild of the model, optimizer or readers",
        "restart": "a restart of the run",
    },
    str,
)

WIDEST = 1.0
"""A wider interval of a change that is not detectable is shown without its number."""
RESTART = "weights of other shapes begin anew, and pending commands are dropped"
"""What a knob of cost `restart` does, for a question."""

NOTICED_S = 1e-3
"""A shorter pause of a run is not reported."""


def took(seconds: float | None) -> str:
    """Return how long a run paused for a command: `took 0.21 s`. Empty if unknown or too short."""
    return f"took {numbers.seconds(seconds)}" if seconds is not None and seconds >= NOTICED_S else ""


def cost(knob: KnobState) -> str:
    """Return the cost of a change: `2.50 s last time; a new shape, compiled anew`.

    The time is how long the run paused for the last change.
    """
    kind = COSTS[knob.spec.cost]
    return f"{numbers.seconds(knob.took_s)} last time; {kind}" if took(knob.took_s) else kind


def change(record: CommandRecord) -> str:
    """Return what was requested: `grad_accum 4 → 8`, `pause`, `profile 20 iterations`.

    If another value was read back, it is added.
    """
    if record.verb == "profile":
        return (
            f"profile {numbers.grouped(record.wanted)} iterations"
            if type(record.wanted) is int
            else "profile"
        )
    if record.verb != "set":
        return record.verb
    before, wanted, effective = numbers.alike(record.before, record.wanted, record.effective)
    asked = f"{numbers.clean(record.knob)} {before} → {wanted}"
    if record.effective is not None and record.effective != record.wanted:
        asked += f" (in effect: {effective})"
    return asked


def stage_name(record: CommandRecord) -> str:
    """Return the name of the stage, as filters and `--json` have it."""
    return FATE.text if record.code == FATE_UNKNOWN else record.stage


def stage_word(record: CommandRecord) -> Word:
    """Return the word for the stage of a command. What became of some that a run had is unknown."""
    return FATE if record.code == FATE_UNKNOWN else STAGES[record.stage]


def stage_text(record: CommandRecord) -> str:
    """Return the stage: `applied at 1 205, took 0.21 s`, `scheduled for 1 205`, `rejected: lr = 2 is out
    of bounds …`."""
    word = stage_word(record).text
    match record.stage:
        case "applied" if record.step is not None:
            word = ", ".join(
                filter(None, (f"applied at {numbers.grouped(record.step)}", took(record.took_s)))
            )
        case "scheduled" if record.step is not None:
            word = f"scheduled for {numbers.grouped(record.step)}"
    note = remark(record)
    return f"{word}: {note}" if note else word


UNSAVED = "not on disk yet"
"""An outcome that would be lost if the daemon and the run were killed now."""


def remark(record: CommandRecord) -> str:
    """Return notes on a command: whether its outcome is on disk, its reason, what followed, and who released
    the knob to the tuner."""
    given = f"{author(record.released)} released it to the tuner" if record.released is not None else ""
    why = sentences.reason(record)
    unsaved = UNSAVED if record.unsaved else ""
    return "; ".join(filter(None, (unsaved, why, followed(record), given)))


def followed(record: CommandRecord) -> str:
    """Return the other knobs that a change moved: `grad_accum 2 → 8 followed`; "" for none."""
    moved = ((numbers.clean(one.knob, 40), *numbers.alike(one.before, one.value)) for one in record.followed)
    changes = ", ".join(f"{knob} {before} → {value}" for knob, before, value in moved)
    return f"{changes} followed" if changes else ""


def sentence(record: CommandRecord) -> str:
    """Return a command as one line: `ana (pid 4121)  grad_accum 4 → 8  applied at 1 205  +6.1 % ± 1.2`."""
    parts = [author(record.origin), change(record), stage_text(record), effect_text(record.measured)]
    return "  ".join(part for part in parts if part)


def happened(event: Event) -> str:
    """Return an event as one line: `checkpoint written`, `tuner: kept grad_accum 4 → 8, +6.1 % ± 1.2`.

    The node that reports it is before it, if that is another one.
    """
    text = sentences.event_text(event)
    where = f"{numbers.clean(event.host, 60)}: " if event.host else ""
    return f"{where}tuner: {text}" if event.kind == "tuner" else f"{where}{text}"


CONTENDED = frozenset(("effect.load_changed", "effect.gpu_shared"))
"""The codes of the remarks that other processes may have caused an effect."""


def effect_text(measured: Measured | None, *, shared: bool = True, brief: bool = False) -> str:
    """Return the effect of a change, "" without one.

    Examples: `+6.1 % ± 1.2`, `no detectable change (± 1.8 %)`, `measuring: 7 of 15 iterations`. While it is
    too early to say that nothing changed: `measuring: 15 of up to 90 iterations`. Where the speed varied so
    much that even twice of it is not told from noise: `too uneven to measure`. If several changes share
    the effect and `shared` is set, that is added: `+6.1 % ± 1.2, together with lr`. `brief` omits the
    interval: `+6.1 %`, `measuring`. An effect that would be wrong without its note is then "". An effect that
    may come from other processes begins with `unclear`.
    """
    if measured is None:
        return ""
    note = sentences.remarks(measured)
    if brief and unclear(measured):
        return "unclear"
    if brief and note:
        return ""
    if measured.gain is None or measured.interval is None:
        count = numbers.counted(measured.iterations, "iteration")
        return note or ("measuring" if brief else f"measuring: {count}")
    interval = numbers.percent(measured.interval, decimals=1)
    if measured.detectable:
        gain = numbers.percent(measured.gain, signed=True, decimals=1)
        found = gain if brief else f"{gain} {_certain(measured.gain, measured.interval)}"
    elif undecided(measured):
        count = f"{measured.iterations} of up to {numbers.counted(measured.until, 'iteration')}"
        found = "measuring" if brief else f"measuring: {count}"
    elif measured.interval > WIDEST:
        found = "too uneven" if brief else "too uneven to measure (± over 100 %)"
    else:
        found = "no detectable change" if brief else f"no detectable change (± {interval})"
    found = f"unclear: {found}" if unclear(measured) else found
    return f"{found}, {note}" if note and shared else found


def _certain(gain: float, interval: float) -> str:
    """Return what follows a gain: `± 1.2`. That of a gain with a wider interval is `(at least +80.0 %)`.

    An interval is wider above the gain than below, and ± is the wider side.
    """
    if interval < abs(gain):
        return f"± {numbers.percent(interval, decimals=1).removesuffix(' %')}"
    least = (1 + gain) ** 2 / (1 + gain + interval) - 1
    return f"(at least {numbers.percent(least, signed=True, decimals=1)})"


def undecided(measured: Measured) -> bool:
    """Return whether it is too early to say that a change has no effect: its measurement goes on."""
    return not (measured.settled or measured.detectable) and measured.iterations < measured.until


def unclear(measured: Measured) -> bool:
    """Return whether other processes may have caused the effect, so that it is no gain of the knob."""
    return measured.gain is not None and any(remark.code in CONTENDED for remark in measured.remarks)


def contended(measured: Measured | None) -> bool | None:
    """Return whether other processes were seen to contend for the CPUs or the GPUs during a measurement.

    That is known once the effect is final: before, and without an effect, it is None.
    """
    if measured is None or measured.gain is None:
        return None
    return unclear(measured) or (False if measured.settled else None)


def unit_of(metric: str, units: Mapping[str, str]) -> str:
    """Return the unit of a metric: from `units`, else from its name: `env_steps_per_s` is in `env
    steps/s`."""
    if metric == WORK_PER_JOULE:
        return "units per joule"
    rate = f"{metric.removesuffix('_per_s').replace('_', ' ')}/s" if metric.endswith("_per_s") else metric
    return numbers.clean(units.get(metric) or rate, 24)


def speeds(measured: Measured | None, units: Mapping[str, str]) -> str:
    """Return the throughput before and after a change: `512 k → 543 k env steps/s`; `–` for an unknown one.

    `units` are the run's. The result is empty if both are unknown.
    """
    if measured is None or (measured.before is None and measured.after is None):
        return ""
    unit = unit_of(measured.metric, units)
    return f"{numbers.si(measured.before)} → {numbers.si(measured.after)} {unit}".rstrip()


def starting(vital: Vital | None) -> bool:
    """Return whether a run has not begun its first iteration. It may still declare knobs."""
    return vital is not None and vital.because is not None and vital.because.code == STARTING


def hung(vital: Vital | None) -> bool:
    """Return whether a run makes no progress for much longer than an iteration takes."""
    return vital is not None and vital.because is not None and vital.because.code == HUNG


def state_name(vital: Vital) -> str:
    """Return the state of a run as `--json` shows it."""
    if hung(vital):
        return "hung"
    return "starting" if starting(vital) else vital.state


def iteration(vital: Vital | None) -> int | None:
    """Return the iteration in progress, None if it is unknown: the loop may pass no boundaries, and log rows
    without numbers."""
    return None if vital is None or (vital.logs_only and vital.iteration_s is None) else vital.step


def lost_metrics(vital: Vital | None, left_out: int) -> list[str]:
    """Return what is not shown of the metrics: `3 logged values were no numbers`.

    `left_out` is the number of metrics that the viewer does not keep.
    """
    bad = vital.bad_values if vital is not None else 0
    found = [f"{numbers.counted(bad, 'logged value')} {'was no number' if bad == 1 else 'were no numbers'}"]
    more = f"{numbers.counted(left_out, 'more metric')}: hoptui export has all"
    return [*(found if bad else ()), *([more] if left_out else ())]


def state_word(vital: Vital) -> Word:
    """Return the word for the state of a run."""
    if hung(vital):
        return HANGING
    return BEGINNING if starting(vital) else STATES[vital.state]


def state_named(name: str | None) -> Word:
    """Return the word for what `state_name` returned; None is an unknown state."""
    if name is None:
        return UNKNOWN_STATE
    return {"starting": BEGINNING, "hung": HANGING}.get(name) or STATES[name]  # type: ignore[index]


def state_text(vital: Vital | None, run: RunState) -> str:
    """Return the state of a run with its reason: `live`, `busy: in checkpoint for 2 m 20 s`, `exited:
    finished`.

    The symbol `STATES[vital.state].symbol` is not included: it has its own column or colour.
    """
    if run.exit_reason or (vital is not None and vital.state == "exited"):
        why = "" if run.exit_reason == "exited" else run.exit_reason  # the state says so already
        detail = numbers.clean(run.exit_detail, 80)
        if detail.startswith("by "):
            why, detail = f"{why} {detail}", ""
        return ": ".join(part for part in (STATES["exited"].text, numbers.clean(why, 160), detail) if part)
    if vital is None:
        return UNKNOWN_STATE.text
    if starting(vital):
        return BEGINNING.text
    if hung(vital):
        return f"{HANGING.text}: {numbers.clean(sentences.text_of(vital.because), 200)}"
    word = STATES[vital.state].text
    why = numbers.clean(sentences.text_of(vital.because), 80)
    match vital.state:
        case "live":
            return word
        case "busy" if not why and vital.phase:
            why = f"in {numbers.clean(vital.phase, 40)} for {numbers.duration(vital.phase_age_s)}"
        case "paused" if vital.paused_left_s > 0:
            why = f"resumes in {numbers.duration(vital.paused_left_s)}"
        case "unresponsive" if not why and vital.pulse_age_s is not None:
            why = f"no pulse for {numbers.duration(vital.pulse_age_s)}"
    return f"{word}: {why}" if why else word


def restart(epoch: int) -> str:
    """Return `restart 1` for the second process of a run, "" for the first. `epoch` counts from 1."""
    return f"restart {epoch - 1}" if epoch > 1 else ""
