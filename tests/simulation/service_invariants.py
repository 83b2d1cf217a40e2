"""What must hold of the tuner, of knobs that need a new process, of readings and of targets.

`invariants` has the others, and says how to add one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hoptui.domain.tuning import TUNER
from hoptui.protocol.messages import FINAL, CommandRecord, RunState
from hoptui.recording import Recording, RecordingError
from tests.simulation.invariants import Invariant
from tests.simulation.node import Node
from tests.simulation.trainer import Trainer
from tests.simulation.tuned import BATCH, FIRST_BATCH, WIDTH, Chosen

ON_DISK_S = 5.0
"""What a daemon knows for this long is on a disk that works."""
TARGET_ON_DISK_S = 1.0
"""A granted target is written at once."""
JUDGED_BACK_S = 60.0
"""A judgement has readings that are not older than its training time and this together."""
AGE_S = 45.0
"""How long ago the last judgement may be, when all faults are over."""
MOVED = 0.02
LONGEST_BACKOFF_DEATHS = 3
"""A sampler that died more often without a reading between may still wait for its next start."""


def of_settled(node: Node) -> list[str]:
    """Check what holds once all faults are over. The tuner has been stopped then."""
    if not node.serves:
        return []
    return _all(
        node,
        chosen_values_hold,
        person_beats_the_tuner,
        widths_true,
        targets_kept,
        targets_true,
        samplers_back,
    )


def of_finished(node: Node) -> list[str]:
    """Check what holds after runs and daemon have ended."""
    return _all(node, readings_true) if node.serves else []


def _all(node: Node, *each: Invariant) -> list[str]:
    return [f"{check.__name__}: {found}" for check in each for found in check(node)]


def _records(node: Node) -> dict[str, CommandRecord]:
    auditor = node.auditor
    return auditor.client.store.commands if auditor is not None and auditor.client is not None else {}


def _shown(node: Node, trainer: Trainer) -> RunState | None:
    auditor = node.auditor
    return (
        auditor.client.store.run(trainer.id) if auditor is not None and auditor.client is not None else None
    )


def _applied(node: Node, trainer: Trainer, knob: str) -> list[Chosen]:
    """Return what persons have set of a knob, as far as it was applied."""
    records = _records(node)
    mine = [c for c in node.services.chosen if (c.run, c.knob) == (trainer.id, knob) and c.id in records]
    return [chosen for chosen in mine if records[chosen.id].stage == "applied"]


def _certain(node: Node, since_s: float, within_s: float = ON_DISK_S) -> bool:
    """Return whether a daemon that was killed since had all on disk: whether it lived `within_s` longer."""
    return not node.truth.disk_failed() and not any(
        since_s - within_s <= died <= since_s + within_s for died in node.truth.daemon_died_s
    )


# the tuner --------------------------------------------------------------------------------------------------


def chosen_values_hold(node: Node) -> Iterator[str]:
    """Whatever became of the tuner and of its daemon, however slow the disk is, a knob has a value that a
    person chose, or one that the tuner found better and kept."""
    if node.truth.disk_refused:
        return  # the next daemon cannot read what the one before has kept or tried
    for trainer in node.trainers:
        shown = _shown(node, trainer)
        if not trainer.process.alive or trainer.knobs is None or shown is None:
            continue
        persons = {chosen.value for chosen in node.services.chosen if chosen.knob == BATCH}
        kept = {
            change["value"]
            for event in node.auditor.client.store.events  # type: ignore[union-attr]
            if event.code == "trial.ended" and event.run == trainer.id and event.fields["result"] == "kept"
            for change in event.fields["changes"]
        }
        jobs = [was.job for was in node.trainers if was.id == trainer.id and was.job is not None]
        if jobs and _tuner_refused(node, trainer.id, rejected=any(job.failed for job in jobs)):
            continue  # ranks that cannot communicate refuse all commands, also what would undo a trial
        if trainer.knobs.batch not in {FIRST_BATCH, *persons, *kept}:
            yield f"{trainer.name} is left with batch {trainer.knobs.batch}, and {kept} were kept"


def _tuner_refused(node: Node, run: str, rejected: bool) -> bool:
    """Return whether the last command of the tuner to a run is told as failed because of its ranks.

    `rejected`: the store of the ranks has failed, and what is told as rejected counts too. A later process
    may resume with the value that stayed.
    """
    own = [r for r in _records(node).values() if (r.run, r.knob, r.origin.kind) == (run, BATCH, "tuner")]
    last = max(own, key=lambda record: record.t, default=None)
    return last is not None and (last.code.startswith("ranks.") or (rejected and last.stage == "rejected"))


def person_beats_the_tuner(node: Node) -> Iterator[str]:
    """After a person has set a knob, the tuner leaves it alone until somebody starts or releases it again."""
    for trainer in node.trainers:
        turned = node.services.turned.get(trainer.id, [])
        allowed = [
            r.at_s for r in node.services.requests if r.run == trainer.id and r.op in ("start", "release")
        ]
        for before, after in pairwise(turned):
            person = before.by and before.by != TUNER
            asked = any(before.at_s - 20.0 < at <= after.at_s for at in allowed)
            if person and after.by == TUNER and not asked and _certain(node, before.at_s):
                yield f"the tuner set batch {after.value} at {after.at_s:.1f} s, a person {before.value}"


# knobs that need a new process ------------------------------------------------------------------------------


def widths_true(node: Node) -> Iterator[str]:
    """A knob that needs a new process is applied if one has begun with the value. It is shown as it is."""
    for trainer in node.trainers:
        began = node.services.widths.get(trainer.id, [])
        for chosen in _applied(node, trainer, WIDTH):
            if chosen.value not in began:
                yield f"width {chosen.value} is told as applied, and no process has it"
        shown = _shown(node, trainer)
        if trainer.process.alive and trainer.knobs is not None and shown is not None:
            for name, value in ((WIDTH, trainer.knobs.width), (BATCH, trainer.knobs.batch)):
                said = {knob.spec.name: knob.value for knob in shown.knobs}.get(name)
                if said != value:
                    yield f"{name} is shown as {said}, and it is {value}"
    for chosen in node.services.chosen:
        record = _records(node).get(chosen.id)
        if record is not None and record.stage not in FINAL:
            yield f"{chosen.knob} {chosen.value} is still {record.stage}"


# targets ----------------------------------------------------------------------------------------------------


def targets_kept(node: Node) -> Iterator[str]:
    """A target that was granted is there, unless another one has replaced it.

    Of those that were asked for at the same time, any may be the last. So may one without an answer.
    """
    for trainer in node.trainers:
        shown = _shown(node, trainer)
        if not trainer.process.alive or shown is None:
            continue
        there = {state.target for state in shown.targets}
        wishes = [wish for wish in node.services.wishes if wish.run == trainer.id]
        for side in ("least", "most"):
            mine = [wish for wish in wishes if wish.target.side == side]
            asked_s = max((wish.asked_s for wish in mine if wish.granted_s is not None), default=0.0)
            last = [wish for wish in mine if wish.granted_s is None or wish.granted_s >= asked_s]
            if any(wish.target in there for wish in last):
                continue
            granted = {wish.target.value: wish.granted_s for wish in last if wish.granted_s is not None}
            if all(_certain(node, at_s, TARGET_ON_DISK_S) for at_s in granted.values()):
                yield from (f"the target of {side} {value} was granted, and is gone" for value in granted)


def targets_true(node: Node) -> Iterator[str]:
    """The mean of a target is one of the readings of its time, and no older than it may be."""
    now = node.kernel.now_ns
    for trainer in node.trainers:
        shown = _shown(node, trainer)
        for state in shown.targets if shown is not None else ():
            if state.mean is None:
                if state.standing != "unknown":
                    yield f"a target is {state.standing} without a mean"
                continue
            back = int((state.seconds + JUDGED_BACK_S) * 1e9)
            known = node.services.readings.get(f"gpu/{state.gpu}", {}).items()
            much = MOVED * state.target.value  # a mean that has moved by less is not told
            for begin, end in ((state.t - back, state.t + 5e9), (now - back - AGE_S * 1e9, now)):
                values = [values[state.target.reading] for t, values in known if begin < t <= end]
                if end == now and not trainer.process.alive:
                    continue
                if not values or not min(values) - much <= state.mean <= max(values) + much:
                    yield f"the mean {state.mean} is none of the readings from {begin} to {end}"


# readings ---------------------------------------------------------------------------------------------------


def samplers_back(node: Node) -> Iterator[str]:
    """Samplers that died have been started again, and viewers are told that they read."""
    auditor = node.auditor
    state = auditor.client.store.node if auditor is not None and auditor.client is not None else None
    if state is None or len(node.samplers) > 2 * (1 + len(node.daemons)) + LONGEST_BACKOFF_DEATHS:
        return
    yield from (f"{problem.code} is still a problem" for problem in state.sampler_problems)


def readings_true(node: Node) -> Iterator[str]:
    """What is recorded of a GPU is what was read, in order. What a daemon took in time is recorded."""
    for run in dict.fromkeys(was.run for was in node.truth.processes if was.run):
        try:
            with Recording.open(node.where.recording(run)) as recording:
                found = {source: list(recording.rows(source)) for source in node.services.readings}
        except RecordingError:
            continue  # told by `rows_accounted`
        for source, parts in found.items():
            rows = [row for part in parts for row in part.rows()]
            if any(b[0] <= a[0] for a, b in pairwise(rows)):
                yield f"the stamps of {source} do not rise"
            for t, _, values in rows:
                if node.services.readings[source].get(t) != values:
                    yield f"{source} never read {values} at {t}"
            yield from _missing(node, run, source, {t for t, _, _ in rows})


def _missing(node: Node, run: str, source: str, recorded: set[int]) -> Iterator[str]:
    truth = node.truth
    mine = [was for was in truth.processes if was.run == run and was.rank == 0]
    for (of, t), at_s in node.services.handed_s.items() if source.startswith("gpu/") else ():
        if of != source or t in recorded or truth.disk_failed() or truth.daemon_died(at_s, at_s + ON_DISK_S):
            continue
        lives = any(was.began_s + 10 < at_s < (was.ended_s or 1e9) - 2 for was in mine)
        if lives and truth.calm(at_s - 10, at_s + 2):
            yield f"{source} at {t} was read at {at_s:.1f} s, and {run} has not got it"
