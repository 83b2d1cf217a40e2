"""What people have turned, or asked the tuner to leave alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hoptui.tuner.observation import Scene
from hoptui.tuner.search.space import Lever

ASKED = ("accepted", "scheduled", "applied", "reverted")
"""A command of a person that has come so far says what they want; one that was refused says nothing."""


class People:
    """Knobs that are not the tuner's: `frozen` all of them, `theirs` those whose value a person has chosen."""

    def __init__(self) -> None:
        self.frozen: set[str] = set()
        self.theirs: set[str] = set()
        self._heard: set[str] = set()

    def hear(self, scene: Scene) -> set[str]:
        """The knobs that people have set since the last look, theirs from now on."""
        commands = {
            r.id: r.knob
            for r in scene.records
            if r.verb == "set" and r.origin.kind == "person" and r.stage in ASKED
        }
        new = {knob for command, knob in commands.items() if command not in self._heard}
        self._heard = set(commands)
        self.keep(new)
        return new

    def keep(self, knobs: Iterable[str]) -> None:
        """These have the values that people want."""
        self.theirs.update(knobs)
        self.frozen |= self.theirs

    def release(self, knob: str) -> None:
        """It may be turned again."""
        self.frozen.discard(knob)
        self.theirs.discard(knob)

    def untried(self, why: str, free: Sequence[Lever], every: Sequence[Lever]) -> str:
        """Why nothing is tried, for people: `why` of the levers that are `free`, and which of their knobs keep others out of it."""
        names = {lever.name for lever in free}
        out = {name for lever in every if lever.name not in names for name in lever.names}
        if not (aside := sorted(out & self.frozen)):
            return why
        alone = f"left alone: {', '.join(aside)}"
        return f"{why}; {alone}" if free else f"every knob that it may turn is {alone}"
