"""The end of a trial that nobody watched: the daemon was killed in it, or the run crashed and came back. No I/O.

What was tried is told by the recording, what is in effect by the run itself. The values of before the trial are set again, unless
a person has chosen any of them otherwise meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from hoptui.domain.knobs import KnobState
from hoptui.domain.tuning import Change, Trial, TunerState
from hoptui.protocol.messages import FINAL, CommandRecord
from hoptui.tuner.trial.overrides import ASKED
from hoptui.tuner.trial.trial import figured

PATIENCE_NS, BOUNDARIES = 10_000_000_000, 2
"""So long after the run has been heard again, and up to so many iterations on, it may still carry out what it was sent before: of an
iteration that is begun nobody knows whether what was sent came first."""
DECLARED_NS = 60_000_000_000
"""So long it may still declare a knob of the trial: some are declared one by one, while the run sets itself up."""
AGAIN_NS = 5_000_000_000
TRIES = 3
"""How often it is tried to set a value back, and after how long again."""


def left_off(state: TunerState, cause: str) -> TunerState:
    """A tuner that was cut off, as it goes on: a trial that was running is told as unfinished."""
    tried = state.tried
    if state.trial is not None:
        text = "; ".join(filter(None, (state.trial.text, f"{cause} in the middle of it")))
        ended = structs.replace(state.trial, result="unfinished", measured=figured(state.trial), text=text)
        tried = (*tried, settled(ended))
    return structs.replace(state, trial=None, next=(), tried=tried, stand="waiting", text=cause)


def settled(ended: Trial) -> Trial:
    """An ended trial with its figure said to be the last, as the history of its commands has it: nothing is measured any more."""
    found = ended.measured
    if found is None or found.settled:
        return ended
    return structs.replace(ended, measured=structs.replace(found, settled=True))


def to_undo(state: TunerState) -> Trial | None:
    """The trial that a tuner was cut off in, or on the way back from: its own last, unless that was kept."""
    last = state.trial if state.trial is not None else state.tried[-1] if state.tried else None
    return None if last is None or last.result == "kept" or last.t < state.started else last


class Undoing:
    """The way back from a trial. `done` once nothing of it is left to undo, or `stuck` is what could not be undone, and of that
    `missing` the knobs that the run has not declared."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.done = False
        self.stuck: tuple[Change, ...] = ()
        self.missing: tuple[str, ...] = ()
        self._heard = 0
        self._step = 0  # that it was in then
        self._ids: frozenset[str] = frozenset()
        self._tries = 0
        self._at = 0

    def look(
        self, t: int, knobs: Sequence[KnobState], records: Sequence[CommandRecord], step: int
    ) -> tuple[Change, ...]:
        """What to set now, given the knobs of the run, its commands and the iteration it is in; `sent` says that it was."""
        if not self._heard:
            self._heard, self._step = t, step
        declared = {knob.spec.name for knob in knobs}
        missing = tuple(change for change in self.trial.changes if change.knob not in declared)
        waits = bool(missing) and t - self._heard < DECLARED_NS
        if waits or self._open(records, step, t - self._heard):
            return ()
        left = way_back(self.trial, knobs, records)
        coming = any(r.id in self._ids and r.stage not in FINAL for r in records)
        if not left or (self._tries >= TRIES and not coming):
            self.done, self.stuck = True, left + missing
            self.missing = tuple(change.knob for change in missing)
            return ()
        return () if coming or t < self._at else left

    def sent(self, ids: Mapping[str, str], t: int) -> None:
        """The changes went out as these commands, by knob."""
        self._ids, self._tries, self._at = frozenset(ids.values()), self._tries + 1, t + AGAIN_NS

    def _open(self, records: Sequence[CommandRecord], step: int, heard_ns: int) -> bool:
        """Whether the run may still carry out a change of the trial, of which this daemon has not heard the end."""
        unasked = heard_ns < PATIENCE_NS or step < self._step + BOUNDARIES
        theirs = (r for r in records if r.origin.kind == "tuner" and r.id not in self._ids)
        pending = [r for r in theirs if r.t >= self.trial.t and r.stage not in FINAL]
        return any(r.step >= step if r.step is not None else unasked for r in pending)


def way_back(
    trial: Trial, knobs: Sequence[KnobState], records: Sequence[CommandRecord], *, coming: bool = False
) -> tuple[Change, ...]:
    """The changes that undo what of a trial is in effect still, as it was asked for or as it was read back.

    None at all where a person has chosen any of its knobs since: one that follows another would take that along. `coming` is for where
    nobody waits for what is on its way: what will be in effect is undone like what is, and what a person has just sent is chosen.
    """
    since = [r for r in records if r.verb == "set" and r.t >= trial.t]
    own = [r for r in since if r.stage == "applied" and r.origin.kind == "tuner"]
    moved = {c.knob for c in trial.changes} | _moved(own)
    if chosen(moved, since, sent=coming):
        return ()
    tried = {(c.knob, c.value) for c in trial.changes}
    tried |= {(r.knob, r.effective) for r in own if r.effective is not None}
    values = {knob.spec.name: knob.value for knob in knobs}
    pending = [r for r in since if r.stage not in FINAL and r.origin.kind == "tuner"] if coming else []
    then = values | {r.knob: r.wanted for r in pending if r.wanted is not None}
    return tuple(
        Change(knob=c.knob, before=values[c.knob], value=c.before)
        for c in trial.changes
        if c.knob in values and then[c.knob] != c.before and (c.knob, then[c.knob]) in tried
    )


def chosen(knobs: Iterable[str], records: Iterable[CommandRecord], *, sent: bool) -> bool:
    """Whether people have chosen a value of any of these knobs; with `sent` also where the run has not answered yet."""
    asked = ("sent", *ASKED) if sent else ASKED
    theirs = (r for r in records if r.verb == "set" and r.stage in asked and r.origin.kind == "person")
    return not _moved(theirs).isdisjoint(knobs)


def _moved(records: Iterable[CommandRecord]) -> set[str]:
    """The knobs of these commands, with those that followed."""
    return {knob for r in records for knob in (r.knob, *(change.knob for change in r.followed))}
