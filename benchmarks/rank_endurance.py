"""Two ranks whose daemon is killed while one of them is suspended now and then: are they equal in the end?

`python -m benchmarks.rank_endurance [--minutes N] [--seed N]`. Two processes of torch's DDP (gloo, CPU) train
a small model. A viewer gives random commands: knobs, pauses, checkpoints. The learning rate and the sizes of
the batches decide the weights and the data positions. So a command that reaches one rank alone, or the two at
different iterations, makes them differ; one that changes the number of backward passes hangs them. The daemon
is killed every five seconds. One rank at a time is suspended and continued. Rank 1 refuses some values.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import hoptui
from benchmarks.measure import Bench, bench, machine, quantile, report, tell, until
from hoptui.client.client import Client
from hoptui.node.addresses import Addresses, addresses
from hoptui.node.processes import lock_holder
from hoptui.protocol.messages import FINAL, CommandRecord
from hoptui.recording import Recording
from hoptui.recording.library import at_rest

MINUTES, SEED = 10.0, 1
NAME = "rank-endurance"
WORLD = 2
ITERATION_S = 0.02
KILL_EVERY_S = 5.0
SUSPEND_EVERY_S = 20.0
COMMAND_EVERY_S = 0.4
MOST_OPEN = 40
START_S, WITHIN_S = 300.0, 60.0
FIRST_RATE, RATE_STEP = 1e-3, 1e-7
"""Each command for the learning rate has a value of its own."""
REFUSED = 9
"""Rank 1 refuses a learning rate of which the number ends with this digit."""
SIZES = {"batch": 32, "accum": 4}


# a rank -----------------------------------------------------------------------------------------------------


def rate(number: int) -> float:
    """Return the learning rate of a command."""
    return FIRST_RATE + number * RATE_STEP


def train(rank: int, port: int, result: Path) -> None:
    """Train until a stop, and write down what this rank ends with."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=FIRST_RATE, momentum=0.9)
    sizes = {"batch": 8, "accum": 1}
    step = position = 0
    calls: list[list[Any]] = []  # at which iteration, what, which value

    def set_rate(value: float) -> None:
        calls.append([step, "lr", value])
        optimizer.param_groups[0]["lr"] = value
        if rank == 1 and round((value - FIRST_RATE) / RATE_STEP) % 10 == REFUSED:
            raise ValueError("rank 1 does not want it")

    def set_size(name: str, value: int) -> None:
        calls.append([step, name, value])
        sizes[name] = value

    run = hoptui.connect(NAME)
    run.knob("lr", FIRST_RATE, min=0.0, max=1.0, apply=set_rate, read=lambda: optimizer.param_groups[0]["lr"])
    for name, most in SIZES.items():
        run.knob(name, sizes[name], min=1, max=most, apply=partial(set_size, name))
    run.on_checkpoint(lambda: calls.append([step, "checkpoint", 0]))
    while run.boundary(step):
        optimizer.zero_grad()
        for _ in range(sizes["accum"]):
            inputs = _samples(position * WORLD + rank, sizes["batch"])
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            loss.backward()
            position += sizes["batch"]
        optimizer.step()
        run.log(loss=loss.item(), samples=sizes["batch"] * sizes["accum"] * WORLD)
        step += 1
        time.sleep(ITERATION_S)
    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    buffers = [state["momentum_buffer"].numpy().tobytes() for state in optimizer.state.values()]
    result.write_text(
        json.dumps(
            {
                "step": step,
                "position": position,
                "weights": weights,
                "momentum": hashlib.sha256(b"".join(buffers)).hexdigest(),
                "values": [optimizer.param_groups[0]["lr"], *sizes.values()],
                "calls": calls,
            }
        )
    )
    run.close()
    dist.destroy_process_group()


def _samples(seed: int, count: int) -> Any:
    import torch

    return torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))


# the faults and the commands --------------------------------------------------------------------------------


class Person:
    """Gives random commands, and keeps what it was shown of them."""

    def __init__(self, where: Addresses, run: str, seed: int) -> None:
        self.client = Client(where, client="endurance")
        self.given: dict[str, tuple[str, Any, float]] = {}
        self.took: dict[str, float] = {}
        self._run, self._random, self._number = run, random.Random(seed), 0

    def act(self) -> None:
        """Give one command."""
        what, rng = self._random.random(), self._random
        if what < 0.5:
            self._number += 1
            self._give("set", knob="lr", value=rate(self._number))
        elif what < 0.85:
            name = rng.choice(tuple(SIZES))
            self._give("set", knob=name, value=rng.randint(1, SIZES[name]))
        elif what < 0.92:
            self._give("checkpoint")
        else:
            self._give("pause", hold_s=rng.uniform(0.2, 2.0))
            if rng.random() < 0.5:
                self._give("resume")

    def stop(self) -> None:
        """End the run."""
        self._give("stop")

    def _give(self, verb: Any, **details: Any) -> None:
        name = self.client.send(verb, self._run, **details)
        self.given[name] = (details.get("knob", verb), details.get("value"), time.monotonic())

    def look(self) -> list[CommandRecord]:
        """Return the records without a final stage, and note how long the others took."""
        known = self.client.store.commands
        for name, (_, _, at) in self.given.items():
            if name not in self.took and name in known and known[name].stage in FINAL:
                self.took[name] = time.monotonic() - at
        return [known[name] for name in self.given if name not in known or known[name].stage not in FINAL]


