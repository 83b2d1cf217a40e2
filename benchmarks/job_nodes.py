"""What a job of many nodes costs its head, and how old what it shows is: simulated nodes, a real store.

    python -m benchmarks.job_nodes [--ranks 8 64 512 2048] [--seconds 30] [--seeds 20] [--first 0]

A TCPStore server, the nodes other than the head, and rank 0 are processes of their own. Rank 0 is a real run
with a real daemon. It logs as many metrics and events as a head tells the other nodes, so `facts_kib` of its
record of `head_kib` is nearly as much as that may be. Each simulated node writes its record once a second
through a connection of its own, and reads the record of the head once in ten seconds. `delay_s` is the time
from what a node has written to the state that a viewer of the head receives. CPU is in per cent of a core.
`named` are the faults in a job of 512 ranks that were named within 20 s and within a minute, out of the
seeds. `wrong` are reports of others, and `again` later ones of the same. The rules were made with the seeds
from 0 on; other seeds are the test. A rank is 10 % slower, hung, or its node is silent; the ranks also spend
no, or 2 %, of an iteration in a collective. Samples are taken as the sampler takes them, or at independent
times, which tell less. In one case the ranks also time a fifth of their work in phases. The even ranks wait
little, or for 30 % of iterations that are as long as the time between two samples. Prints JSON.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

import msgspec
import psutil

from benchmarks.measure import Bench, bench, quantile, report, tell, until
from benchmarks.simulated_job import Fault, Sampling, SimulatedJob
from hoptui.client.client import Client
from hoptui.diagnosis.job_health import JobHealth
from hoptui.protocol.job_records import MOST_EVENTS, MOST_METRICS, NodeRecord, encode_node, encode_state
from hoptui.sdk.ranks import RunIdentity

PER_NODE = 8
LETTERS = 100
"""Of the name of a metric of rank 0, as many as hoptui keeps. They are at random, so they do not compress."""
SERVER = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""
RANK_0 = """
import random, sys, time, hoptui, torch.distributed as dist
from benchmarks.job_nodes import event_texts, metric_names
from hoptui.sdk.rank_store import TorchStore
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, wait_for_workers=False)
run = hoptui.connect("many", ranks=TorchStore(store, 0, int(sys.argv[2])))
names = metric_names()
for text in event_texts():
    run.event(text)
for i in run.iterations():
    run.log({name: random.random() for name in names})
    time.sleep(0.5)
"""
HEAD = """
import sys, torch.distributed as dist
from hoptui.protocol.job_records import decode_job
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, wait_for_workers=False)
body = store.get(f"{sys.argv[2]}head")
print(len(body), len(decode_job(body).run), flush=True)
"""
NODES = """
import sys
from benchmarks.job_nodes import write_nodes
write_nodes(int(sys.argv[1]), int(sys.argv[2]))
"""
WITHIN_S, LATEST_S, FAULT_AT = 20, 60, 25


def metric_names() -> list[str]:
    """Return the names of the metrics of rank 0, as many as a head tells."""
    dice = random.Random(1)
    return [f"{dice.getrandbits(4 * LETTERS):0{LETTERS}x}" for _ in range(MOST_METRICS)]


def event_texts() -> list[str]:
    """Return the texts of the events of rank 0, as many as a head tells."""
    dice = random.Random(2)
    return [f"{dice.getrandbits(1200):0300x}" for _ in range(MOST_EVENTS)]


def write_nodes(port: int, world: int) -> None:
    """Write the records of all nodes but the head, once a second, until the process is killed.

    Prints the prefix of their keys.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from hoptui.sdk.job_exchange import NodeRecords
    from hoptui.sdk.rank_session import RankSession
    from hoptui.sdk.rank_store import Presence, TorchStore

    job = SimulatedJob(world, PER_NODE)
    first = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    session = RankSession(TorchStore(first, PER_NODE, world), "0/")
    presence = Presence(session, "")
    while not session.meet(presence) or (identity := session.get("identity")) is None:
        time.sleep(0.05)
    prefix = f"0/job/{msgspec.msgpack.decode(identity, type=RunIdentity).nonce}/"
    print(prefix, flush=True)
    records = []
    for node in range(1, job.nodes):
        own = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        records.append(NodeRecords(TorchStore(own, node * PER_NODE, world), prefix))
    turn, due = 0, time.monotonic()
    while True:
        job.tick()
        turn += 1
        for node, record in enumerate(records, 1):
            # The nodes of a real job write at any time of a second.
            time.sleep(max(0.0, due + (node - 1) / len(records) - time.monotonic()))
            summary = job.summary(node, wall=time.time())
            record.write(encode_node(NodeRecord(node=f"node-{node}", summary=summary)))
            if (turn + node) % 10 == 0:
                record.read_head()
        due += 1.0
        time.sleep(max(0.0, due - time.monotonic()))


