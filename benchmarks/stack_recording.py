"""What stack samples add to a recording: an hour of 1, 8 and 64 ranks, with the samples and without them.

The stacks are those of a small loop of torch (modules within modules, a data loader, an optimizer), sampled
for some seconds. Each rank sends one of its own messages every two seconds, drawn in advance: 20 samples in
other shares. Both recordings have the rows of the run, ten a second with eight metrics.

    python -m benchmarks.stack_recording --seconds 60 [--ranks 64]
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import structs

from benchmarks.measure import report, tell
from hoptui.daemon.state.stack_windows import StackWindows
from hoptui.domain.columns import Columns, pack
from hoptui.domain.stacks import Stack, StackSamples, unpack
from hoptui.domain.stacks import pack as pack_stacks
from hoptui.recording import Recording, stack_minutes
from hoptui.sdk.stack_sampler import StackSampler

SECOND = 1_000_000_000
HOUR_S, PART_S, HZ = 3600, 2, 10
RANKS = (1, 8, 64)
METRICS = 8
DRAWN = 120
"""Messages of a rank that are drawn in advance: those of four minutes."""
MB = 1e6


def loop() -> Callable[[], object]:
    """Return one step of a deep model that reads from a data loader."""
    import torch

    torch.set_num_threads(1)

    class Block(torch.nn.Module):
        def __init__(self, depth: int) -> None:
            super().__init__()
            self.inner = Block(depth - 1) if depth else torch.nn.Linear(64, 64)
            self.norm = torch.nn.LayerNorm(64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = x + self.norm(self.inner(x))
            return found

    net = torch.nn.Sequential(*(Block(8) for _ in range(4)))
    optimizer = torch.optim.AdamW(net.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(4096, 64))
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    batches = iter(loader)
    losses: list[float] = []

    def step() -> None:
        nonlocal batches
        try:
            (x,) = next(batches)
        except StopIteration:
            batches = iter(loader)
            (x,) = next(batches)
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    return step


def real_stacks(seconds: float) -> Counter[Stack]:
    """Return the stacks of the loop in some seconds, taken a hundred times as often as in a run."""
    step = loop()
    thread = threading.get_ident()
    sampler = StackSampler(lambda: thread, lambda: "", lambda error: None)
    found: Counter[Stack] = Counter()
    over = threading.Event()

    def take() -> None:
        while not over.wait(0.001):
            sampler.sample()

    taker = threading.Thread(target=take, daemon=True)
    taker.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        step()
    over.set()
    taker.join()
    while (samples := sampler.take()) is not None:
        found.update(unpack(samples))
    return found


def messages(stacks: Counter[Stack], rank: int) -> list[StackSamples]:
    """Return what a rank sends, each with 20 samples of two seconds."""
    rng = random.Random(rank)
    each, weights = list(stacks), list(stacks.values())
    return [
        pack_stacks(Counter(rng.choices(each, weights, k=PART_S * HZ)), 0, 1, cost=rng.uniform(0.0002, 0.001))
        for _ in range(DRAWN)
    ]


def rows(second: int, rng: random.Random) -> Columns:
    """Return the rows of a second."""
    t = (second + 100) * SECOND
    return pack(
        "run/bench",
        [
            (t + i * SECOND // HZ, second * HZ + i, {f"m{n}": rng.gauss(1, 0.1) for n in range(METRICS)})
            for i in range(HZ)
        ],
    )


def hour(path: Path, stacks: Counter[Stack], ranks: int) -> dict[str, Any]:
    """Write an hour, with the samples of some ranks (0: without any). Return its size, and what is kept."""
    rng, turns = random.Random(1), random.Random(2)
    windows = StackWindows()
    drawn = [messages(stacks, rank) for rank in range(ranks)]
    encoding_s, sizes, sent, kept = [], [], 0, 0
    with Recording.create(path) as recording:
        for second in range(0, HOUR_S, PART_S):
            for n in range(PART_S):
                recording.append(rows(second + n, rng))
            t = (second + 100) * SECOND
            for rank in range(ranks):
                samples = turns.choice(drawn[rank])
                windows.add(rank, structs.replace(samples, began=t - PART_S * SECOND, ended=t))
            if ranks and windows.due(t) and (batch := windows.take(t)) is not None:
                began = time.process_time()
                body = stack_minutes.encode(batch.parts, batch.t, batch.most_bytes)
                encoding_s.append(time.process_time() - began)
                sizes.append(len(body))
                sent += batch.samples
                found = stack_minutes.decode(body, t).ranks.values()
                kept += sum(sum(each.counts) for each in found)
                recording.stacks(batch.t, body, batch.samples)
            recording.flush()
        used = recording.used_bytes
    return {
        "mb": used / MB,
        "largest_minute_bytes": max(sizes, default=0),
        "kept_share": kept / sent if sent else None,
        "encoding_ms_a_minute": 1000 * sum(encoding_s) / len(encoding_s) if encoding_s else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stack_recording")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the loop of torch is sampled")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    options = parser.parse_args()
    stacks = real_stacks(options.seconds)
    depths = sorted(map(len, stacks))
    tell("stacks", {"different": len(stacks), "deepest": depths[-1]})
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        without = hour(Path(folder) / "none.hoptui", stacks, 0)
        for ranks in options.ranks:
            found = hour(Path(folder) / f"{ranks}.hoptui", stacks, ranks)
            figures[f"{ranks}_ranks"] = {**found, "more_mb": found["mb"] - without["mb"]}
            tell(f"{ranks} ranks", figures[f"{ranks}_ranks"])
    report(
        "stack_recording",
        {
            "different_stacks": len(stacks),
            "median_depth": depths[len(depths) // 2],
            "deepest": depths[-1],
            "without_mb": without["mb"],
            "figures": figures,
        },
    )


if __name__ == "__main__":
    main()
