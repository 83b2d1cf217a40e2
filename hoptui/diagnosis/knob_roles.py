"""The roles of a run's knobs, derived from their names, and the values next to the present ones. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from hoptui.domain.knobs import KnobError, KnobState, KnobValue, check_value

Role = Literal[
    "micro_batch", "accumulation", "minibatch", "envs", "rollout", "workers", "prefetch", "pin", "compile",
    "graphs", "precision", "recompute", "env_workers", "batch",
]  # fmt: skip
Direction = Literal["up", "down", "to"]

NAMES: dict[Role, tuple[str, ...]] = {
    "micro_batch": ("micro_batch", "micro_batch_size", "microbatch", "microbatch_size",
                    "per_device_batch_size",
                    "per_device_train_batch_size", "device_batch_size"),
    "accumulation": ("grad_accum", "grad_accum_steps", "gradient_accumulation_steps",
                     "accumulate_grad_batches", "accum_steps"),
    "minibatch": ("minibatch_size", "mini_batch_size", "minibatch"),
    "envs": ("num_envs", "n_envs", "envs"),
    "rollout": ("rollout_len", "num_steps", "n_steps", "horizon"),
    "workers": ("num_workers", "data_workers", "loader_workers", "workers",
                "dataloader_num_workers"),
    "prefetch": ("prefetch_factor", "prefetch", "dataloader_prefetch_factor"),
    "pin": ("pin_memory", "dataloader_pin_memory"),
    "compile": ("compile", "torch_compile"),
    "graphs": ("cuda_graphs", "cudagraphs", "graphs"),
    "precision": ("precision", "dtype", "amp_dtype"),
    "recompute": ("checkpointing", "gradient_checkpointing", "activation_checkpointing"),
    "env_workers": ("env_workers", "num_env_workers", "env_processes"),
    "batch": ("batch_size", "batch_tokens", "train_batch_size", "global_batch_size"),
}  # fmt: skip
"""The usual names of the field, the trainer's among them."""
OFF: tuple[KnobValue, ...] = (False, "off", "none", "eager")
FASTER = ("fp32", "tf32", "bf16")
"""Number formats by how fast tensor cores compute with them, as far as training usually bears it."""


def knob_for(role: Role, knobs: Iterable[KnobState]) -> KnobState | None:
    """The run's knob for something, None where it has none."""
    known = {knob.spec.name.lower(): knob for knob in knobs}
    return next((known[name] for name in NAMES[role] if name in known), None)


def reads(name: str) -> bool:
    """Whether a knob of this name is about the processes that read data or play environments."""
    return any(name.lower() in NAMES[role] for role in ("workers", "prefetch", "pin", "env_workers"))


def number(knob: KnobState | None) -> int | None:
    """A knob's value if it is a whole number above 0. A 0 often means that the value is still to be
    chosen."""
    value = knob.value if knob is not None else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def pieces(knobs: Iterable[KnobState]) -> int:
    """The number of pieces of a batch that are computed in sequence. 1 if unknown."""
    return number(knob_for("accumulation", tuple(knobs))) or 1


def multiplied(knob: KnobState, factor: int = 2) -> KnobValue | None:
    """The value times `factor`, or the next larger choice; None where bounds do not allow it."""
    return _next(knob, lambda value: value * factor, 1)


def divided(knob: KnobState, factor: int = 2) -> KnobValue | None:
    """The value divided by `factor`, at least 1, or the next smaller choice. None if there is none."""
    return _next(knob, lambda value: max(1, value // factor), -1)


def switched_on(knob: KnobState) -> KnobValue | None:
    """The value that turns on a knob that is off: true, or the first choice that is neither off nor
    automatic. None otherwise."""
    if knob.value not in OFF or knob.spec.kind not in ("bool", "str"):
        return None
    if knob.spec.kind == "bool":
        return allowed(knob, True)
    choices = (c for c in knob.spec.choices if c not in OFF and c != "auto")
    return next(choices, None)


def switched_off(knob: KnobState) -> KnobValue | None:
    """False for a knob that is true."""
    return allowed(knob, False) if knob.value is True else None


def faster(knob: KnobState) -> KnobValue | None:
    """The fastest number format among the choices, if it is faster than the one in effect."""
    if knob.value not in FASTER:
        return None
    better = FASTER[FASTER.index(str(knob.value)) + 1 :]
    return next((name for name in reversed(better) if name in knob.spec.choices), None)


def _next(knob: KnobState, change: Callable[[int], int], way: int) -> KnobValue | None:
    value = number(knob)
    if value is None:
        return None
    if knob.spec.choices:
        others = [c for c in knob.spec.choices if isinstance(c, int) and (c - value) * way > 0]
        return min(others, key=lambda c: abs(c - value), default=None)
    return allowed(knob, change(value))


def allowed(knob: KnobState, value: KnobValue) -> KnobValue | None:
    """The value where the knob may have it and has another one."""
    try:
        checked = check_value(knob.spec, value)
    except KnobError:
        return None
    return checked if checked != knob.value else None
