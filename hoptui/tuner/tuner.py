"""The tuner of one run: looks at it, changes one thing, measures, keeps or takes back. No clock, no I/O, no thread."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from hoptui.tuner.budget import Budget
from hoptui.tuner.ladder import Candidate
from hoptui.tuner.memory import Neighbours, full
from hoptui.tuner.people import People
from hoptui.tuner.scene import Known, Proposal, Scene
from hoptui.tuner.search import Search
from hoptui.tuner.series import Series
from hoptui.tuner.trial import (
    FAIR,
    FULL,
    TRIES,
    WARM_UP,
    Attempt,
    Move,
    Return,
    compare,
    decide,
    figure,
    harmful,
    obstacle,
    written,
)
from hoptui.wire.knobs import KnobValue
from hoptui.wire.measured import Measured
from hoptui.wire.messages import CommandRecord
from hoptui.wire.tuning import Change, Limits, Result, Stand, Trial, TunerState

TOLD = 50
"""So many ended trials are told."""
DIFFERENT = 0.10
"""A speed that differs by so much after somebody else's change means that the search starts anew."""
READING_NS = 900_000_000
"""Memory is read about once a second: more often, the same peak would be seen again."""
NOT_ITS_FAULT = (
    "held_by_person",
    "lease_held",
    "stale_epoch",
    "restarting",
    "no_such_run",
    "version_conflict",
    "pending_conflict",
)
"""Codes of refusals that say nothing of the value."""


