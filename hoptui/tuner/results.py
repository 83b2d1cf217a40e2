"""What tuners settled on before, kept for the next run of the same kind: which runs those are, and what is kept of them. Pure.

A result is where the next tuner begins to try, never a value taken on trust: one that does not fit is measured and taken back
like any other. So a key that is too wide costs a trial, and one that is too narrow nothing but what was known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import PurePath

import msgspec

from hoptui.wire.knobs import KnobSpec, KnobValue
from hoptui.wire.messages import RunState
from hoptui.wire.tuning import Objective

MOST = 500
"""Results kept, the newest: a kind of run has one for each objective."""
ASIDE = frozenset(
    (
        *("seed", "iterations", "steps", "total", "hours", "minutes", "name", "run-name", "json", "quiet", "verbose"),
        *("resume", "checkpoint", "checkpoint-dir", "checkpoint-every", "out", "output", "output-dir", "log", "log-dir"),
    )
)  # fmt: skip
"""Options of a command line that say nothing of the work of an iteration."""
FILES = (".pt", ".ckpt", ".json", ".jsonl", ".txt", ".toml", ".yaml")


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What a tuner settled on: `values` by knob, and the most `peak` bytes that the run held with them (None: unknown).

    `key` says in which kind of run, `run` and `name` in which one, `wall` when, in seconds since 1970.
    """

    key: str
    values: dict[str, KnobValue]
    peak: int | None = None
    objective: Objective = "throughput"
    run: str = ""
    name: str = ""
    wall: float = 0.0


def key(run: RunState, gpus: Iterable[str]) -> str:
    """The kind of a run, 16 hexadecimal digits: its work, the hardware under it (`gpus`: their names), its torch.

    The work is its command line without paths, seeds and knobs, what a unit of its throughput costs, and the values with
    which those knobs were declared that shape it: of cost `rebuild` and `restart` (the model, precision, compile mode), and
    the sizes among those of effect `learning`. As declared: what anybody has turned since does not make it another kind.
    """
    said = {
        "argv": _command(run.argv, {knob.spec.name for knob in run.knobs}),
        "flops": None if run.flops is None else (run.flops.per_unit, run.flops.metric),
        "headline": run.headline,
        "knobs": sorted((knob.spec.name, knob.spec.kind) for knob in run.knobs),
        "shape": {knob.spec.name: knob.spec.default for knob in run.knobs if _shapes(knob.spec)},
        "gpus": sorted(gpus),
        "world": run.world,
        "torch": run.versions.get("torch", ""),
    }
    return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()[:16]


def best(results: Iterable[Settled], kind: str, objective: Objective) -> Settled | None:
    """What the newest tuner of a run of this kind settled on, with the same objective."""
    same = [result for result in results if result.key == kind and result.objective == objective]
    return max(same, key=lambda result: result.wall, default=None)


def with_newer(results: Sequence[Settled], newer: Settled) -> tuple[Settled, ...]:
    """These and a newer one, which takes the place of the one before it of the same kind and objective; the newest `MOST`."""
    others = [r for r in results if (r.key, r.objective) != (newer.key, newer.objective)]
    return (*others, newer)[-MOST:]


def _shapes(spec: KnobSpec) -> bool:
    return spec.cost in ("rebuild", "restart") or (spec.effect == "learning" and spec.kind == "int")


def _command(argv: str, knobs: set[str]) -> list[str]:
    """The words of a command line that say which work it is, in an order that does not depend on how it was typed."""
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
