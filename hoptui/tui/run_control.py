"""Commands to a run or its tuner, their answers, and the changes staged to be sent together."""

from __future__ import annotations

from typing import NamedTuple, Unpack

from hoptui.client.conversation import NO_LIMITS, Details, TuneOp
from hoptui.domain.diagnosis import Advice
from hoptui.domain.facts import Fact, fact
from hoptui.domain.knobs import KnobError, KnobSpec, KnobState, KnobValue, check_value
from hoptui.domain.run_notes import LONGEST_NOTE, NoteAdded, is_note
from hoptui.domain.tuning import ADVISED, Limits, Tuned
from hoptui.model.command_history import UNDO, command_line, named
from hoptui.presentation import numbers, sentences
from hoptui.protocol.messages import FINAL, CommandRecord, RunState, Verb
from hoptui.tui.snapshot import AnyStore, View, ViewerClient, undoable

HOLD_S = 60.0
RENEW_S = 20.0
ANSWER_S = 5.0  # a daemon that is there answers a wish to the tuner at once


class Sent(NamedTuple):
    """The result of a request: the id of the command on its way, or a sentence that explains why nothing was
    sent.
    """

    command: str = ""
    refused: str = ""


class TunerRequest(NamedTuple):
    """A request to the tuner of a run: its newest answer, whether it belongs to this request, and until when
    to wait.
    """

    newest: Tuned | None
    answered: bool
    until: float


def _unreachable(view: View) -> str:
    """Why nothing can be sent to the daemon about the run of the view; empty if something can."""
    if view.read_only:
        return "this dashboard only looks"
    if view.run is None:
        return "the run is not known here"
    return "there is no link to the daemon" if view.link.state != "live" else ""


