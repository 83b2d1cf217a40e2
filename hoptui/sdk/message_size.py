"""Messages of a run stay below the limit of the protocol. A larger one would end the connection.

What a run declares is cut until it fits: descriptions of knobs first, then units, then whole knobs.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import structs

from hoptui.domain.facts import Fact, fact
from hoptui.domain.knobs import KnobState
from hoptui.protocol import codec, messages
from hoptui.protocol.codec import MAX_BYTES

DECLARED_BYTES = MAX_BYTES - (192 << 10)
"""The most that knobs and units take. The rest of a hello has the remaining bytes."""
LONGEST_CUT = 200


class Declared(NamedTuple):
    """What a run declares, as far as it fits. `left_out` says what does not, None if all of it does."""

    declare: messages.Declare
    left_out: Fact | None


def declared(full: messages.Declare) -> Declared:
    """Return what fits of a declaration."""
    if _size(full) <= DECLARED_BYTES:
        return Declared(full, None)
    plain = structs.replace(full, knobs=tuple(map(_undescribed, full.knobs)))
    if _size(plain) <= DECLARED_BYTES:
        return Declared(plain, fact("knobs.undescribed", knobs=len(full.knobs)))
    units = full.units if _size(structs.replace(full, knobs=())) <= DECLARED_BYTES // 2 else {}
    plain = structs.replace(plain, units=units)
    left = DECLARED_BYTES - _size(structs.replace(plain, knobs=()))
    shown: list[KnobState] = []
    for knob in plain.knobs:
        left -= len(codec.encode(messages.Declare(knobs=(knob,))))
        if left < 0:
            break
        shown.append(knob)
    why = fact("knobs.left_out", shown=len(shown), knobs=len(full.knobs))
    return Declared(structs.replace(plain, knobs=tuple(shown)), why)


def outcome(full: messages.Outcome) -> messages.Outcome:
    """Return an outcome without the details that are too large to be sent."""
    return structs.replace(
        full,
        before=None,
        effective=None,
        by=full.by[:LONGEST_CUT],
        code="too_large",
        fields={"code": full.code[:LONGEST_CUT]},
        reason=full.reason[:LONGEST_CUT],
        followed=(),
    )


def _undescribed(knob: KnobState) -> KnobState:
    return structs.replace(knob, spec=structs.replace(knob.spec, description="", keeps=""))


def _size(declare: messages.Declare) -> int:
    return len(codec.encode(declare))
