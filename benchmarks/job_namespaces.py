"""A job on two nodes that are network namespaces, joined by a pair of virtual interfaces. Needs root.

    python -m benchmarks.job_namespaces [--changes 50] [--ranks 2] [--workloads lm ppo]

Each namespace has a daemon of its own and a torchrun with so many ranks, which meet over the pair through
torchrun's c10d rendezvous. The trainers train over gloo. A viewer of each node gives every other change, of
random knobs to random values. `seen` is what both nodes show of the job before and after that. In the end the
weights of all ranks are compared by their hashes. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import quantile, report, tell, until
from hoptui.client.client import Client
from hoptui.domain.knobs import KnobState, KnobValue
from hoptui.node import processes
from hoptui.node.addresses import Addresses
from hoptui.protocol.messages import FINAL, CommandRecord

NODES, PORT = 2, 29401
START_S, CHANGE_S, END_S = 240.0, 90.0, 120.0
RANK = """
import atexit, hashlib, os, sys
from pathlib import Path
from torch.optim.optimizer import register_optimizer_step_post_hook
used = {}
register_optimizer_step_post_hook(lambda optimizer, *_: used.setdefault(id(optimizer), optimizer))

def tell():
    found = hashlib.sha256()
    for optimizer in used.values():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                found.update(parameter.detach().cpu().contiguous().view(-1).numpy().tobytes())
    (Path(os.environ["WEIGHTS"]) / os.environ["RANK"]).write_text(found.hexdigest())

