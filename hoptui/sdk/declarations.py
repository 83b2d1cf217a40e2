"""What a run declares about itself: its knobs, metrics, GPUs, cost and handlers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from hoptui.domain.knobs import KnobError, KnobSpec, KnobValue, check_value
from hoptui.protocol.messages import Command, Flops
from hoptui.sdk.knobs import Knob, KnobHandle, LiveKnob, annotated, field_reader, field_setter, knob_spec
from hoptui.sdk.metric_values import clean_name

log = logging.getLogger("hoptui")
V = TypeVar("V", bound=KnobValue)
Apply = Callable[[Any], object]
Read = Callable[[], Any]


class Declarations:
    """The declarations of one run.

    `revision` rises with each change, and the link thread then sends all of them again. `on_revert` is called
    after the training script has reverted a knob: the knob, the value before, the reason.
    """

    def __init__(self) -> None:
        self.knobs: dict[str, LiveKnob[Any]] = {}
        self.units: dict[str, str] = {}
        self.headline = ""
        self.gpu_uuids: tuple[str, ...] = ()
        self.flops: Flops | None = None
        self.checkpoint_handler: Callable[[], object] | None = None
        self.profile_handler: Callable[[int], object] | None = None
        self.revision = 0
        self.on_revert: Callable[[LiveKnob[Any], KnobValue, str], object] | None = None

    def declare_knob(
        self, name: str, default: V, apply: Apply | None, read: Read | None, **fields: Any
    ) -> KnobHandle[V]:
        """Declare a knob. `fields` are those of `Knob`; `choices` may be any sequence."""
        try:
            fields["choices"] = tuple(fields["choices"])
            spec = knob_spec(Knob(**fields), name, default)
        except (KnobError, TypeError) as error:
            log.warning("hoptui: %s; this knob will not be live", error)
            return KnobHandle(LiveKnob(KnobSpec(name=str(name), kind="str", default=""), default))
        return self._add(LiveKnob(spec, default, apply, read))

    def declare_fields(
        self, config: object, apply: Mapping[str, Apply], read: Mapping[str, Read], without: Collection[str]
    ) -> dict[str, KnobHandle[Any]]:
        """Declare the fields of a dataclass instance that are annotated with a `Knob`."""
        handles = {}
        for name, declaration, kind in annotated(config):
            if name in without:
                continue
            try:
                spec = knob_spec(declaration, name, getattr(config, name), kind)
            except KnobError as error:
                log.warning("hoptui: %s; this knob will not be live", error)
                continue
            after = apply.get(name)
            put = after if spec.cost == "restart" else field_setter(config, name, after)
            handles[name] = self._add(
                LiveKnob(spec, spec.default, put, read.get(name) or field_reader(config, name))
            )
        return handles

    def declare_metric(self, name: str, unit: str, headline: bool) -> None:
        """Set the unit of a metric, and make it the headline if asked to."""
        self.units[name] = unit
        if headline:
            self.headline = name
        self.revision += 1

    def declare_gpus(self, uuids: Sequence[str]) -> None:
        """Set the UUIDs of the GPUs of this process."""
        self.gpu_uuids = tuple(map(clean_name, uuids))
        self.revision += 1

    def declare_flops(self, per_unit: float, metric: str, precision: str) -> None:
        """Set the cost of a unit of work. A number that is not positive and finite removes it."""
        try:
            cost = Flops(per_unit=float(per_unit), metric=clean_name(metric), precision=str(precision))
        except (TypeError, ValueError):
            log.warning("hoptui: %r is no number of FLOPs; MFU will be unknown", per_unit)
            return
        self.flops = cost if cost.per_unit > 0 and math.isfinite(cost.per_unit) else None
        self.revision += 1

    def declare_checkpoint_handler(self, save: Callable[[], object]) -> None:
        """Set the function that writes a checkpoint."""
        self.checkpoint_handler = save
        self.revision += 1

    def declare_profile_handler(self, start: Callable[[int], object]) -> None:
        """Set the function that starts a trace."""
        self.profile_handler = start
        self.revision += 1

    def verbs(self) -> tuple[str, ...]:
        """Return the commands that this run can carry out."""
        with_handler = {"checkpoint": self.checkpoint_handler, "profile": self.profile_handler}
        return (
            "set",
            "pause",
            "resume",
            "stop",
            *(verb for verb, handler in with_handler.items() if handler),
        )

    def objection(self, command: Command) -> str:
        """Return why a `set`, `checkpoint` or `profile` command cannot be carried out, or ""."""
        if command.verb != "set":
            handler = self.checkpoint_handler if command.verb == "checkpoint" else self.profile_handler
            return "" if handler else f"there is no {command.verb} handler"
        knob = self.knobs.get(command.knob)
        if knob is None:
            return f"there is no knob {command.knob!r}"
        try:
            check_value(knob.spec, command.value)
        except ValueError as error:
            return str(error)
        return ""

    def _add(self, knob: LiveKnob[V]) -> KnobHandle[V]:
        try:
            knob.refresh()
        except Exception as error:
            log.warning("hoptui: reading %s back raised %s; its declared value is shown", knob.name, error)
        knob.on_revert(self._reverted)
        self.knobs[knob.name] = knob
        self.revision += 1
        return KnobHandle(knob)

    def _reverted(self, knob: LiveKnob[Any], before: KnobValue, reason: str) -> None:
        self.revision += 1
        if self.on_revert is not None:
            self.on_revert(knob, before, reason)