class Tuner:
    """Turns the knobs of one run, one thing at a time.

    Call `look` about once a second and at new iterations; make commands of what it returns and say their ids with
    `sent`. What became of them is read from the next scene's records. Times are monotonic nanoseconds.
    """

    def __init__(self, limits: Limits, now: int, user: str, known: Known | None = None) -> None:
        self.state = TunerState(stand="baseline", text="begins", limits=limits, started=now, user=user)
        self._limits = limits
        self._budget = Budget(limits.budget, now)
        self._search = Search(limits, known)
        self._series = Series(limits.objective)
        self._neighbours = Neighbours()
        self._people = People()
        self._scene: Scene | None = None
        self._good: dict[str, KnobValue] = {}
        self._since = 0
        self._attempt: Attempt | None = None
        self._return: Return | None = None
        self._offered: Move | None = None
        self._level: float | None = None  # the speed before somebody else's change
        self._peak = 0
        self._read = 0  # when memory is to be read again
        self._rested = False
        self._stand: Stand = "baseline"
        self._text = ""

    @property
    def incumbent(self) -> Mapping[str, KnobValue]:
        """The values that it would go back to now."""
        return dict(self._good)

    def found(self) -> Known | None:
        """What to remember of this run, None until something was measured and nothing better was left to try."""
        told = any(trial.result in ("kept", "reverted") for trial in self.state.tried)
        if not told or not self._rested or self._scene is None:
            return None
        names = {n for lever in self._search.levers(self._scene, set()) for n in lever.names}
        return Known({n: v for n, v in self._good.items() if n in names}, self._peak or None)

    def freeze(self, knob: str) -> None:
        """Leave a knob alone; a trial of it is taken back at the next look."""
        self._people.frozen.add(knob)
        self.state = structs.replace(self.state, frozen=tuple(sorted(self._people.frozen)))

    def release(self, knob: str) -> None:
        """A knob may be turned again."""
        self._people.release(knob)
        self.state = structs.replace(self.state, frozen=tuple(sorted(self._people.frozen)))

    def stop(self, now: int) -> Proposal | None:
        """End for good: what takes an unfinished trial back, None where there is none."""
        self._budget.tick(now, training=True, trying=False)
        targets = dict(self._return.targets) if self._return else {}
        if self._attempt is not None and self._attempt.move.ids:
            targets |= {c.knob: c.before for c in self._attempt.told.changes}
            self._end("interrupted", "the tuner was stopped")
        self._attempt = self._return = self._offered = None
        self.state = structs.replace(self.state, stand="off", text="stopped", trial=None, next=())
        values = self._scene.values() if self._scene else {}
        changes = tuple(
            Change(knob=k, before=values.get(k, v), value=v)
            for k, v in targets.items()
            if k not in self._people.theirs
        )
        return Proposal(changes, "back to the values before: the tuner was stopped") if changes else None

    def sent(self, ids: Mapping[str, str]) -> None:
        """The ids, by knob, of the commands that the newest proposal was made of. Without it that proposal was never made."""
        if self._offered is not None:
            self._offered.ids = dict(ids)
            self._offered = None
            self._search.made()

    def look(self, scene: Scene) -> Proposal | None:
        """What to change now, if anything."""
        if self.state.stand == "off":
            return None
        scene = scene.current()
        self._withdraw(scene)
        self._notice(scene)
        self._scene = scene
        proposal, following = self._act(scene)
        self.state = structs.replace(
            self.state,
            stand=self._stand,
            text=self._text,
            trial=self._attempt.told if self._attempt else None,
            next=following,
            frozen=tuple(sorted(self._people.frozen)),
            spent=self._budget.share_spent,
        )
        return proposal

    # what has happened -------------------------------------------------------------------------------------------------

    def _withdraw(self, scene: Scene) -> None:
        """A proposal that no commands were made of was never made."""
        if self._offered is None:
            return
        if self._return is not None and self._return.move is self._offered:
            self._return.move = None
        elif self._attempt is not None and self._attempt.move is self._offered:
            self._attempt = None
        self._offered = None

    def _notice(self, scene: Scene) -> None:
        trying = self._attempt is not None or self._return is not None
        passed = self._budget.tick(scene.t, training=scene.state in ("live", "busy"), trying=trying)
        if self._attempt is not None:
            self._attempt.seconds += passed
        if self._scene is None:
            # What it did before may have been with other values.
            self._rest(scene, scene.points[-1][0] + 1 if scene.points else 0)
        elif scene.epoch != self._scene.epoch:
            self._restarted(scene)
        self._series.take(scene)
        self._search.expire(scene.t)
        self._listen(scene)
        if scene.memory is not None:
            if self._neighbours.freed(scene.memory):
                self._search.freed()
            self._learn_memory(scene, scene.memory.used)
        if scene.shift is not None and self._attempt is None and self._return is None:
            self._search.reopen()
            self._rest(scene, self._series.newest + 1)

    def _restarted(self, scene: Scene) -> None:
        """Another process: nothing of the one before is comparable, and a trial that it ended is not known to be good."""
        back = dict(self._return.targets) if self._return else {}
        if self._attempt is not None:
            back = {c.knob: c.before for c in self._attempt.told.changes}
            self._end("unfinished", "the run was restarted")
        self._attempt = self._return = self._offered = None
        self._level = self._level or self._series.level(self._since)
        self._series.cut()
        self._search.forget_memory()
        self._rest(scene, 0)
        if back:
            self._return = Return(back, "back to the values before what a restart cut off")

    def _listen(self, scene: Scene) -> None:
        """What people set is theirs."""
        new = self._people.hear(scene)
        if self._attempt is None:
            return
        own = {c.knob for c in self._attempt.move.changes}
        if new & own:  # what follows from a knob of theirs is theirs as well
            self._people.keep(own)
        if new:
            self._abandon("interrupted", f"a person set {', '.join(sorted(new))}")
        elif aside := own & self._people.frozen:
            self._abandon("interrupted", f"{', '.join(sorted(aside))} is to be left alone")

    def _learn_memory(self, scene: Scene, used: int) -> None:
        attempt = self._attempt
        if self._return is not None or scene.t < self._read:
            return
        self._read = scene.t + READING_NS
        if attempt is None:
            self._peak = max(self._peak, used)
            if self._series.since(self._since):  # before that it may be on its way to these values still
                self._search.saw(scene, used)
            return
        step = attempt.move.applied(scene.records)
        if step is not None and len(self._series.since(step)) > WARM_UP:
            self._search.saw(scene, used, {lever.name for lever, _ in attempt.tried.settings})

    # what to do --------------------------------------------------------------------------------------------------------

    def _act(self, scene: Scene) -> tuple[Proposal | None, tuple[Change, ...]]:
        if self._attempt is not None:
            return self._conduct(self._attempt, scene), ()
        if self._return is not None:
            return self._go_back(self._return, scene), ()
        if any(self._good.get(k) != v for k, v in scene.settings().items()):
            self._read_otherwise(scene)
        if room := self._make_room(scene):
            return room, ()
        candidate = self._search.next(scene, self._people.frozen)
        expected = candidate.gain if isinstance(candidate, Candidate) else None
        missing = self._series.missing(self._since, expected)
        if not missing and self._compare():
            candidate = self._search.next(scene, self._people.frozen)
        if isinstance(candidate, str):
            self._rested = self._rested or not missing
            self._say("holding", f"nothing is tried: {candidate}")
            return None, ()
        if self._limits.dry:
            self._say("holding", f"would set {written(candidate.changes)}: {candidate.why}")
        elif waits := obstacle(scene, self._limits):
            self._say("waiting", waits)
        elif missing:
            self._say("baseline", f"measures the values in effect: {missing} iterations to go")
        elif not self._budget.affords(2 * candidate.standstill, FAIR * self._series.seconds):
            self._rested = True
            self._say(
                "holding",
                f"the next trial may cost more than the budget has left: {max(0.0, self._budget.left):.0f} s",
            )
        else:
            return self._begin(candidate, scene), ()
        return None, candidate.changes

    def _read_otherwise(self, scene: Scene) -> None:
        """Somebody else, or the run itself, has changed a knob: its value is taken as it is."""
        self._level = self._level or self._series.level(self._since)
        for lever in self._search.levers(scene, self._people.theirs):
            before = lever.size_of(self._good.get(lever.name, lever.knob.value))
            if lever.family == "batch" and lever.size < before:  # the run gave way, which is why it is slower
                self._search.ceiling(lever, before, scene.t, held=True)
                self._level = None
        self._rest(scene, self._series.newest + 1 + WARM_UP)

    def _compare(self) -> bool:
        """Where somebody else's change, or a restart, made the run another one, the search starts anew; whether it does."""
        before, self._level = self._level, None
        now = self._series.level(self._since)
        if before is not None and now is not None and abs(now / before - 1) >= DIFFERENT:
            self._search.reopen()
            return True
        return False

    def _begin(self, tried: Candidate, scene: Scene) -> Proposal:
        expected = tried.standstill + FAIR * self._series.seconds
        told = Trial(changes=tried.changes, t=scene.t, text=tried.why)
        move = self._offered = Move(tried.changes, tried.why)
        before = self._series.values(self._since)
        self._attempt = Attempt(move, tried, before, told, expected, scene.alloc_retries)
        self._say("trial", f"tries {written(tried.changes)}")
        return Proposal(tried.changes, tried.why)

    def _conduct(self, attempt: Attempt, scene: Scene) -> Proposal | None:
        move = attempt.move
        if trouble := move.trouble(scene.records):
            return self._fail(attempt, trouble, scene)
        step = move.applied(scene.records)
        attempt.told = structs.replace(attempt.told, step=step, seconds=round(attempt.seconds, 1))
        if step is None:
            self._say("trial", f"waits until {written(move.changes)} is in effect")
            return None
        effective = move.effective(scene.records)
        if all(effective.get(c.knob, c.value) == c.before for c in move.changes):
            self._search.failed(attempt.tried, scene.t)
            return self._take_back("failed", "the run reads back the values of before", scene)
        after = self._series.since(step)
        found = compare(self._series.metric, attempt.before, after)
        attempt.told = structs.replace(attempt.told, measured=found, iterations=found.iterations)
        self._say("trial", f"measures {written(move.changes)}: {found.iterations} iterations")
        if scene.state not in ("live", "busy"):
            return None
        if too_much := attempt.too_much(scene, self._limits, len(after)):
            self._search.failed(attempt.tried, scene.t)
            return self._take_back("reverted", too_much, scene)
        if harmful(attempt.before, after):
            self._search.dropped(attempt.tried, Measured())
            return self._take_back("reverted", "less than half as fast", scene)
        out_of_time = self._budget.left < 0 and found.gain is not None
        decision = decide(found, smaller=attempt.tried.way < 0, out_of_time=out_of_time)
        if decision == "more":
            return None
        if decision == "drop":
            self._search.dropped(attempt.tried, found)
            return self._take_back("reverted", figure(found), scene, told=True)
        self._search.kept(attempt.tried, found)
        self._budget.refund(max(0.0, attempt.seconds - move.standstill(scene.records)))
        self._end("kept")
        self._attempt = None
        self._peak = 0
        self._rest(scene, step + WARM_UP)
        return None

    def _fail(self, attempt: Attempt, trouble: CommandRecord, scene: Scene) -> Proposal | None:
        """A command of the trial came to nothing, or was undone."""
        why = trouble.reason or trouble.code or trouble.stage
        if trouble.code == "held_by_person":
            self._people.keep([trouble.knob])
        if trouble.stage in ("superseded", "expired", "voided") or trouble.code in NOT_ITS_FAULT:
            return self._take_back("interrupted", why, scene)
        self._search.failed(attempt.tried, scene.t)
        return self._take_back("failed", why, scene)

    def _take_back(self, result: Result, why: str, scene: Scene, *, told: bool = False) -> Proposal | None:
        self._abandon(result, why, told=told)
        return self._go_back(self._return, scene) if self._return else None

    def _abandon(self, result: Result, why: str, *, told: bool = False) -> None:
        """End the trial, and go back; `told` where its figure says why."""
        if self._attempt is not None:
            self._budget.fruitless = True
            self._end(result, "" if told else why)
            move, self._attempt = self._attempt.move, None
            self._return = Return(
                {c.knob: c.before for c in move.changes}, f"back from the trial: {why}", move
            )

    def _go_back(self, way: Return, scene: Scene) -> Proposal | None:
        self._say("trial", way.why)
        if way.move is not None and not way.move.settled(scene.records):
            return None
        changes = way.left(scene, self._people.theirs)
        if not changes or way.tries >= TRIES:
            if way.told is not None:
                self._tell(structs.replace(way.told, result="failed" if changes else "kept"))
            self._return = None
            self._rest(scene, self._series.newest + 1 + WARM_UP)
            return None
        if not way.may(scene):
            self._say("waiting", f"{way.why}, as soon as it can be set")
            return None
        self._offered = way.send(changes, scene.t)
        return Proposal(changes, way.why)

    def _make_room(self, scene: Scene) -> Proposal | None:
        """A smaller size before memory runs out: others have taken so much, or the run's own rare peaks come near the limit."""
        memory, watch = scene.memory, self._neighbours
        if memory is None or self._limits.dry or obstacle(scene, self._limits):
            return None
        taken = watch.taken(memory)
        if taken and (full(memory) >= FULL or self._search.tight(scene)):
            tried = self._search.smaller(scene, self._people.frozen)
            why = f"other processes have taken {taken / 2**30:.1f} GiB of the memory: room is made before it runs out"
        elif not watch.growing and self._series.since(self._since):
            tried = self._search.safer(scene, self._people.frozen)
            why = "its rare peaks of memory come near the limit: a size that they do not reach, before it runs out"
        else:
            return None
        if tried is None:
            return None
        watch.settle(memory)
        for lever, _ in tried.settings:
            self._search.ceiling(lever, lever.size, scene.t, held=True)
        told = Trial(changes=tried.changes, t=scene.t, text=why)
        self._return = Return({c.knob: c.value for c in tried.changes}, why, told=told)
        return self._go_back(self._return, scene)

    # keeping count -----------------------------------------------------------------------------------------------------

    def _rest(self, scene: Scene, since: int) -> None:
        """The values in effect are those to compare with, measured from the iteration `since` on."""
        self._good = scene.values()
        self._since = since

    def _end(self, result: Result, how: str = "") -> None:
        if self._attempt is not None:
            told = self._attempt.told
            self._tell(structs.replace(told, result=result, text=f"{told.text}. {how}" if how else told.text))

    def _tell(self, trial: Trial) -> None:
        self.state = structs.replace(self.state, tried=(*self.state.tried, trial)[-TOLD:])

    def _say(self, stand: Stand, text: str) -> None:
        self._stand, self._text = stand, text