atexit.register(tell)
from hoptui_trainer.__main__ import main
sys.exit(main())
"""
LEFT_OUT = ("compile",)
"""Knobs that are not changed: on few cores, the compiler takes minutes."""
WORKLOADS = {
    "lm": ["lm", "--preset", "tiny", "--iterations", "1000000", "--evaluate-every", "0"],
    "ppo": ["ppo", "--iterations", "1000000", "--evaluate-every", "0"],
}


class NamespaceNode:
    """A node: a network namespace, and directories of its own for a daemon."""

    def __init__(self, number: int, base: Path) -> None:
        self.number, self.name = number, f"hoptui-bench-{number}"
        self.address = f"10.77.0.{number + 1}"
        self.where = Addresses(base / f"run{number}", base / f"state{number}")
        self.environment = {name: value for name, value in os.environ.items() if name != "HOPTUI"} | {
            "HOPTUI_DIR": str(self.where.directory),
            "HOPTUI_STATE_DIR": str(self.where.state),
            "GLOO_SOCKET_IFNAME": f"veth{number}",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }

    def torchrun(self, ranks: int, script: Path, workload: str, weights: Path) -> subprocess.Popen[bytes]:
        """Start the ranks of this node."""
        command = ["ip", "netns", "exec", self.name, sys.executable, "-m", "torch.distributed.run"]
        command += ["--nnodes", str(NODES), "--nproc-per-node", str(ranks), "--node-rank", str(self.number)]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"10.77.0.1:{PORT}", "--rdzv-id", "bench"]
        command += ["--rdzv-conf", f"is_host={int(self.number == 0)}"]  # no name leads to the address
        command += ["--local-addr", self.address, str(script), *WORKLOADS[workload], "--device", "cpu"]
        environment = self.environment | {"WEIGHTS": str(weights)}
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)


@contextmanager
def namespaces(base: Path) -> Iterator[list[NamespaceNode]]:
    """Yield the nodes, with their interfaces up."""
    nodes = [NamespaceNode(number, base) for number in range(NODES)]
    with ExitStack() as stack:
        for node in nodes:
            _ip("netns", "add", node.name)
            stack.callback(_ip, "netns", "del", node.name)
        ends = [("veth0", nodes[0]), ("veth1", nodes[1])]
        _ip(
            "link",
            "add",
            "veth0",
            "netns",
            nodes[0].name,
            "type",
            "veth",
            "peer",
            "veth1",
            "netns",
            nodes[1].name,
        )
        for interface, node in ends:
            _ip("-n", node.name, "address", "add", f"{node.address}/24", "dev", interface)
            for up in (interface, "lo"):
                _ip("-n", node.name, "link", "set", up, "up")
        yield nodes


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def measure(workload: str, ranks: int, changes: int) -> dict[str, Any]:
    """Return the figures of one workload."""
    with tempfile.TemporaryDirectory(prefix="hoptui-ns-") as folder, ExitStack() as stack:
        base = Path(folder)
        weights, script = base / "weights", base / "rank.py"
        weights.mkdir()
        script.write_text(RANK)
        nodes = stack.enter_context(namespaces(base))
        clients = []
        for node in nodes:
            client = Client(node.where, client="bench", start_daemon=False)
            client.start()
            stack.callback(client.close)
            clients.append(client)
        agents = [node.torchrun(ranks, script, workload, weights) for node in nodes]
        for agent in agents:
            stack.callback(agent.wait)
            stack.callback(agent.terminate)  # torchrun ends its ranks
        for node in nodes:
            stack.callback(_stop_daemon, node)
        run = until(lambda: _run_of(clients[1]), START_S, "the run on the second node")
        for client in clients:
            client.watch(run)
        until(lambda: all(_complete(client, run) for client in clients), START_S, "all ranks on both nodes")
        found: dict[str, Any] = {"seen": [_seen(client, run) for client in clients]}
        found["changes"] = _change(clients, run, changes)
        found["seen_after"] = [_seen(client, run) for client in clients]
        clients[0].send("stop", run)
        for agent in agents:
            agent.wait(END_S)
        hashes = {path.name: path.read_text()[:16] for path in sorted(weights.iterdir())}
        found["weights"] = hashes
        found["weights_equal"] = len(set(hashes.values())) == 1 and len(hashes) == NODES * ranks
        found["exit_codes"] = [agent.returncode for agent in agents]
        return found


def _run_of(client: Client) -> str:
    node = client.store.node
    return node.runs[0].run if node is not None and node.runs else ""


def _complete(client: Client, run: str) -> bool:
    state = client.store.jobs.get(run)
    return state is not None and len(state.ranks()) == state.world and not state.store_problem


def _seen(client: Client, run: str) -> dict[str, Any]:
    state = client.store.jobs[run]
    return {
        "here": state.here,
        "nodes": [node.condition for node in state.nodes],
        "ranks": {rank.rank: [rank.condition, rank.step] for _, rank in state.ranks()},
        "store_problem": state.store_problem,
    }


def _change(clients: list[Client], run: str, changes: int) -> dict[str, Any]:
    """Change random knobs, in turns from each node. Return the outcomes, and how long they took by node."""
    source, outcomes = random.Random(7), Counter[str]()
    seconds: dict[int, list[float]] = {0: [], 1: []}
    reasons: Counter[str] = Counter()
    for number in range(changes):
        at = number % len(clients)
        client = clients[at]
        state = client.store.run(run)
        assert state is not None
        knob = source.choice(
            [knob for knob in state.knobs if knob.spec.cost != "restart" and knob.spec.name not in LEFT_OUT]
        )
        began = time.monotonic()
        name = client.send("set", run, knob=knob.spec.name, value=_value(knob, source))
        record: CommandRecord = until(partial(_final, client, name), CHANGE_S, knob.spec.name)
        seconds[at].append(time.monotonic() - began)
        tell(f"change {number + 1}", {"knob": knob.spec.name, "node": at, "stage": record.stage})
        outcomes[record.stage] += 1
        if record.stage != "applied":
            reasons[f"{knob.spec.name}: {record.code}"] += 1
    took = {
        f"node_{at}_s": {"p50": round(quantile(s, 0.5), 2), "max": round(max(s), 2)}
        for at, s in seconds.items()
    }
    return {"outcomes": dict(outcomes), "not_applied": dict(reasons), **took}


def _final(client: Client, name: str) -> CommandRecord | None:
    record = client.store.commands.get(name)
    return record if record is not None and record.stage in FINAL else None


def _value(knob: KnobState, source: random.Random) -> KnobValue:
    spec = knob.spec
    if spec.choices:
        return source.choice(spec.choices)
    if spec.kind == "bool":
        return source.random() < 0.5
    start = spec.default if isinstance(spec.default, int | float) else 1
    low = spec.min if spec.min is not None else start / 2
    high = spec.max if spec.max is not None else start * 2
    value = min(max(start * 2 ** source.uniform(-1, 1), low), high)
    return round(value) if spec.kind == "int" else value


def _stop_daemon(node: NamespaceNode) -> None:
    pid = processes.lock_holder(node.where)
    if pid and pid > 0:
        os.kill(pid, 15)


def main() -> int:
    """Measure, and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--changes", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--workloads", nargs="*", default=list(WORKLOADS))
    chosen = parser.parse_args()
    figures = {name: tell(name, measure(name, chosen.ranks, chosen.changes)) for name in chosen.workloads}
    report("job_namespaces", figures)
    print(json.dumps({name: one["weights_equal"] for name, one in figures.items()}), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
