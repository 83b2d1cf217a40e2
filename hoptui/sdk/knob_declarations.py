"""Declarations of knobs: `Knob`, and the fields of a config that are declared with it."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from hoptui.domain import knobs as wire
from hoptui.domain.facts import clean_text
from hoptui.domain.knobs import Cost, Effect, Kind, KnobError, KnobSpec, KnobValue, Scale


@dataclass(frozen=True)
class Knob:
    """Declare a field of a config dataclass as a knob: `Annotated[int, Knob(1, 64, effect="speed")]`.

    The declaration gives the command-line option its bounds, and `Run.knobs` makes the field a live knob of
    the run. Creating a `Knob` checks nothing. `check` and `Run.knobs` do.

    Args:
        min: The least value, inclusive. None: no lower bound. Numbers only.
        max: The greatest value, inclusive. None: no upper bound. Numbers only.
        choices: The allowed values. Empty: every value within the bounds.
        scale: How editors and the tuner step through the values. `linear`: equal differences. `log`: equal
            ratios. `pow2`: powers of two, and no other value is accepted.
        effect: What a change affects. `speed`: the same training, faster or slower. `learning`: what is
            learned. The tuner turns only `speed` knobs unless a user allows others.
        cost: What applying a change needs. `free`: the step reads the value. `shape`: new tensor shapes, so a
            new compiled graph. `rebuild`: a new model, optimizer or set of data readers. `restart`: a new
            process (see `Run.restart_wanted`).
        keeps: What stays true for every value. `"grad_accum × micro_batch"`: the run keeps this product
            constant. `"rollout = num_envs × rollout_len × ranks"`: `rollout` follows from the others. The
            factors are names of knobs, or `ranks`, the number of processes. `*` is the same as `×`, and `/`
            divides. Separate several relations with `;`. Free text is shown to users.
        unit: The unit shown with the value, such as `tokens`.
        description: One line that explains the knob.

    Example:
        ```python
        from dataclasses import dataclass
        from typing import Annotated

        @dataclass
        class Config:
            num_envs: Annotated[int, hoptui.Knob(1, 4096, scale="pow2", cost="shape")] = 64
            lr: Annotated[float, hoptui.Knob(1e-6, 1e-1, scale="log")] = 3e-4

        config = Config()
        run.knobs(config)
        ```
    """

    min: int | float | None = None
    max: int | float | None = None
    choices: tuple[KnobValue, ...] = ()
    scale: Scale = "linear"
    effect: Effect = "learning"
    cost: Cost = "free"
    keeps: str = ""
    unit: str = ""
    description: str = ""

    def check(self, name: str, value: KnobValue) -> KnobValue:
        """Check a value that does not come from a live run, such as a command-line option.

        Args:
            name: The name of the knob, for the error message.
            value: The value to check. An int is accepted if a bound is a float.

        Returns:
            The value in the type of the knob.

        Raises:
            ValueError: The value has the wrong type, is NaN or infinite, or is not allowed. The message is
                one sentence that names the knob.

        Example:
            ```python
            assert hoptui.Knob(1, 64).check("grad_accum", 8) == 8
            ```
        """
        kind = wire.kind_of(value)
        if kind == "int" and any(isinstance(bound, float) for bound in (self.min, self.max)):
            kind = "float"
        bare = KnobSpec(
            name=name,
            kind=kind,
            default=value,
            min=self.min,
            max=self.max,
            choices=self.choices,
            scale=self.scale,
        )
        return wire.check_value(bare, value)


def knob_spec(declaration: Knob, name: str, default: KnobValue, kind: Kind | None = None) -> KnobSpec:
    """Return the declaration as it is sent to the daemon.

    Raises:
        KnobError: see `hoptui.domain.knobs.check_spec`.
    """
    kind = kind or wire.kind_of(default)
    fields = {f.name: getattr(declaration, f.name) for f in dataclasses.fields(declaration)}
    for field, allowed in LITERALS.items():
        check_choice(f"{name}: {field}", fields[field], allowed)
    for field in TEXTS:
        fields[field] = _text(f"{name}: {field}", fields[field])
    fields |= {"min": _bound(name, declaration.min), "max": _bound(name, declaration.max)}
    fields["choices"] = tuple(map(wire.plain, declaration.choices))
    default = float(default) if kind == "float" else wire.plain(default)
    spec = KnobSpec(name=name, kind=kind, default=default, **fields)
    wire.check_spec(spec)
    return spec


LITERALS: Mapping[str, tuple[str, ...]] = {
    "scale": typing.get_args(Scale),
    "effect": typing.get_args(Effect),
    "cost": typing.get_args(Cost),
}
TEXTS = ("keeps", "unit", "description")


def check_choice(what: str, given: object, allowed: tuple[str, ...]) -> None:
    """Check a declared word.

    Raises:
        KnobError: it is not among those that are allowed. The text names them.
    """
    if given not in allowed:
        *others, last = map(repr, allowed)
        given = clean_text(repr(given), 40)
        raise KnobError(f"{what}={given}: must be {', '.join(others)} or {last}")


def _text(what: str, given: object) -> str:
    if given is None:
        return ""
    if not isinstance(given, str):
        raise KnobError(f"{what}={clean_text(repr(given), 40)}: must be a text")
    return clean_text(given, LONGEST_DECLARED)


LONGEST_DECLARED = 1 << 20
"""Characters of a text. What is too large for a message is cut where the message is made."""


def _bound(name: str, bound: object) -> int | float | None:
    """Return a bound as a Python number. Numbers of numpy are accepted."""
    if bound is None:
        return None
    if hasattr(bound, "__index__"):
        return int(bound.__index__())
    if hasattr(bound, "__float__"):
        return float(bound)
    raise KnobError(f"{name} has {wire.shown(bound)} as a bound, which is no number")


def annotated(config: object) -> Iterator[tuple[str, Knob, Kind | None]]:
    """Yield the fields of a dataclass instance that are declared as knobs: name, declaration, kind.

    The kind is None if only the value decides it.

    Raises:
        KnobError: it is no dataclass instance.
    """
    kinds: dict[type, Kind] = {bool: "bool", int: "int", float: "float", str: "str"}
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise KnobError(f"knobs takes a dataclass instance, not {clean_text(repr(config), 40)}: see bind")
    hints = typing.get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(cast(Any, config)):
        for extra in getattr(hints[field.name], "__metadata__", ()):
            if isinstance(extra, Knob):
                base = typing.get_args(hints[field.name])[0]
                if typing.get_origin(base) is Literal:
                    base = type(typing.get_args(base)[0])
                yield field.name, extra, kinds.get(base)


def field_setter(config: object, name: str, after: Callable[[Any], object] | None) -> Callable[[Any], object]:
    """Return a function that sets a field of a config and then calls `after`."""

    def put(value: Any) -> object:
        setattr(config, name, value)
        return after(value) if after is not None else None

    return put


def field_reader(config: object, name: str) -> Callable[[], Any]:
    """Return a function that reads a field of a config."""
    return lambda: getattr(config, name)