class Steering:
    """Sends commands for one dashboard. Times are seconds of the local monotonic clock."""

    def __init__(self, client: ViewerClient) -> None:
        self._client = client
        self._held: dict[str, tuple[str, float]] = {}  # run -> (command id of the pause, when to renew)
        self._asked: dict[str, TunerRequest] = {}
        self._noted: dict[str, tuple[NoteAdded | None, float]] = {}  # run -> (answer before, wait until)

    @property
    def held(self) -> list[str]:
        """The runs that this dashboard keeps paused."""
        return list(self._held)

    def may(self, view: View, verb: Verb) -> bool:
        """Whether the command makes sense now."""
        return not self.refusal(view, verb)

    def refusal(self, view: View, verb: Verb) -> str:
        """Why nothing can be sent now, in one sentence; empty if the command is possible.

        Nothing is sent into a lost link: it would reach the run later, when the user no longer expects it.
        """
        why = _unreachable(view)
        if view.run is not None and not why:
            gives = "" if verb in view.run.can else f"this run takes no {verb}"
            why = "the run has ended" if view.exited else gives
        return why and f"nothing was sent: {why}"

    def note(self, view: View, text: str, now: float) -> str:
        """Add a note to the run, which may have ended; one sentence where nothing was sent."""
        why = _unreachable(view)
        if view.run is None or why:
            return f"nothing was sent: {why}"
        if not is_note(text):
            return sentences.sentence(fact("note.invalid", most=LONGEST_NOTE))
        run = view.run.run
        self._noted[run] = (self._client.store.noted.get(run), now + ANSWER_S)
        self._client.add_note(run, text)
        return ""

    def set(self, view: View, knob: KnobState, value: KnobValue, expect_version: int, why: str = "") -> Sent:
        """Ask for a value."""
        return self._send(
            view, "set", knob=knob.spec.name, value=value, expect_version=expect_version, why=why
        )

    def undoable(self, view: View) -> tuple[CommandRecord | None, str]:
        """The change that an undo would set back, or one sentence that says why there is none."""
        record = undoable(view.commands())
        if record is None or record.before is None:
            return None, "there is no applied change to undo"
        knob = view.knob(record.knob)
        if knob is None:
            return None, f"{record.knob} is no longer a knob of this run"
        if knob.value == record.before:
            return None, f"{record.knob} has its value of before already"
        return record, ""

    def undo(self, view: View, record: CommandRecord) -> Sent:
        """Set this change back if it is still the last one."""
        refused = self.refusal(view, "set")
        last, problem = self.undoable(view)
        knob = view.knob(record.knob)
        if refused or last is None or knob is None or record.before is None:
            return Sent(refused=refused or problem)
        if last.id != record.id:
            return Sent(refused=f"{record.knob} was not set back: something else has changed meanwhile")
        return self.set(view, knob, record.before, knob.version, why=f"{UNDO}{record.id}")

    def pause_or_resume(self, view: View, now: float) -> Sent:
        """Pause a run that goes, let a paused one go on."""
        paused = view.vital is not None and view.vital.state == "paused"
        sent = self._send(view, "resume" if paused else "pause", hold_s=HOLD_S)
        if view.run is not None and sent.command:
            self._held.pop(view.run.run, None)
            if not paused:
                self._held[view.run.run] = (sent.command, now + RENEW_S)
        return sent

    def checkpoint(self, view: View) -> Sent:
        return self._send(view, "checkpoint")

    def stop(self, view: View, epoch: int) -> Sent:
        """Stop the run if it still is in the epoch that the person was asked about."""
        if view.run is not None and view.run.epoch != epoch:
            return Sent(refused="nothing was sent: the run has restarted meanwhile")
        return self._send(view, "stop")

    def advise(self, view: View, advice: Advice, knob: KnobState) -> Sent:
        """Set a knob as the diagnosis advises, if that says a value."""
        if advice.value is None or view.run is None or view.run.diagnosis is None:
            return Sent(refused="nothing was sent: it is not advised any more")
        return self.set(
            view, knob, advice.value, knob.version, why=f"{ADVISED}the run is {view.run.diagnosis.verdict}"
        )

    def tune(self, view: View, op: TuneOp, now: float, *, knob: str = "", limits: Limits = NO_LIMITS) -> str:
        """Ask the tuner of the run for something; one sentence where nothing was sent."""
        refused = self.refusal(view, "set")
        if view.run is None or refused:
            return refused
        run = view.run.run
        self._asked[run] = TunerRequest(self._client.store.tuned.get(run), False, now + ANSWER_S)
        self._client.tune(run, op, knob=knob, limits=limits)
        return ""

    def answers(self, now: float) -> list[str]:
        """New refusals of the tuners and of notes, and requests without an answer, a sentence each. Call it
        about once a second.
        """
        told = []
        for run, asked in list(self._asked.items()):
            newest = self._client.store.tuned.get(run)
            if newest is not None and newest is not asked.newest:
                self._asked[run] = asked = TunerRequest(newest, True, asked.until)
                told += [] if newest.granted else [f"the tuner stays as it is: {sentences.refusal(newest)}"]
            if now >= asked.until:
                del self._asked[run]
                told += [] if asked.answered else ["nobody answered what the tuner was asked"]
        for run, (before, until) in list(self._noted.items()):
            answer = self._client.store.noted.get(run)
            if answer is not None and answer is not before:
                del self._noted[run]
                why = sentences.sentence(Fact(answer.code, answer.fields)) if not answer.granted else ""
                told += [f"the note was not added: {why}"] if why else []
            elif now >= until:
                del self._noted[run]
                told.append("nobody answered: the note may not have been added")
        return told

    def renew(self, now: float) -> None:
        """Renew the pauses that are due; forget those that ended otherwise. Call it about once a second."""
        for run, (pause, due) in list(self._held.items()):
            if self._over(run, pause):
                del self._held[run]
            elif now >= due:
                self._client.renew_pause(run)
                self._held[run] = (pause, now + RENEW_S)

    def _over(self, run: str, pause: str) -> bool:
        """Whether the pause was refused, or was applied and the run goes on since."""
        record = self._client.store.commands.get(pause)
        if record is None or record.stage not in FINAL:
            return False
        vital = self._client.store.vital(run)
        paused = vital is not None and vital.state == "paused"
        settled_s = (self._client.store.now() - (record.settled or record.t)) / 1e9
        return record.stage != "applied" or (not paused and settled_s > 3.0)

    def _send(
        self,
        view: View,
        verb: Verb,
        **details: Unpack[Details],
    ) -> Sent:
        refused = self.refusal(view, verb)
        if view.run is None or refused:
            return Sent(refused=refused)
        return Sent(self._client.send(verb, view.run.run, **details))


