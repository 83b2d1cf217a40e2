"""`hoptui target`: set, list and remove targets of a run's GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from cyclopts import Parameter

from hoptui.cli.support.options import Json, Run
from hoptui.cli.support.snapshot import NodeSnapshot, look
from hoptui.cli.support.terminal import OK, REJECTED, Fail, dump, say, table, usage
from hoptui.domain.facts import Fact
from hoptui.domain.targets import Target, TargetState, key
from hoptui.presentation import job_head, numbers, sentences, targets, vocabulary
from hoptui.protocol.messages import RunState


def target(
    run: Run,
    /,
    *wanted: Annotated[
        str,
        Parameter(
            name="NAME=VALUE",
            help="A least value such as busy=90, power=600W, memory=100GB; a most such as 'temp<80'; "
            "or busy=off.",
        ),
    ],
    clear: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Remove all targets of the run first.")
    ] = False,
    json: Json = False,
) -> int:
    """Set targets for the GPUs of a run; without values, list them and how they stand.

    The daemon judges each by the mean over at least 30 s of training, on the worst GPU of the run. A miss is
    a warning in the dashboard and an event of the run.
    """
    new, remove = _parsed(wanted)
    changes = bool(wanted) or clear
    with look(steers=changes, readings=False) as seen:
        found = seen.find_living(run) if changes else seen.find(run)
        states, of_head = found.targets, found.head.targets if found.head is not None else ()
        vital = seen.store.vital(found.run)
        if changes:
            answer = seen.session.set_targets(found.run, new, remove=remove, clear=clear)
            if not answer.granted:
                raise Fail(sentences.sentence(Fact(answer.code, answer.fields)), REJECTED)
            states = answer.targets
        if json:
            dump(
                {
                    "run": found.run,
                    "targets": json_of(seen, found, states),
                    "head": json_of(seen, found, of_head),
                    **job_head.age_json(vital, "head_"),
                }
            )
        elif states or of_head:
            table(lines(seen, found, states))
        else:
            say(f"{numbers.clean(found.name)} has no targets")
        if found.head is not None and of_head and not json:
            say(job_head.dated(f"on {job_head.name(found.head)}, for its GPUs", vital))
            table(lines(seen, found, of_head), indent="  ")
    return OK


def json_of(seen: NodeSnapshot, run: RunState, states: Iterable[TargetState]) -> list[dict[str, object]]:
    """Targets as every `--json` shows them."""
    return [targets.in_words(state, _gpus(seen, run)) for state in states]


def lines(seen: NodeSnapshot, run: RunState, states: Iterable[TargetState]) -> list[tuple[str, ...]]:
    """Targets as rows of a table: `⚠ missed`, the target, the mean, and over how long."""
    found: list[tuple[str, ...]] = []
    for state in states:
        word = vocabulary.STANDINGS[state.standing]
        index = targets.index_of(state, _gpus(seen, run))
        where = f" on GPU {index}" if index is not None else ""
        mean = f"{targets.value_of(state.target, state.mean)}{where}"
        over = f"over {numbers.duration(state.seconds)} of training" if state.mean is not None else ""
        found.append((f"{word.symbol} {word.text}", targets.goal(state.target), mean, over))
    return found


def _gpus(seen: NodeSnapshot, run: RunState) -> list[tuple[str, int]]:
    return [(gpu.uuid, gpu.index) for gpu in seen.node.gpus if gpu.uuid in run.gpus]


def _parsed(wanted: Iterable[str]) -> tuple[tuple[Target, ...], tuple[str, ...]]:
    """Parse the targets. Raises Fail (exit code 2) for one that is none, or given twice."""
    new: dict[tuple[str, str], Target] = {}
    remove: list[str] = []
    for written in wanted:
        try:
            found = targets.parse(written)
        except ValueError as error:
            raise usage(str(error)) from None
        if isinstance(found, targets.Removal):
            remove.append(found.reading)
        elif key(found) in new:
            raise usage(f"{targets.name_of(found)} is given twice")
        else:
            new[key(found)] = found
    both = [found for found in new.values() if found.reading in remove]
    if both:
        raise usage(f"{targets.name_of(both[0])} is set and removed at once")
    return tuple(new.values()), tuple(remove)
