"""What `hoptui run` costs: the start of a process that does not train, and the throughput of one that does.

`python -m benchmarks.injection_cost`: GPT-2 of transformers, a tiny one on the CPU. `--gpu`: the one of 124 M
on a GPU (about five minutes). Without transformers, only the start is measured.

Start: plain, injected and `hoptui run` itself take turns. An installed wheel has the script that users run.
Wall time and CPU time of each, and of their differences in each turn.

Throughput: three processes take turns, a block of steps each: one with hoptui, one without, and another one
without, the control. A change of the machine's speed concerns all three. Two processes of the same program
differ by some percent, as long as they live, by where their memory lies. So `--trios` are started afresh, and
the ratio of each is the median of its blocks: what plain takes to what the other takes, 1 for no cost.

Added: what hoptui adds to such a step. The hooks of the optimizer and of the DataLoader are timed one by one,
less the code of torch in them. The CPU time of the threads of hoptui is the kernel's. With `--beside TREE`, a
process with another version of hoptui takes turns with it.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
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
WATCH
print("ready", flush=True)
for line in sys.stdin:
    torch.cuda.synchronize() if gpu else None
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(int(line)):
        step()
    torch.cuda.synchronize() if gpu else None
    print(time.perf_counter() - began, time.process_time() - cpu, *added(), flush=True)
"""
NOTHING = "added = tuple"
HOOKS = """
import statistics, threading
from pathlib import Path
from torch.optim import optimizer as hooks
from torch.utils.data import dataloader
clock = time.perf_counter_ns
spent = {"optimizer": 0, "loader": 0}
def timed(function, part, sign=1):
    def call(*args):
        began = clock()
        try:
            return function(*args)
        finally:
            spent[part] += sign * (clock() - began)
    return call
steps = []
def end(*_):
    steps.append(tuple(spent.values()))
    spent.update(optimizer=0, loader=0)
for known in (hooks._global_optimizer_pre_hooks, hooks._global_optimizer_post_hooks):
    for key, hook in list(known.items()):
        known[key] = timed(hook, "optimizer")
hooks.register_optimizer_step_post_hook(end)
base = dataloader._BaseDataLoaderIter
for name in ("__next__", "_next_index"):
    hook = getattr(base, name)
    for cell in hook.__closure__:
        if callable(cell.cell_contents):
            cell.cell_contents = timed(cell.cell_contents, "loader", -1)
    setattr(base, name, timed(hook, "loader"))
def cpu_ns(thread):
    return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0])
def added():
    python = {thread.native_id: thread.name for thread in threading.enumerate()}
    tasks = Path("/proc/self/task").iterdir()
    names = {int(task.name): (task / "comm").read_text().strip() for task in tasks}
    found = {"link": 0, "stacks": 0, "zmq": 0}
    for thread, name in (names | python).items():
        part = {"hoptui-link": "link", "hoptui-stacks": "stacks"}.get(name, name[:3].lower())
        if part in found:
            found[part] += cpu_ns(thread)
    hooked = [f(part) for part in zip(*steps) for f in (statistics.median, statistics.mean)]
    steps.clear()
    return *hooked, *found.values()
"""
HOOKED = ("optimizer hooks", "…, mean", "DataLoader hooks", "…, mean ")
CASES = ("injected", "control")
THREADS = ("link thread", "stack sampler", "ZeroMQ")


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
    script = Path(sys.executable).with_name("hoptui")
    run = [str(script)] if script.exists() else [sys.executable, "-m", "hoptui"]
    cases = {
        "plain": (plain, node.environment),
        "injected": (plain, injected),
        "hoptui run": ([*run, "run", "--", *plain], node.environment),
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


def throughput(node: Bench, device: str, trios: int, pairs: int, steps: int) -> dict[str, Any]:
    """Measure the throughput of training with hoptui and without, in turns."""
    command = [sys.executable, "-c", TRAINING.replace("WATCH", NOTHING), device]
    ratios: dict[str, dict[str, list[float]]] = {case: {"wall": [], "cpu": []} for case in CASES}
    plain_ms: list[float] = []
    for trio in range(trios):
        injected = launch.environment(launch.Launch(command, f"cost-{trio}", []), node.environment)
        mine: dict[str, Any] = {name: injected[name] for name in ("PYTHONPATH", launch.VARIABLE)}
        order = ["plain", *CASES][:: -1 if trio % 2 else 1]
        children = {name: node.start(command, **(mine if name == "injected" else {})) for name in order}
        for child in children.values():
            answer(child)
        assert node.run(f"cost-{trio}").pid == children["injected"].pid
        blocks: dict[str, list[list[float]]] = {name: [] for name in children}
        for pair in range(pairs):
            for name in list(children)[:: -1 if pair % 2 else 1]:
                blocks[name].append(block(children[name], steps))
        for case in CASES:
            for index, clock in enumerate(("wall", "cpu")):
                found = [a[index] / b[index] for a, b in zip(blocks["plain"], blocks[case], strict=True)]
                ratios[case][clock].append(statistics.median(found))
        plain_ms += [each[0] / steps * 1e3 for each in blocks["plain"]]
        for child in children.values():
            child.communicate(timeout=60)
    figures: dict[str, Any] = {"trios": trios, "blocks": pairs, "steps_in_a_block": steps}
    for case, clocks in ratios.items():
        for clock, each in clocks.items():
            quartiles = statistics.quantiles(each, n=4)
            figures[f"throughput_of_plain_to_{case}_{clock}"] = spread(each) | {
                "quartiles": [round(quartiles[0], 4), round(quartiles[2], 4)]
            }
    return tell("throughput", figures | {"plain_step_wall_ms": spread(plain_ms, 2)})


def added(node: Bench, device: str, trees: list[str], pairs: int, steps: int) -> dict[str, Any]:
    """Measure what each version of hoptui adds to a step, in µs, in turns."""
    command = [sys.executable, "-c", TRAINING.replace("WATCH", HOOKS), device]
    found: dict[str, list[list[float]]] = {}
    children = {}
    for number, tree in enumerate(trees):
        mine = launch.environment(launch.Launch(command, f"added-{number}", []), node.environment)
        path = os.pathsep.join([f"{tree}/hoptui/injection/site", tree])
        more: dict[str, Any] = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        more[launch.VARIABLE] = mine[launch.VARIABLE]
        children[tree] = node.start(command, **more)
        found[tree] = []
    for number, child in enumerate(children.values()):
        answer(child)
        node.run(f"added-{number}")
    for child in children.values():
        block(child, steps)
    for pair in range(pairs):
        for tree in trees if pair % 2 else trees[::-1]:
            found[tree].append(block(children[tree], steps))
    figures: dict[str, Any] = {"steps": pairs * steps, "unit": "µs a step"}
    for tree, blocks in found.items():
        first, last = blocks[0], blocks[-1]
        took = (len(blocks) - 1) * steps
        parts = {
            name: round(statistics.median(each[2 + i] for each in blocks) / 1e3, 1)
            for i, name in enumerate(HOOKED)
        }
        for i, name in enumerate(THREADS, 2 + len(HOOKED)):
            parts[name] = round((last[i] - first[i]) / took / 1e3, 1)
        step_us = statistics.median(each[0] for each in blocks) / steps * 1e6
        figures[tree] = {"step": round(step_us, 1), **parts}
    return tell("added", figures)


def block(child: subprocess.Popen[str], steps: int) -> list[float]:
    """Train so many steps. Return the seconds by the clock and of the CPU, and what `WATCH` adds."""
    assert child.stdin is not None
    child.stdin.write(f"{steps}\n")
    child.stdin.flush()
    return list(map(float, answer(child).split()))


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
    parser.add_argument("--trios", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=10, help="blocks of each process")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--beside", default="", help="the root of another version of hoptui")
    given = parser.parse_args([] if words is None else words)
    figures: dict[str, Any] = {}
    with bench() as node:
        figures["start"] = start(node, given.turns)
        if importlib.util.find_spec("transformers"):
            device = "gpu" if given.gpu else "cpu"
            figures[device] = throughput(node, device, given.trios, given.pairs, given.steps)
            trees = [str(Path(__file__).resolve().parents[1]), *([given.beside] if given.beside else [])]
            figures["added"] = added(node, device, trees, given.pairs, given.steps)
    report("injection_cost", figures)


if __name__ == "__main__":
    main(sys.argv[1:])