class Watched:
    """CPU and memory of a process between two looks."""

    def __init__(self, pid: int) -> None:
        self.process = psutil.Process(pid)
        self.begin()

    def begin(self) -> None:
        """Measure from now on."""
        self.began, self.cpu = time.monotonic(), self._cpu()

    def figures(self) -> dict[str, float]:
        """Return per cent of a core, and MiB."""
        cpu = 100 * (self._cpu() - self.cpu) / (time.monotonic() - self.began)
        return {"cpu_percent": round(cpu, 2), "rss_mib": round(self.process.memory_info().rss / 2**20, 1)}

    def _cpu(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system


def scale(world: int, seconds: float) -> dict[str, Any]:
    """Return the figures of one size."""
    with bench() as node, ExitStack() as stack:
        server = node.python(SERVER)
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        client = Client(client="bench")
        client.start()
        stack.callback(client.close)
        rank = node.python(RANK_0, port, str(world))
        others = [node.python(NODES, port, str(world))] if world > PER_NODE else []
        run = node.run("many").run
        client.watch(run)
        if others:
            until(lambda: _known(client, run) == -(-world // PER_NODE), 120, "all nodes")
        else:
            until(lambda: client.store.vital(run), 30, "the run")
        daemon = until(lambda: client.store.node, 30, "the daemon").pid
        pids = {"daemon": daemon, "rank_0": rank.pid, "store": server.pid}
        pids |= {"nodes": others[0].pid} if others else {}
        watched = {name: Watched(pid) for name, pid in pids.items()}
        delays, silent = _delays(client, run, seconds)
        found: dict[str, Any] = {name: one.figures() for name, one in watched.items()}
        if delays:
            found["delay_s"] = {
                "p50": round(quantile(delays, 0.5), 2),
                "p99": round(quantile(delays, 0.99), 2),
                "max": round(max(delays), 2),
            }
            found["state_kib"] = round(len(encode_state(client.store.jobs[run])) / 1024, 1)
            head, facts = _head_bytes(node, port, others[0])
            found["head_kib"], found["facts_kib"] = round(head / 1024, 1), round(facts / 1024, 1)
            found["seen_silent"] = silent
        return found


def _head_bytes(node: Bench, port: str, nodes: subprocess.Popen[str]) -> tuple[int, int]:
    """Return the size of the record of the head, and of what it says of the run in it."""
    assert nodes.stdout is not None
    told = node.python(HEAD, port, nodes.stdout.readline().strip()).stdout
    assert told is not None
    whole, facts = map(int, told.readline().split())
    return whole, facts


def _known(client: Client, run: str) -> int:
    state = client.store.jobs.get(run)
    return sum(node.summary is not None for node in state.nodes) if state is not None else 0


def _delays(client: Client, run: str, seconds: float) -> tuple[list[float], int]:
    """Return how old the summaries of other nodes are when a viewer has them first, in seconds.

    Also return how often one of them was seen as silent.
    """
    end, silent, before = time.monotonic() + seconds, 0, None
    seen: dict[int, int] = {}
    delays: list[float] = []
    while time.monotonic() < end:
        time.sleep(0.02)
        state, now = client.store.jobs.get(run), time.time()
        if state is None or state is before:
            continue
        for node in state.nodes[1:]:
            silent += node.condition == "silent"
            if node.summary is not None and node.summary.number != seen.get(node.index):
                if before is not None:
                    delays.append(now - node.summary.wall)
                seen[node.index] = node.summary.number
        before = state
    return delays, silent


def named(
    fault: Fault, collective: float, seeds: range, sampling: Sampling = "sampler", measured: float = 0.0
) -> dict[str, Any]:
    """Return how soon a fault among 512 ranks is named, in simulated seconds. See SimulatedJob."""
    after: dict[int, int] = {}
    wrong = again = 0
    for seed in seeds:
        bad, health = random.Random(seed).randrange(512), JobHealth()
        node = list(range(bad // PER_NODE * PER_NODE, (bad // PER_NODE + 1) * PER_NODE))
        job = SimulatedJob(
            512,
            fault=fault,
            fault_at=FAULT_AT,
            bad=bad,
            seed=100 + seed,
            collective=collective,
            sampling=sampling,
            measured=measured,
        )
        for second in range(1, FAULT_AT + LATEST_S + 1):
            job.tick()
            for what in health.look(job.state(), float(second)):
                found = what.fields.get("ranks") or [what.fields.get("rank")]
                right = found == (node if fault in ("silent", "slow node") else [bad])
                if right and second >= FAULT_AT and seed not in after:
                    after[seed] = second - FAULT_AT
                elif second >= FAULT_AT and (right or (fault == "slow node" and set(found) < set(node))):
                    again += 1
                else:
                    wrong += 1
    return {
        "seeds": [seeds.start, seeds.stop],
        "within_20_s": sum(seconds <= WITHIN_S for seconds in after.values()),
        "within_60_s": len(after),
        "seconds": sorted(after.values()),
        "wrong": wrong,
        "again": again,
    }


def even(minutes: int, job: SimulatedJob) -> int:
    """Return how many reports a job of even ranks gets in so many simulated minutes."""
    health, found = JobHealth(), 0
    for second in range(60 * minutes):
        job.tick()
        found += len(health.look(job.state(), float(second)))
    return found


def main() -> int:
    """Measure, and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="*", default=[8, 64, 512, 2048])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    chosen = parser.parse_args()
    figures: dict[str, Any] = {"scale": {}, "named": {}}
    for world in chosen.ranks:
        figures["scale"][str(world)] = tell(f"{world} ranks", scale(world, chosen.seconds))
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    faults: tuple[Fault, ...] = ("slow", "slow node", "hung", "silent")
    for fault in faults if chosen.seeds else ():
        for collective in (0.0, 0.02):
            case = f"{fault}, {100 * collective:g} % collective"
            figures["named"][case] = tell(case, named(fault, collective, seeds))
    if chosen.seeds:
        for collective in (0.0, 0.02):
            case = f"slow, {100 * collective:g} % collective, independent samples"
            figures["named"][case] = tell(case, named("slow", collective, seeds, "independent"))
        case = "slow, 2 % collective, independent samples, a fifth of the work in phases"
        figures["named"][case] = tell(case, named("slow", 0.02, seeds, "independent", 0.2))
        seed = 5 + chosen.first
        jobs = {
            "wait little": SimulatedJob(512, seed=seed),
            "wait little, independent samples": SimulatedJob(512, seed=seed, sampling="independent"),
            "wait 30 % of 0.1 s": SimulatedJob(512, seed=seed, collective=0.3, own_s=0.07),
        }
        figures["even_reports_in_10_min"] = {
            case: tell(f"even ranks {case}", even(10, job)) for case, job in jobs.items()
        }
    report("job_nodes", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
