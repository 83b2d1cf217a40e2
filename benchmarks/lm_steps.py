"""A language model on one GPU or several, and the rate of its steps: for benchmarks in one process.

Rates are in windows of a second, after compilation. The text is the sources of Python's library in bytes.
"""

from __future__ import annotations

import sysconfig
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import spread, tell
from hoptui_trainer.common.device import wait_for
from hoptui_trainer.common.flops import mfu
from hoptui_trainer.common.memory import greatest_bytes, release, reset_peak
from hoptui_trainer.common.modes import ShardMode
from hoptui_trainer.common.phases import NO_CLOCK
from hoptui_trainer.common.ranks import ALONE, RankGroup, join
from hoptui_trainer.lm.config import preset_config
from hoptui_trainer.lm.state import LMState
from hoptui_trainer.lm.token_files import TokenStreams
from hoptui_trainer.lm.update import update

WINDOWS, WINDOW_S = 5, 0.8
PIECES = {"124m": 64, "350m": 32, "760m": 8, "tiny": 4}
"""Sequences of a piece: those that a run on an H100 chooses by measurement, or less; a step has two."""
LEARNING_STEPS = 40
RATE = 3e-4
"""The learning rate."""
HELD_OUT = 65_536
QUICK = {"d_model": 32, "layers": 1, "heads": 2, "seq_len": 32, "vocab_size": 256}

Figures = dict[str, Any]


class Machine:
    """Where it is measured; with `quick` the mechanics alone are tried, on a CPU."""

    def __init__(self, size: str, *, quick: bool) -> None:
        self.quick = quick
        self.size = "tiny" if quick else size
        self.device = torch.device("cpu") if quick else torch.device("cuda", 0)
        self.ranks = join("cpu" if quick else "cuda")
        self.windows, self.window_s = (2, 0.0) if quick else (WINDOWS, WINDOW_S)
        self.text = python_text(200_000 if quick else 8_000_000)

    def tell(self, case: str, figures: Figures) -> Figures:
        """`measure.tell`, on the first rank."""
        return figures if self.ranks.rank else tell(case, figures)

    def state(self, piece: int | None, pieces: int = 2, shard: ShardMode = "none", **fields: Any) -> LMState:
        """A state whose step is so many pieces for each rank, `fields` of its config as they are given."""
        config = preset_config(self.size)
        for name, value in ({**QUICK, "compile": "off", "precision": "fp32"} if self.quick else {}).items():
            setattr(config, name, value)
        config.micro_batch = piece or PIECES[self.size]
        config.eval_tokens, config.tokenizer = HELD_OUT, "bytes"
        for name, value in fields.items():
            if not (self.quick and name in ("compile", "precision")):
                setattr(config, name, value)
        config.batch_tokens = pieces * config.micro_batch * config.seq_len * self.ranks.world
        return LMState(config, 0, self.device, self.ranks, self.text, shard)


def python_text(limit: int) -> TokenStreams:
    """The sources of Python's library, as bytes: one token each."""
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    content = b"".join(source.read_bytes() for source in sources)[:limit]
    tokens = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(torch.int16)
    return TokenStreams(tokens[HELD_OUT:], tokens[:HELD_OUT], torch.ones(256, dtype=torch.int64))


def step(state: LMState) -> Tensor:
    """One step; its mean loss (0-d)."""
    return update(state, RATE, NO_CLOCK)["loss"]


def rates(
    machine: Machine, once: Callable[[], object], work: float, windows: int | None = None
) -> list[float]:
    """Work a second in each window, after two calls that compile."""
    once(), once()
    return [window(machine, once, work) for _ in range(windows or machine.windows)]


def window(machine: Machine, once: Callable[[], object], work: float, queued: int = 1) -> float:
    """Work a second in one window."""
    return rate(once, work, machine.window_s, machine.device, machine.ranks, queued=queued)


def rate(
    once: Callable[[], object],
    work: float,
    seconds: float,
    device: torch.device,
    ranks: RankGroup = ALONE,
    *,
    queued: int = 1,
) -> float:
    """Work a second in one window of so many seconds.

    `queued` calls follow each other before anything waits for the device.
    """
    wait_for(device)
    began, done = time.monotonic(), 0
    while not done or ranks.all(time.monotonic() - began < seconds):
        for _ in range(queued):
            once()
        done += queued
        wait_for(device)
    return done * work / (time.monotonic() - began)


def measured(machine: Machine, state: LMState) -> Figures:
    """Tokens a second, MFU and the greatest memory of steps of `state`."""
    reset_peak(machine.device)
    first_s = first_step(machine, state)
    found = spread(rates(machine, lambda: step(state), state.config.step_tokens), 1)
    return {
        "tokens_per_s": found,
        "mfu": mfu(state.cost, found["median"], machine.device, machine.ranks.world),
        "peak_memory_gb": round((greatest_bytes(machine.device) or 0) / 1e9, 2),
        "first_step_s": first_s,
    }


def first_step(machine: Machine, state: LMState) -> float:
    """Seconds of a step, which compiles if it is the first one."""
    began = time.monotonic()
    step(state)
    wait_for(machine.device)
    return round(time.monotonic() - began, 1)


def learned(machine: Machine, state: LMState) -> Figures:
    """The mean loss of the last eight of some steps from new weights."""
    found = [step(state) for _ in range(2 if machine.quick else LEARNING_STEPS)]
    return {"steps": len(found), "loss": round(float(torch.stack(found[-8:]).mean()), 4)}


def ended(machine: Machine) -> None:
    """Give back what the last case has used: its state must be unknown by now."""
    torch.compiler.reset()
    release(machine.device)


def versus(cases: Mapping[str, Figures], one: str, other: str) -> float | None:
    """The rate of one case over that of another; None if one of them was left out."""
    if not all("tokens_per_s" in cases[name] for name in (one, other)):
        return None
    rate, base = (float(cases[name]["tokens_per_s"]["median"]) for name in (one, other))
    return round(rate / base, 3)
