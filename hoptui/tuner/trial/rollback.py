"""The way back from a trial, or to less memory: what is still to be set, when it can be, and how it ended."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from msgspec import structs

from hoptui.domain.knobs import KnobValue
from hoptui.domain.tuning import Change, Trial
from hoptui.tuner.observation import Scene
from hoptui.tuner.trial.trial import Move

RETRY_S, TRIES = 10.0, 5
"""A way back that was refused is tried again after so long, so many times."""
DECLARED_S = 60.0
"""A process that comes after another declares its knobs one by one: those that it has not by then it does not have."""


@dataclass
class Return:
    """On the way to values that are known to be good; `told` is to be told once it is there."""

    targets: dict[str, KnobValue]
    why: str
    move: Move | None = None
    told: Trial | None = None
    tries: int = 0
    not_before: int = 0
    began: int = 0

    def awaited(self, scene: Scene) -> list[str]:
        """The knobs of it that the run has not declared, and may yet: set without them, the others could turn them."""
        self.began = self.began or scene.t
        late = scene.t - self.began > DECLARED_S * 1e9
        return [] if late else sorted(self.targets.keys() - scene.values().keys())

    def left(self, scene: Scene, theirs: Collection[str]) -> tuple[Change, ...]:
        """What is still to be set; nothing that is somebody's by now."""
        values = scene.values()
        return tuple(
            Change(knob=k, before=values[k], value=v)
            for k, v in self.targets.items()
            if k in values and values[k] != v and k not in theirs
        )

    def ended(self, left: tuple[Change, ...], scene: Scene, theirs: Collection[str]) -> Trial | None:
        """What is told of it, given what could not be set; None where it is over and nobody has to know more."""
        if self.told is None:
            text = f"{self.why}; refused {TRIES} times: it is left as it is, and alone"
            return Trial(changes=left, result="failed", t=scene.t, text=text) if left else None
        values = scene.values()
        if gone := sorted(self.targets.keys() - values.keys()):
            text = f"{self.told.text}; the run has not declared {', '.join(gone)} again"
            return structs.replace(self.told, result="failed", text=text)
        if left:
            return structs.replace(self.told, result="failed")
        if chosen := sorted(self.targets.keys() & set(theirs)):
            text = f"{self.told.text}; a person set {', '.join(chosen)}"
            return structs.replace(self.told, result="interrupted", text=text)
        read = tuple(structs.replace(c, value=values.get(c.knob, c.value)) for c in self.told.changes)
        return structs.replace(self.told, changes=read, result="kept")

    def may(self, scene: Scene) -> bool:
        """Whether it can be set now: what was refused is not asked for again at once."""
        return scene.t >= self.not_before and scene.state not in ("exited", "unresponsive")

    def send(self, changes: tuple[Change, ...], t: int) -> Move:
        """It is being set."""
        self.tries += 1
        self.not_before = t + round(RETRY_S * 1e9)
        self.move = Move(changes, self.why)
        return self.move
