"""The events, commands and run of a recording at a position. Pure: records and a stamp in, records out.

A recording keeps only the newest state of each command and of the run. Earlier states follow from their
stamps. A command was requested at `t` and got its final stage at `settled`. A knob had the value that the
last change before the position left.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from msgspec import structs

from hoptui.domain.diagnosis import VERDICTS, Diagnosis
from hoptui.domain.facts import fact, nested
from hoptui.domain.knobs import KnobState, KnobValue
from hoptui.domain.targets import Standing, Target, TargetState
from hoptui.domain.tuning import Measured
from hoptui.protocol.authors import author
from hoptui.protocol.messages import FINAL, CommandRecord, Event, RunState, as_asked

LEFT_A_VALUE = ("applied", "failed", "reverted")  # stages in which a knob's value was read back
ALIVE = ("started", "restarted", "reconnected")
BEGUN = ("started", "restarted")
MOST_EVENTS = 2000


class Chronicle:
    """A run's events and commands in order of time, and the run at a position. Stamps are the recording's.

    `state` is the last known run, `end` the recording's last stamp. A run that ended without an event ended
    there. `moments` are the rising stamps at which anything here changes.
    """

    def __init__(
        self, state: RunState, events: Iterable[Event], commands: Iterable[CommandRecord], end: int
    ) -> None:
        self.state = state
        self.events = sorted(events, key=lambda event: event.t)
        self.commands = sorted(commands, key=lambda record: record.t)
        self._end = end
        self._event_times = [event.t for event in self.events]
        stamps = {
            *self._event_times,
            *(c.t for c in self.commands),
            *(_final_t(c) or c.t for c in self.commands),
        }
        self.moments: tuple[int, ...] = tuple(sorted({*stamps, end}))
        self._life = [e for e in self.events if e.run == state.run and e.kind in (*ALIVE, "exited")]
        self._target_events = [e for e in self.events if e.run == state.run and e.kind == "target"]
        self._verdict_events = [
            e for e in self.events if e.run == state.run and e.kind in ("diagnosis", *BEGUN)
        ]

    def events_at(self, t: int) -> Sequence[Event]:
        """Return the newest events up to `t`, newest last."""
        count = bisect_right(self._event_times, t)
        return self.events[max(0, count - MOST_EVENTS) : count]

    def commands_at(self, t: int, step: int) -> dict[str, CommandRecord]:
        """Return the commands requested up to `t` as they were then, by id. `step` is the iteration at
        `t`."""
        return {c.id: command_as_of(c, t, step) for c in self.commands if c.t <= t}

    def measuring(self, t: int, step: int) -> bool:
        """Return whether an effect was still being measured at `t`. It then changes with every iteration."""
        return any(c.measured is not None and c.t <= t and not _is_measured(c, step) for c in self.commands)

    def run_at(self, t: int) -> RunState:
        """Return the run at `t`: its epoch, knobs, start and end. `can` is empty: a recording takes no
        commands."""
        state, ended = self.state, self._ended_at(t)
        later = sum(e.kind == "restarted" and e.t > t for e in self._life)
        epoch = max(1, state.epoch - later)
        began = [e for e in self._life if e.kind in BEGUN]
        so_far = [e for e in began if e.t <= t]
        started = so_far[-1].wall if so_far else began[0].wall if later and began else state.started_wall
        return structs.replace(
            state,
            epoch=epoch,
            started_wall=started,
            knobs=tuple(knob_as_of(knob, self.commands, t, epoch) for knob in state.knobs),
            can=(),
            diagnosis=self._diagnosis_at(t),
            # before the end, events and commands describe the tuner
            tuner=state.tuner if t >= self._end else None,
            targets=state.targets if t >= self._end else self._targets_at(t),
            exit_reason=ended.exit_reason if ended else "",
            exit_detail=ended.exit_detail if ended else "",
            exited_wall=ended.exited_wall if ended else 0.0,
        )

    def paused_at(self, t: int) -> int | None:
        """Return the stamp of the last pause that no command had ended by `t`, None without one."""
        done = (c for c in self.commands if c.stage == "applied" and c.verb in ("pause", "resume"))
        last = max((c for c in done if _ended_by(c, t)), key=_final_t, default=None)
        return _final_t(last) if last is not None and last.verb == "pause" else None

    def _diagnosis_at(self, t: int) -> Diagnosis | None:
        """Return the last verdict of the run's process at `t`. Only the very last one has a confidence.

        An unchanged verdict is not recorded again. So after a change of a knob it is stale: what the run was
        limited by until then.
        """
        newest = None
        for event in self._verdict_events:
            if event.t > t:
                break
            newest = diagnosis_of(event) if event.kind == "diagnosis" else None
        last = self.state.diagnosis
        if newest is None:
            return None
        if t < self._end or last is None or last.verdict != newest.verdict:
            changed = any(
                c.knob and c.stage in LEFT_A_VALUE and newest.t < _final_t(c) <= t for c in self.commands
            )
            return structs.replace(newest, stale=changed)
        # an older recording has only text
        return last if last.facts else structs.replace(last, facts=newest.facts)

    def _targets_at(self, t: int) -> tuple[TargetState, ...]:
        """Return the targets at `t`. One that was met from the start has no event that says so."""
        found: dict[tuple[str, str], TargetState] = {}
        for event in self._target_events:
            if event.t > t:
                break
            state = target_of(event)
            if state is None:
                continue
            key = (state.target.reading, state.target.side)
            if event.code == "target.removed":
                found.pop(key, None)
            else:
                found[key] = state
        return tuple(found.values())

    def _ended_at(self, t: int) -> RunState | None:
        """Return the run with its end, if it had ended by `t`."""
        so_far = [e for e in self._life if e.t <= t]
        exits = [e for e in self._life if e.kind == "exited"]
        if so_far and so_far[-1].kind == "exited":
            event = so_far[-1]
            if event is exits[-1] and self.state.exit_reason:
                return self.state
            reason, detail = _ending(event)
            return structs.replace(self.state, exit_reason=reason, exit_detail=detail, exited_wall=event.wall)
        unseen = not self._life or self._life[-1].kind != "exited"
        return self.state if unseen and self.state.exit_reason and t >= self._end else None


def diagnosis_of(event: Event) -> Diagnosis:
    """Return the diagnosis of an event of kind `diagnosis`.

    An older recording has it as a sentence: the verdict, a colon and the evidence.
    """
    if event.code:
        found = event.fields.get("facts")
        listed = map(nested, found if isinstance(found, list | tuple) else ())
        facts = tuple(each for each in listed if each is not None)
        return Diagnosis(verdict=str(event.fields.get("verdict", "unknown")), facts=facts, t=event.t)
    verdict, _, evidence = event.text.partition(": ")
    if verdict not in VERDICTS:
        return Diagnosis(facts=(fact("diagnosis.text", text=event.text),), t=event.t)
    figures = tuple(fact("diagnosis.text", text=text) for text in evidence.split("; ") if text)
    return Diagnosis(verdict=verdict, facts=figures, t=event.t)


TARGET_STANDINGS: dict[str, Standing] = {"target.missed": "missed", "target.met": "met"}


def target_of(event: Event) -> TargetState | None:
    """Return the target that an event is about, as it left it; None if its fields do not fit."""
    try:
        target = msgspec.convert(event.fields["target"], Target, strict=False)
        mean = event.fields.get("mean")
        seconds = float(event.fields.get("seconds", 0.0))
        return TargetState(
            target=target,
            standing=TARGET_STANDINGS.get(event.code, "unknown"),
            mean=None if mean is None else float(mean),
            seconds=seconds,
            t=event.t,
            since=event.t,
        )
    except (msgspec.ValidationError, KeyError, TypeError, ValueError):
        return None


def _ending(event: Event) -> tuple[str, str]:
    """Return why the run ended, and the detail. An older recording has both in a sentence."""
    if event.code:
        return str(event.fields.get("reason", "")), str(event.fields.get("detail", ""))
    reason, colon, detail = event.text.partition(": ")
    if not colon:
        reason, _, detail = event.text.partition(" ")
    return reason, detail


def command_as_of(record: CommandRecord, t: int, step: int) -> CommandRecord:
    """Return a command as it was at `t`, in iteration `step`.

    Before its final stage it is in flight, and its effect is included only once it was measured. A run
    reports the iteration of a change as soon as it accepts it, so a command with a step is `scheduled`.
    """
    if record.stage in FINAL and not _ended_by(record, t):
        scheduled = record.step is not None and record.stage in LEFT_A_VALUE
        return structs.replace(
            record,
            stage="scheduled" if scheduled else "sent",
            step=record.step if scheduled else None,
            effective=None,
            version=None,
            code="",
            reason="",
            settled=0,
            measured=None,
            followed=(),
        )
    if record.measured is not None and not _is_measured(record, step):
        so_far = max(0, step - (record.step or step))
        return structs.replace(record, measured=Measured(metric=record.measured.metric, iterations=so_far))
    return record


def knob_as_of(knob: KnobState, commands: Sequence[CommandRecord], t: int, epoch: int) -> KnobState:
    """Return a knob with its value at `t`.

    The value is what the last change before `t` left, else what the first later change found, else the last
    known one. A restarted run declares its knobs again, so changes of its own epoch take precedence.
    """
    changes = sorted((left for c in commands if (left := _left(c, knob.spec.name))), key=lambda one: one.t)
    own = [one for one in changes if one.record.epoch == epoch]
    for known in (own, changes):
        before = [one for one in known if one.t <= t]
        after = [one for one in known if one.t > t]
        if before:
            asked = _as_set(knob, before, after)
            return structs.replace(asked, value=before[-1].value, in_effect=before[-1].in_effect)
        if after and after[0].before is not None:
            return structs.replace(_as_set(knob, before, after), value=after[0].before, in_effect=True)
    return knob


class _Left(NamedTuple):
    """The value that a command left, and the one before. `follows` if the command was for another knob."""

    record: CommandRecord
    before: KnobValue | None
    value: KnobValue
    follows: bool = False

    @property
    def t(self) -> int:
        return _final_t(self.record)

    @property
    def in_effect(self) -> bool:
        return self.follows or as_asked(self.record)


def _left(record: CommandRecord, knob: str) -> _Left | None:
    """Return what a command did to a knob, None for nothing."""
    if record.verb != "set" or record.stage not in LEFT_A_VALUE:
        return None
    if record.knob == knob:
        return None if record.effective is None else _Left(record, record.before, record.effective)
    found = next((change for change in record.followed if change.knob == knob), None)
    return None if found is None else _Left(record, found.before, found.value, follows=True)


def _as_set(knob: KnobState, before: Sequence[_Left], after: Sequence[_Left]) -> KnobState:
    """Return a knob with the author, version and duration of the last command for it among `before`."""
    past = [one.record for one in before if not one.follows]
    later = [one.record for one in after if not one.follows]
    if past:
        last = past[-1]
        took = [record.took_s for record in past if record.stage == "applied"]
        return structs.replace(
            knob,
            version=last.version if last.version is not None else knob.version,
            by=author(last.origin) if last.stage == "applied" else "",
            took_s=took[-1] if took else None,
        )
    if later:
        return structs.replace(knob, version=max(0, (later[0].version or 0) - 1), by="", took_s=None)
    return knob


def _final_t(record: CommandRecord) -> int:
    """Return when a command got its final stage. A command that was refused at once got it at `t`."""
    return record.settled or record.t


def _ended_by(record: CommandRecord, t: int) -> bool:
    return record.stage in FINAL and _final_t(record) <= t


def _is_measured(record: CommandRecord, step: int) -> bool:
    """Return whether all iterations over which the effect was measured had passed by `step`."""
    measured = record.measured
    return measured is None or record.step is None or step >= record.step + measured.iterations
