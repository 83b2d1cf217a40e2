"""Tokens a second of the language model with its tokens on the device and on disk, in turns.

`python -m benchmarks.lm_stream [--gb 2] [--turns 3] [--steps 6] [--micro-batch 64] [--quick]`, in one process
without the daemon. It writes a file of random tokens and trains `--preset 124m` on it. One model is used for
both, so that nothing but the way of the tokens differs: A on the device, B from disk, A, B, … Before each
turn, the kernel is told to forget the file. The batches of both are compared first. A turn begins with a step
that is not counted, because the first tokens of a run from disk are always waited for.

`waited` is the part of the time in which a step waited for its tokens.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.measure import report, spread, tell
from hoptui_trainer.common.device import wait_for
from hoptui_trainer.common.ranks import ALONE
from hoptui_trainer.lm.config import LMConfig, preset_config
from hoptui_trainer.lm.data_placement import make_sampler
from hoptui_trainer.lm.ready_tokens import read_ready
from hoptui_trainer.lm.state import LMState
from hoptui_trainer.lm.token_files import TokenStreams
from hoptui_trainer.lm.update import update

TARGET = 0.99
RATE = 3e-4
SEED = 0
WARM_UP_STEPS = 2
COMPARED_STEPS = 4
PART = 1 << 26
QUICK: dict[str, Any] = {"compile": "off", "precision": "fp32", "vocab_size": 1024}


class WaitClock:
    """Seconds that the host spent in each phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def queued(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began

    waited = queued

    def end_iteration(self) -> None:
        pass


def write_tokens(path: Path, count: int, vocabulary: int) -> None:
    """A file of random tokens, on the disk when this returns."""
    draw = np.random.default_rng(SEED)
    with path.open("wb") as file:
        while count:
            part = min(count, PART)
            file.write(draw.integers(0, vocabulary, part, dtype=np.uint16).tobytes())
            count -= part
        file.flush()
        os.fsync(file.fileno())


def forget(path: Path) -> None:
    """Drop what the kernel has in memory of a file."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Trial:
    """One model, and its tokens in both places."""

    def __init__(self, path: Path, config: LMConfig, device: torch.device) -> None:
        self._path, self._device = path, device
        ready = read_ready([path], "uint16", config.vocab_size, 0.0, config.eval_tokens)
        resident = TokenStreams(ready.train.load(device), ready.held_out, None)
        self._streams = {"device": resident, "disk": dataclasses.replace(resident, train=ready.train)}
        self.state = LMState(config, SEED, device, ALONE, resident)
        self.tokens = len(ready.train)

    def turn(self, where: str, steps: int) -> dict[str, float]:
        """Train so many steps on tokens that lie there; tokens a second, and the part of the time in which
        they were waited for."""
        state, streams, clock = self.state, self._streams[where], WaitClock()
        forget(self._path)
        state._text = streams
        state.sampler = make_sampler(streams.train, SEED, state.config.seq_len, self._device)
        update(state, RATE, clock)
        wait_for(self._device)
        clock.seconds.clear()
        began = time.monotonic()
        for _ in range(steps):
            update(state, RATE, clock)
        wait_for(self._device)
        seconds = time.monotonic() - began
        waited = clock.seconds.get("data", 0.0) / seconds
        return {"rate": round(steps * state.config.step_tokens / seconds, 1), "waited": round(waited, 5)}

    def same_batches(self) -> bool:
        """Whether both give the same batches, bit for bit."""
        config, count = self.state.config, self.state.config.micro_batch
        samplers = [
            make_sampler(streams.train, SEED, config.seq_len, self._device)
            for streams in self._streams.values()
        ]
        places = range(0, COMPARED_STEPS * config.step_tokens, count * config.seq_len)
        for place in places:
            one, other = (sampler.take(place, count, config.seq_len) for sampler in samplers)
            if not all(map(torch.equal, one, other)):
                return False
        return True


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lm_stream")
    parser.add_argument("--gb", type=float, default=2.0, help="GB of tokens")
    parser.add_argument("--turns", type=int, default=3, help="turns of each")
    parser.add_argument("--steps", type=int, default=6, help="steps of a turn")
    parser.add_argument("--micro-batch", type=int, default=64, help="sequences of a piece")
    parser.add_argument("--quick", action="store_true", help="try the mechanics on a CPU; keeps no result")
    given = parser.parse_args(list(arguments))
    if given.quick:
        torch.set_num_threads(1)
        device, gb, steps = torch.device("cpu"), 0.02, 20
        config = dataclasses.replace(preset_config("tiny"), **QUICK)
    else:
        device, gb, steps = torch.device("cuda", torch.cuda.current_device()), given.gb, given.steps
        torch.set_float32_matmul_precision("high")
        config = dataclasses.replace(preset_config("124m"), micro_batch=given.micro_batch)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hoptui-stream-") as folder:
        path = Path(folder) / "tokens.bin"
        write_tokens(path, int(gb * 1e9) // 2, min(50_257, config.vocab_size))
        tell("written", {"gb": gb, "seconds": round(time.monotonic() - began, 1)})
        trial = Trial(path, config, device)
        same = tell("the same batches", trial.same_batches())
        for where in ("device", "disk"):
            trial.turn(where, WARM_UP_STEPS)
        turns: dict[str, list[dict[str, float]]] = {"device": [], "disk": []}
        for _ in range(given.turns):
            for where, found in turns.items():
                found.append(tell(where, trial.turn(where, steps)))
        tokens = trial.tokens
    rates = {where: [turn["rate"] for turn in found] for where, found in turns.items()}
    ratio = statistics.median(rates["disk"]) / statistics.median(rates["device"])
    figures = {
        "unit": "tokens/s",
        "device": str(device),
        "tokens": tokens,
        "micro_batch": config.micro_batch,
        "cases": {where: spread(values, 1) for where, values in rates.items()},
        "turns": turns,
        "ratio": round(ratio, 4),
        "same_batches": same,
        "host_rss_mb": round(psutil.Process().memory_info().rss / 1e6, 1),
        "seconds": round(time.monotonic() - began, 1),
        "met": {f"disk ÷ device at least {TARGET}": ratio >= TARGET, "the same batches": same},
    }
    if given.quick:
        print(json.dumps(figures), flush=True)
        return figures
    return report("lm_stream", figures)


if __name__ == "__main__":
    main(sys.argv[1:])
