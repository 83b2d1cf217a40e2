"""What helps where memory runs out: one table, of which each workload lists what it has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from hoptui_trainer.common.options import declared, option_name

SMALLER_MODEL = "--smaller-model-on-oom"
"""The option that allows a run to go on with a smaller model."""


class Remedy(NamedTuple):
    """Knobs that lower the memory of a step.

    Args:
        knobs: their names; those that a workload does not have are left out.
        value: what to set them to; "" for a smaller value.
        why: a few words, "" if the names say it.
        learning: whether it changes what is learned.
    """

    knobs: tuple[str, ...]
    value: str = ""
    why: str = ""
    learning: bool = True


REMEDIES = (
    Remedy(("micro_batch",), why="smaller pieces", learning=False),
    Remedy(("grad_accum",), why="more pieces", learning=False),
    Remedy(("checkpointing",), learning=False),
    Remedy(("optimizer",), "adamw8bit", learning=False),
    Remedy(("batch_size", "batch_tokens", "minibatch_size")),
    Remedy(("seq_len", "rollout_len", "num_envs", "context")),
    Remedy(("hidden", "d_model", "layers")),
)
"""From the mildest to the strongest."""


SMALLER_BATCHES = tuple(
    name for remedy in REMEDIES for name in remedy.knobs if name == "grad_accum" or "batch" in name
)
"""Knobs that do not help where a single sample is too much."""


def remedies(config: object, without: tuple[str, ...] = ()) -> str:
    """What helps a run with this config, in one sentence part; knobs `without` effect are left out."""
    have = {name for name, _, _ in declared(type(config))} - set(without)
    speed, learning = (", ".join(_options(config, have, learning)) for learning in (False, True))
    return (
        f"what helps without a change of what is learned: {speed or 'nothing more'}; "
        f"with one: smaller {learning}, or {SMALLER_MODEL}"
    )


def _options(config: object, have: set[str], learning: bool) -> Iterator[str]:
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    for remedy in REMEDIES:
        if remedy.learning is not learning:
            continue
        for name in remedy.knobs:
            # What is in effect, and what is as small as it can be, does not help.
            if name not in have or values[name] in (remedy.value, True, 1):
                continue
            option = option_name(name) + (f" {remedy.value}" if remedy.value else "")
            yield f"{option} ({remedy.why})" if remedy.why else option