def disturb(
    where: Addresses, ranks: list[subprocess.Popen[str]], person: Person, until_s: float, seed: int
) -> Any:
    """Give commands, kill the daemon and suspend ranks until this time."""
    rng, did = random.Random(f"faults {seed}"), collections.Counter[str]()
    now = time.monotonic()
    kill_at, suspend_at, act_at, told_at = now + KILL_EVERY_S, now + SUSPEND_EVERY_S, now, now + 60.0
    suspended: list[tuple[float, subprocess.Popen[str]]] = []
    while (now := time.monotonic()) < until_s:
        if any(rank.poll() is not None for rank in ranks):
            break
        if now >= kill_at:
            kill_at = now + KILL_EVERY_S
            if daemon := lock_holder(where):
                os.kill(daemon, signal.SIGKILL)
                did["kills"] += 1
        if now >= suspend_at and not suspended:
            suspend_at = now + rng.uniform(0.5, 1.5) * SUSPEND_EVERY_S
            rank = rng.choice(ranks)
            rank.send_signal(signal.SIGSTOP)
            suspended.append((now + rng.uniform(0.3, 4.0), rank))
            did["suspensions"] += 1
        for ends, rank in suspended[:1]:
            if now >= ends:
                rank.send_signal(signal.SIGCONT)
                suspended.clear()
        if now >= act_at and len(person.look()) < MOST_OPEN:
            act_at = now + rng.uniform(0.2, 1.8) * COMMAND_EVERY_S
            person.act()
        if now >= told_at:
            told_at += 60.0
            tell("a minute", {"commands": len(person.given), "open": len(person.look()), **did})
        time.sleep(0.02)
    for _, rank in suspended:
        rank.send_signal(signal.SIGCONT)
    return did


def account(
    person: Person, ranks: list[dict[str, Any]], recorded: dict[str, CommandRecord]
) -> dict[str, Any]:
    """Compare the ranks with each other, and what was shown with what they did."""
    first, second = ranks
    shown = {name: person.client.store.commands.get(name) for name in person.given}
    called = collections.Counter(call[2] for call in first["calls"] if call[1] == "lr")
    false = 0
    for name, (what, value, _) in person.given.items():
        record = shown[name]
        if what == "lr" and record is not None:
            number = round((value - FIRST_RATE) / RATE_STEP)
            false += (record.stage == "applied") != (called[value] > 0 and number % 10 != REFUSED)
    counts = {}
    for knob in SIZES:
        applied = sum(r is not None and r.stage == "applied" and r.knob == knob for r in shown.values())
        counts[knob] = applied - sum(call[1] == knob for call in first["calls"])
    written = sum(r is not None and r.stage == "applied" and r.verb == "checkpoint" for r in shown.values())
    counts["checkpoint"] = written - sum(call[1] == "checkpoint" for call in first["calls"])
    differ = [name for name in first if first[name] != second[name]]
    return {
        "iterations": first["step"],
        "samples_of_each_rank": first["position"],
        "calls_of_setters": len(first["calls"]),
        "differ": differ,
        "commands": len(shown),
        "stages": dict(
            collections.Counter(f"{r.stage} {r.code}".strip() if r else "lost" for r in shown.values())
        ),
        "open": sum(record is None or record.stage not in FINAL for record in shown.values()),
        "false": false + sum(map(abs, counts.values())),
        "recorded_differently": sum(
            record is not None and (name not in recorded or recorded[name].stage != record.stage)
            for name, record in shown.items()
        ),
    }


def measure(minutes: float, seed: int) -> dict[str, Any]:
    """Disturb two ranks for so long, and account for everything."""
    with bench() as node:
        where = addresses()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        results = [node.base / f"rank{rank}.json" for rank in range(WORLD)]
        ranks = [_start(node, rank, port, results[rank]) for rank in range(WORLD)]
        found = until(lambda: node.find(NAME), START_S, "the run")
        person = Person(where, found.run, seed)
        person.client.start()
        until(lambda: _declared(person, found.run), START_S, "its knobs")
        began = time.monotonic()
        did = disturb(where, ranks, person, began + 60 * minutes, seed)
        until(lambda: not person.look(), WITHIN_S, "the last outcomes")
        person.stop()
        for rank in ranks:
            rank.wait(WITHIN_S)
        until(lambda: not person.look(), WITHIN_S, "the end")
        until(lambda: at_rest(where.recording(found.run)), WITHIN_S, "the end of the recording")
        with Recording.open(where.recording(found.run)) as recording:
            recorded = {record.id: record for record in recording.commands()}
        figures = account(person, [json.loads(result.read_text()) for result in results], recorded)
        person.client.close()
        took = list(person.took.values())
    figures |= {
        "minutes": minutes,
        "seed": seed,
        **did,
        "until_the_end_of_a_command_s": {
            "p50": round(quantile(took, 0.5), 2),
            "p90": round(quantile(took, 0.9), 2),
            "worst": round(max(took), 2),
        },
    }
    figures["met"] = {
        "values, weights and data positions are equal": not figures["differ"],
        "every command is answered once, truthfully": not any(
            figures[name] for name in ("open", "false", "recorded_differently")
        ),
    }
    return figures


def _start(node: Bench, rank: int, port: int, result: Path) -> subprocess.Popen[str]:
    arguments = ["--rank", str(rank), "--port", str(port), "--result", str(result)]
    command = [sys.executable, "-m", "benchmarks.rank_endurance", *arguments]
    return node.start(command, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")


def _declared(person: Person, run: str) -> bool:
    state = person.client.store.run(run)
    return state is not None and len(state.knobs) == 1 + len(SIZES) and "checkpoint" in state.can


def main() -> None:
    """Measure and report."""
    report("rank_endurance", measure(MINUTES, SEED))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rank_endurance", description="Two ranks.")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, default=Path(), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    asked = _options()
    if asked.rank is not None:
        train(asked.rank, asked.port, asked.result)
    else:
        figures = {"benchmark": "rank_endurance", "machine": machine(), **measure(asked.minutes, asked.seed)}
        print(json.dumps(figures))
