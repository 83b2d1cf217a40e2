"""What `hoptui run` costs: the start of a process that does not train, and the throughput of one that does.

`python -m benchmarks.injection_cost`: GPT-2 of transformers, a tiny one on the CPU. `--gpu`: the one of 124 M
on a GPU (about five minutes). Without transformers, only the start is measured.

Start: plain, injected and `hoptui run` itself take turns. Wall time and CPU time of each, and of their
differences in each turn. Throughput: one process with hoptui and one without take turns, a block of steps
each. Both exist all the time, so a change of the machine's speed concerns both. The ratio of each pair, and
its median.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks.measure import Bench, bench, report, spread, tell
from hoptui.injection import launch

TRAINING = """
import sys, time, torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel
gpu = sys.argv[1] == "gpu"
torch.manual_seed(0)
torch.set_num_threads(1)
length, batch = (1024, 8) if gpu else (64, 4)
sizes = {} if gpu else dict(n_layer=2, n_head=2, n_embd=64, vocab_size=512, n_positions=64)
device = "cuda" if gpu else "cpu"
config = GPT2Config(**sizes)
model = GPT2LMHeadModel(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=gpu)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10000)
tokens = torch.randint(config.vocab_size, (4096, length))
def batches():
    while True:
        yield from DataLoader(tokens, batch_size=batch, shuffle=True)
source = batches()
def step():
    ids = next(source).to(device)
    with torch.autocast(device, dtype=torch.bfloat16, enabled=gpu):
        loss = model(input_ids=ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
for _ in range(10):
    step()
print("ready", flush=True)
for line in sys.stdin:
    torch.cuda.synchronize() if gpu else None
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(int(line)):
        step()
    torch.cuda.synchronize() if gpu else None
    print(time.perf_counter() - began, time.process_time() - cpu, flush=True)
"""


def cost(command: list[str], environ: dict[str, str]) -> tuple[float, float]:
    """Return the wall time and the CPU time of a process in ms."""
    began = time.perf_counter()
    pid = os.posix_spawn(command[0], command, environ)
    _, status, used = os.wait4(pid, 0)
    assert status == 0, command
    return (time.perf_counter() - began) * 1e3, (used.ru_utime + used.ru_stime) * 1e3


def start(node: Bench, turns: int) -> dict[str, Any]:
    """Measure the start of `python -c pass`."""
    plain = [sys.executable, "-c", "pass"]
    injected = launch.environment(launch.Launch(plain, None, []), node.environment)
    cases = {
        "plain": (plain, node.environment),
        "injected": (plain, injected),
        "hoptui run": ([sys.executable, "-m", "hoptui", "run", "--", *plain], node.environment),
    }
    for command, environ in cases.values():  # compiles what is not compiled yet
        cost(command, environ)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for turn in range(turns):
        for name in list(cases) if turn % 2 else list(cases)[::-1]:
            found[name].append(cost(*cases[name]))
    figures: dict[str, Any] = {}
    for index, clock in enumerate(("wall_ms", "cpu_ms")):
        columns = {name: [each[index] for each in times] for name, times in found.items()}
        figures[clock] = {name: spread(times, 1) for name, times in columns.items()}
        for name in ("injected", "hoptui run"):
            more = [with_ - without for with_, without in zip(columns[name], columns["plain"], strict=True)]
            figures[clock][f"{name}, more than plain"] = spread(more, 1)
    return tell("start", figures)


def throughput(node: Bench, device: str, pairs: int, steps: int) -> dict[str, Any]:
    """Measure the throughput of training with hoptui and without, in turns."""
    command = [sys.executable, "-c", TRAINING, device]
    injected = launch.environment(launch.Launch(command, "cost", []), node.environment)
    mine: dict[str, Any] = {name: injected[name] for name in ("PYTHONPATH", launch.VARIABLE)}
    children = {"plain": node.start(command), "injected": node.start(command, **mine)}
    for child in children.values():
        answer(child)
    node.run("cost")
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in children}
    for pair in range(pairs):
        for name in list(children) if pair % 2 else list(children)[::-1]:
            child = children[name]
            assert child.stdin is not None
            child.stdin.write(f"{steps}\n")
            child.stdin.flush()
            wall, cpu = map(float, answer(child).split())
            seconds[name].append((wall, cpu))
    figures: dict[str, Any] = {"pairs": pairs, "steps_in_a_block": steps}
    for index, clock in enumerate(("wall", "cpu")):
        ratios = [a[index] / b[index] for a, b in zip(seconds["plain"], seconds["injected"], strict=True)]
        quartiles = statistics.quantiles(ratios, n=4)
        figures[f"throughput_with_to_without_{clock}"] = spread(ratios) | {
            "quartiles": [round(quartiles[0], 4), round(quartiles[2], 4)]
        }
        of_step = [each[index] / steps * 1e3 for each in seconds["plain"]]
        figures[f"plain_step_{clock}_ms"] = spread(of_step, 2)
    return tell("throughput", figures)


def answer(child: subprocess.Popen[str]) -> str:
    """Return the next line of a process."""
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line, "the training ended"
    return line


def main(words: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--steps", type=int, default=25)
    given = parser.parse_args([] if words is None else words)
    figures: dict[str, Any] = {}
    with bench() as node:
        figures["start"] = start(node, given.turns)
        if importlib.util.find_spec("transformers"):
            device = "gpu" if given.gpu else "cpu"
            figures[device] = throughput(node, device, given.pairs, given.steps)
    report("injection_cost", figures)


if __name__ == "__main__":
    main(sys.argv[1:])
