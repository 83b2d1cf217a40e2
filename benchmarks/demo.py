"""How long a new user waits: `hoptui demo` to its first full frame, to the first iteration on it, and to a
significant effect of the change that the verdict advises.

The first full frame has every panel. It says that the run is starting, because torch is still imported then.
Each start is a real demo in a terminal of 120×40, with the key `o` pressed at 20 s, or as soon after as the
hint names it. All times are seconds since the command was started. `--nice` gives the processes of the
demo another priority, for a machine with other work.
"""

from __future__ import annotations

import argparse
import compileall
import sys
import time
from typing import Any, NamedTuple

import hoptui
import hoptui_trainer
from benchmarks.measure import Bench, Terminal, bench, report, spread, tell
from hoptui.domain.tuning import Measured
from hoptui.presentation import vocabulary
from hoptui.protocol.messages import CommandRecord

STARTS = 10
PRESS_S, MOST_S, STEP_S = 20.0, 120.0, 0.5
FRAME_TARGET_S, EFFECT_TARGET_S = 5.0, 90.0
FULL = r"(?s)Throughput.*Knobs.*leave"
TRAINS = r"\A[^\n]*● live   iteration [1-9]"
"""In the first line of the screen: training has done an iteration."""
ADVISED = "applies what the verdict advises"
"""In the hint that names the key."""
LEAVE = b"qn\n"


class Start(NamedTuple):
    """One start of the demo in seconds; None where it did not come to that in time."""

    frame_s: float | None
    trains_s: float | None
    advised_s: float | None
    effect_s: float | None
    gain: float | None
    missed: str = ""
    """What became of the change, where its effect was not significant in time."""

    @classmethod
    def of(cls, node: Bench, priority: int) -> Start:
        """Start the demo, take the advice, and wait for its effect."""
        command = ["nice", "-n", str(priority), sys.executable, "-m", "hoptui", "demo"]
        environment = {n: v for n, v in node.environment.items() if n != "PYTHONDONTWRITEBYTECODE"}
        terminal = Terminal(command, environment)
        pressed: float | None = None
        found: Measured | None = None
        try:
            while terminal.clock() < MOST_S and found is None:
                terminal.read(STEP_S)
                if pressed is not None:
                    found = significant(node)
                elif terminal.clock() >= PRESS_S and any(ADVISED in line for line in terminal.screen()):
                    pressed = terminal.clock()
                    terminal.type(b"o")
            at = terminal.clock()
            missed = "" if found else became(node)
            frame, trains = first(terminal, FULL), first(terminal, TRAINS)
            leave(terminal)
        finally:
            terminal.close()
        gain = found.gain if found else None
        return cls(frame, trains, pressed, at if found else None, gain, missed)


def first(terminal: Terminal, pattern: str) -> float | None:
    """When the pattern was on the screen for the first time."""
    return next((when for when, _ in terminal.shown(pattern, 0.0)), None)


def newest(node: Bench) -> CommandRecord | None:
    """The newest change of a knob."""
    with node.session() as session:
        records = session.fetch(state=0).commands
    return next((record for record in reversed(records) if record.verb == "set"), None)


def significant(node: Bench) -> Measured | None:
    """The effect of the newest change of a knob, once it is larger than its interval."""
    change = newest(node)
    found = change.measured if change is not None else None
    return found if found is not None and found.detectable else None


def became(node: Bench) -> str:
    """What became of the newest change of a knob, in a sentence."""
    change = newest(node)
    return vocabulary.sentence(change) if change is not None else "no knob was changed"


def leave(terminal: Terminal) -> None:
    """Quit, and let the run end."""
    for key in LEAVE:
        terminal.type(bytes((key,)))
        terminal.read(2.0)


def main() -> None:
    """Measure and report."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--starts", type=int, default=STARTS)
    options.add_argument("--nice", type=int, default=0)
    chosen = options.parse_args()
    for package in (*hoptui.__path__, *hoptui_trainer.__path__):  # as after an installation
        compileall.compile_dir(package, quiet=2)
    starts: list[Start] = []
    for _ in range(chosen.starts):
        with bench() as node:
            starts.append(tell("start", Start.of(node, chosen.nice)))
            time.sleep(STEP_S)
    report("demo", {"unit": "seconds", "nice": chosen.nice, **summary(starts)})


def summary(starts: list[Start]) -> dict[str, Any]:
    """Median and spread of what the starts came to, and how many were in time."""
    frames = [s.frame_s for s in starts if s.frame_s is not None]
    trains = [s.trains_s for s in starts if s.trains_s is not None]
    effects = [s.effect_s for s in starts if s.effect_s is not None]
    gains = [1 + s.gain for s in starts if s.gain is not None]
    return {
        "first_full_frame": spread(frames, 1) if frames else None,
        "first_iteration": spread(trains, 1) if trains else None,
        "first_effect": spread(effects, 1) if effects else None,
        "times_the_throughput": spread(gains, 1) if gains else None,
        "frames_in_time": sum(at <= FRAME_TARGET_S for at in frames),
        "effects_in_time": sum(at <= EFFECT_TARGET_S for at in effects),
        "starts": len(starts),
    }


if __name__ == "__main__":
    main()
