"""Knobs on the settings of a script, which are in a namespace, a dict, a dataclass or any other object."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from hoptui.domain.facts import clean_text
from hoptui.domain.knobs import KnobError
from hoptui.sdk.knob_declarations import Knob
from hoptui.sdk.knobs import KnobHandle
from hoptui.sdk.shared_state import Declarations

log = logging.getLogger("hoptui")

FORMS = "(min, max), (min, max, scale), [choice, …], hoptui.Knob(…) or True"


class Binding:
    """The settings of one object, by name."""

    def __init__(self, target: object) -> None:
        self._target = target
        self._mapping = target if isinstance(target, MutableMapping) else None

    def read(self, name: str) -> Any:
        """Return the value in effect.

        Raises:
            KnobError: the object has no such setting.
        """
        try:
            return self._mapping[name] if self._mapping is not None else getattr(self._target, name)
        except (KeyError, AttributeError):
            raise KnobError(f"{type(self._target).__name__} has no {name!r}") from None

    def write(self, name: str, value: Any) -> None:
        """Put a value into effect."""
        if self._mapping is not None:
            self._mapping[name] = value
        else:
            setattr(self._target, name, value)

    def require_writable(self) -> None:
        """Check that settings can change.

        Raises:
            KnobError: the object is frozen.
        """
        parameters = getattr(type(self._target), "__dataclass_params__", None)
        if parameters is not None and dataclasses.is_dataclass(self._target) and parameters.frozen:
            raise KnobError(f"{type(self._target).__name__} is frozen")
        if isinstance(self._target, Mapping) and self._mapping is None:
            raise KnobError(f"{type(self._target).__name__} cannot be changed")


def bind(
    declarations: Declarations,
    target: object,
    apply: Mapping[str, Callable[[Any], object]],
    bounds: Mapping[str, object],
) -> dict[str, KnobHandle[Any]]:
    """Declare settings of an object as knobs. What is not accepted is left out, and reported."""
    binding, handles = Binding(target), {}
    for name, given in bounds.items():
        try:
            binding.require_writable()
            value = binding.read(name)
            declaration = declared(name, given)
            if type(value) is int and _has_fractions(declaration):
                value = float(value)
            handles[name] = declarations.declare(
                declaration, name, value, _setter(binding, name, apply.get(name)), _reader(binding, name)
            )
        except Exception as error:
            declarations.refuse(name, error)
    for name in apply:
        if name not in bounds:
            declarations.refuse(name, KnobError(f"bind has apply for {name!r}, but no bounds"))
    return handles


def declared(name: str, given: Any) -> Knob:
    """Return the declaration that the bounds of one setting stand for.

    Raises:
        KnobError: they have another form.
    """
    match given:
        case Knob():
            return given
        case True:
            return Knob()
        case (low, high) if isinstance(given, tuple):
            return Knob(low, high)
        case (low, high, scale) if isinstance(given, tuple):
            return Knob(low, high, scale=scale)
        case [*choices] if isinstance(given, list):
            return Knob(choices=tuple(choices))
    raise KnobError(f"{name} = {clean_text(repr(given), 60)} is no bounds: give {FORMS}")


def _has_fractions(declaration: Knob) -> bool:
    values = (declaration.min, declaration.max, *declaration.choices)
    return any(isinstance(value, float) for value in values)


def _setter(binding: Binding, name: str, after: Callable[[Any], object] | None) -> Callable[[Any], object]:
    def put(value: Any) -> object:
        binding.write(name, value)
        return after(value) if after is not None else None

    return put


def _reader(binding: Binding, name: str) -> Callable[[], Any]:
    return lambda: binding.read(name)
