"""What tuners settled on before, kept for the next run of the same kind: which runs those are, and what is
kept of them. Pure.

A result is where the next tuner begins to try, never a value taken on trust: one that does not fit is
measured and taken back like any other. So a key that is too wide costs a trial, and one that is too narrow
nothing but what was known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

import msgspec
from msgspec import structs

from hoptui.domain.knobs import KnobSpec, KnobValue
from hoptui.domain.tuning import Objective
from hoptui.protocol.messages import CommandRecord, RunState

MOST = 500
"""Results kept, the newest: a kind of run has one for each objective and each set of knobs that a tuner might
turn."""
ASIDE = frozenset(
    (
        *("seed", "iterations", "steps", "total", "hours", "minutes", "name", "run-name", "json", "quiet",
          "verbose"),
        *("resume", "checkpoint", "checkpoint-dir", "checkpoint-every", "out", "output", "output-dir", "log",
          "log-dir"),
    )
)  # fmt: skip
"""Options of a command line that say nothing of the work of an iteration."""
FILES = (".pt", ".ckpt", ".json", ".jsonl", ".txt", ".toml", ".yaml")


class TunerResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a tuner settled on: `values` by knob, and the most `peak` bytes that the run held with them (None:
    unknown).

    `turned` are the knobs that it might turn, empty for those of `values`. `key` says in which kind of run,
    `run` and `name` in which one, `wall` when, in seconds since 1970.
    """

    key: str
    values: dict[str, KnobValue]
    peak: int | None = None
    objective: Objective = "throughput"
    run: str = ""
    name: str = ""
    wall: float = 0.0
    turned: tuple[str, ...] = ()


def key(run: RunState, gpus: Iterable[str], records: Sequence[CommandRecord] = ()) -> str:
    """The kind of a run, 16 hexadecimal digits: its work, the hardware under it (`gpus`: their names), its
    torch.

    The work is its command line without paths, seeds and knobs, what a unit of its throughput costs, and the
    values with which those knobs were declared that shape it: of cost `rebuild` and `restart` (the model,
    precision, compile mode), and the sizes among those of effect `learning`. As declared: what anybody has
    turned since does not make it another kind.

    A process that goes on after a restart declares the values that were left to it. What these were before
    they were turned is told by the run's commands, `records`, oldest first; what the run itself has turned in
    an earlier process is not told.
    """
    shape = {
        knob.spec.name: _begun(knob.spec, run.epoch, records) for knob in run.knobs if _shapes(knob.spec)
    }
    said = {
        "argv": _command(run.argv, {knob.spec.name for knob in run.knobs}),
        "flops": None if run.flops is None else (run.flops.per_unit, run.flops.metric),
        "headline": run.headline,
        "knobs": sorted((knob.spec.name, knob.spec.kind) for knob in run.knobs),
        "shape": shape,
        "gpus": sorted(gpus),
        "world": run.world,
        "torch": run.versions.get("torch", ""),
    }
    return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()[:16]


def best(
    results: Iterable[TunerResult],
    kind: str,
    objective: Objective,
    held: Mapping[str, KnobValue] | None = None,
) -> TunerResult | None:
    """What a tuner of a run of this kind settled on, with the same objective, that another one can bring
    about.

    `held` are the values in effect of the knobs that it may not turn: what goes with other values of these is
    no result for it. Of those that are, the one that says most of what it may turn, and of these the newest.
    """
    kept = held or {}
    same = [
        result
        for result in results
        if result.key == kind
        and result.objective == objective
        and all(kept.get(name, value) == value for name, value in result.values.items())
    ]
    return max(same, key=lambda result: (len(set(result.turned) - kept.keys()), result.wall), default=None)


def with_newer(results: Sequence[TunerResult], newer: TunerResult) -> tuple[TunerResult, ...]:
    """These and a newer one, which takes the place of the one before it of the same kind, objective and
    `turned`; the newest `MOST`.

    A tuner that might turn other knobs has compared other values: neither of the two says that the other is
    wrong.
    """
    if not newer.turned:
        newer = structs.replace(newer, turned=tuple(sorted(newer.values)))
    others = [r for r in results if _slot(r) != _slot(newer)]
    return (*others, newer)[-MOST:]


def _slot(result: TunerResult) -> tuple[str, Objective, tuple[str, ...]]:
    return result.key, result.objective, result.turned


def _shapes(spec: KnobSpec) -> bool:
    return spec.cost in ("rebuild", "restart") or (spec.effect == "learning" and spec.kind == "int")


def _begun(spec: KnobSpec, epoch: int, records: Iterable[CommandRecord]) -> KnobValue:
    """The value with which the first process declared a knob, of those of which each declared what the one
    before had left."""
    begun = left = None
    for before, value in (move for r in records if r.epoch < epoch for move in _moves(r, spec.name)):
        begun, left = (begun if before == left else before), value
    return spec.default if begun is None or left != spec.default or spec.cost == "restart" else begun


def _moves(record: CommandRecord, knob: str) -> Iterator[tuple[KnobValue | None, KnobValue]]:
    """From what to what a command has turned a knob."""
    yield from ((change.before, change.value) for change in record.followed if change.knob == knob)
    if record.knob == knob and record.effective is not None:
        yield record.before, record.effective


def _command(argv: str, knobs: set[str]) -> list[str]:
    """The words of a command line that say which work it is, in an order that does not depend on how it was
    typed."""
    aside = ASIDE | {name.replace("_", "-") for name in knobs}
    words = argv.split()
    kept: list[str] = []
    while words:
        word = words.pop(0)
        option, equals, value = word.partition("=")
        if not word.startswith("-"):
            kept.append(_plain(word))
            continue
        if not equals and words and not words[0].startswith("-"):
            value = words.pop(0)
        name = option.lstrip("-").replace("_", "-")
        if name.removeprefix("no-") not in aside:
            kept.append(f"{name}={_plain(value)}")
    return sorted(filter(None, kept))


def _plain(word: str) -> str:
    """A word of a command line; "" for a path, because where things are does not change the work."""
    return "" if "/" in word or PurePath(word).suffix in FILES else word