def advised(view: View) -> tuple[Advice, KnobState] | None:
    """The first change that the diagnosis advises and that is possible; None without one, or if the diagnosis
    is old.

    It is a change of a knob of the run to an allowed value that is not in effect yet. A direction alone
    counts too.
    """
    found = view.run.diagnosis if view.run is not None and not view.stale else None
    for advice in found.advice if found is not None else ():
        knob = view.knob(advice.knob)
        if knob is None:
            continue
        try:
            wanted = None if advice.value is None else check_value(knob.spec, advice.value)
        except KnobError:
            continue
        if wanted != knob.value:
            return advice, knob
    return None


def left_paused(store: AnyStore, run: str, host: str = "") -> str:
    """The sentence for the terminal about a run that the user paused and left; `host` is its node, if it is
    another one.
    """
    known = store.run(run)
    name = numbers.clean(known.name if known else run, 60)
    who, where = (f"{host}/{name}", f", on {host}") if host else (name, "")
    resume = command_line("resume", named(known, store.node) if known else run)
    return f"{who} stays paused and goes on by itself within {HOLD_S:.0f} s; at once{where}: {resume}"


class Seen(NamedTuple):
    """A knob as on screen when the user decided: its value, and its version in that epoch of the run."""

    epoch: int
    version: int
    value: KnobValue

    @classmethod
    def of(cls, knob: KnobState, epoch: int) -> Seen:
        return cls(epoch, knob.version, knob.value)

    def overtaken(self, knob: KnobState, epoch: int) -> bool:
        """Whether the knob has changed since. Versions start again with an epoch; across a restart the values
        decide.
        """
        return knob.value != self.value if epoch != self.epoch else knob.version != self.version


class Staged(NamedTuple):
    """One change that waits: `seen` is the knob as it was on screen when the person decided."""

    spec: KnobSpec
    value: KnobValue
    seen: Seen

    @property
    def before(self) -> KnobValue:
        """The value that would be changed."""
        return self.seen.value

    def overtaken(self, run: RunState | None) -> KnobState | None:
        """The knob of the run as somebody has set it since, None: nobody has."""
        knob = next((k for k in run.knobs if k.spec.name == self.spec.name), None) if run else None
        return knob if run and knob and self.seen.overtaken(knob, run.epoch) else None


class Staging:
    """The staged changes of every run, in the order in which they were added; one a knob."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, Staged]] = {}

    def add(self, run: str, knob: KnobState, value: KnobValue, seen: Seen) -> None:
        """Stage a value. It replaces an older one of the same knob at the same place; the value in effect
        removes it.
        """
        if value == knob.value:
            self.remove(run, knob.spec.name)
            return
        self._runs.setdefault(run, {})[knob.spec.name] = Staged(knob.spec, value, seen)

    def remove(self, run: str, knob: str) -> None:
        self._runs.get(run, {}).pop(knob, None)

    def keep(self, run: str, knob: KnobState, epoch: int) -> None:
        """Expect the value that somebody else has set from now on: the staged one is sent over it."""
        staged = self.find(run, knob.spec.name)
        if staged is not None:
            self._runs[run][knob.spec.name] = staged._replace(seen=Seen.of(knob, epoch))

    def find(self, run: str, knob: str) -> Staged | None:
        return self._runs.get(run, {}).get(knob)

    def of(self, run: str) -> list[Staged]:
        """What is staged of a run."""
        return list(self._runs.get(run, {}).values())

    def clear(self, run: str) -> None:
        self._runs.pop(run, None)
