"""Whether `hoptui stack` shows what NCCL knows of a hang, on a machine with two GPUs.

    python -m benchmarks.nccl_ras

Two ranks train under NCCL. Rank 1 leaves out a collective, which rank 0 waits for. What `hoptui stack --json`
has of NCCL is compared with the answer of its RAS service on its port, which this program asks by itself.
Takes about a minute. NCCL needs to be 2.28.7 or newer. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.measure import Bench, bench, report, tell, until
from hoptui.cli.support.terminal import MISSING, OK

NAME = "ras"
HANGS_AT = 20
LIMIT_S = 30.0
"""The longest time until rank 0 waits in the collective that rank 1 has left out."""
AGREE_S = 40.0
"""The longest time until the run counts as hung, and the newest stack samples are those of the hang."""
ASKED_S = 10.0
"""The longest time for one question."""
ASK_EVERY_S = 1.0
VARYING = frozenset(("timestamp", "ras"))
"""Parts of an answer that differ each time."""
COLLECTIVE = "AllReduce"
RANK = """
import os, sys, threading, torch, torch.distributed as dist, hoptui
rank, store = int(os.environ["RANK"]), sys.argv[1]
torch.cuda.set_device(rank)
device = torch.device("cuda", rank)
dist.init_process_group("nccl", init_method="file://" + store, rank=rank, world_size=2, device_id=device)
run = hoptui.connect(sys.argv[2], ranks="auto")
ones = torch.ones(1 << 16, device=device)
for step in run.iterations():
    if step == HANGS_AT and rank == 1:
        print(torch.cuda.nccl.version(), flush=True)
        threading.Event().wait()
    dist.all_reduce(ones)
    torch.cuda.synchronize()
    threading.Event().wait(0.02)
"""


def raw(port: int) -> dict[str, Any]:
    """Ask the RAS service by the protocol of NCCL's documentation, one command at a time.

    Raises:
        ValueError: the service does not speak JSON.
    """
    with (
        socket.create_connection(("localhost", port), ASKED_S) as connection,
        connection.makefile("rw", encoding="utf-8", newline="\n") as lines,
    ):
        lines.write("SET FORMAT json\n")
        lines.flush()
        if (said := lines.readline().strip()) != "OK":
            raise ValueError(f"the service has no JSON: {said}")
        lines.write("VERBOSE STATUS\n")
        lines.flush()
        found: dict[str, Any] = json.loads(lines.read())
        return found


def lasting(answer: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the parts of an answer that are the same for two questions about a run that hangs."""
    return {name: value for name, value in (answer or {}).items() if name not in VARYING}


def begun(answer: Mapping[str, Any], pid: int) -> list[int]:
    """Return how many all-reduces a process has begun, for each communicator that it is in."""
    return [
        rank["collective_counts"][COLLECTIVE]
        for communicator in answer["communicators"]
        for rank in communicator["ranks"]
        if rank["pid"] == pid
    ]


def checked(
    answer: Mapping[str, Any], shown: Mapping[str, Any], text: str, pids: Sequence[int]
) -> dict[str, bool]:
    """Return what is true of a hang in which the second process has left out an all-reduce.

    Args:
        answer: What the service says.
        shown: What `hoptui stack --json` says.
        text: What `hoptui stack` says.
        pids: Those of rank 0 and 1.
    """
    first, second = (begun(answer, pid) for pid in pids)
    ahead = [(a, b) for a, b in zip(first, second, strict=True) if a == b + 1]
    said = [f"rank 1 has begun {b} × {COLLECTIVE}, rank 0 has begun {a} ×" for a, b in ahead]
    groups = shown["groups"]
    return {
        "NCCL: rank 1 has begun one all-reduce less": len(ahead) == 1,
        "--json has the answer of NCCL as it is": lasting(shown["nccl"]) == lasting(answer),
        "the text says which rank has begun less": len(said) == 1 and f"NCCL: {said[0]}" in text.splitlines(),
        "both ranks have a stack, rank 1 apart": sorted(each["ranks"] for each in groups) == [[0], [1]],
    }


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("localhost", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def ask(node: Bench, port: int, *arguments: str) -> str:
    """Return what `hoptui stack` prints."""
    command = [sys.executable, "-m", "hoptui", "stack", NAME, *arguments]
    environment = node.environment | {"NCCL_RAS_ADDR": f"localhost:{port}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode not in (OK, MISSING):  # at first no stack is known
        raise RuntimeError(done.stderr)
    return done.stdout


def hang(node: Bench, port: int) -> tuple[list[int], str]:
    """Start two ranks and wait until one has left out a collective. Return their pids and NCCL's version."""
    script, store = node.base / "rank.py", node.base / "store"
    script.write_text(RANK.replace("HANGS_AT", str(HANGS_AT)))
    ranks = [
        node.start(
            [sys.executable, str(script), str(store), NAME],
            RANK=str(rank),
            WORLD_SIZE="2",
            NCCL_RAS_ADDR=f"localhost:{port}",
        )
        for rank in range(2)
    ]
    output = ranks[1].stdout
    assert output is not None
    began = time.monotonic()
    if not (version := output.readline().strip()):
        raise RuntimeError("rank 1 has ended before its hang")
    tell("hangs", {"after_s": round(time.monotonic() - began, 1), "nccl": version})
    return [each.pid for each in ranks], version


def compare(node: Bench, port: int, pids: Sequence[int]) -> dict[str, Any]:
    """Compare what NCCL and hoptui say of the hang, until they agree or the time is up."""
    until(lambda: _waits(port, pids), LIMIT_S, what="the collective of rank 0")
    end = time.monotonic() + AGREE_S
    while True:
        answer, shown, text = raw(port), json.loads(ask(node, port, "--json") or "{}"), ask(node, port)
        met = checked(answer, shown, text, pids)
        if all(met.values()) or time.monotonic() > end:
            return {"answer": answer, "text": text, "met": met}
        time.sleep(ASK_EVERY_S)


def _waits(port: int, pids: Sequence[int]) -> bool:
    """Whether rank 0 has begun the collective that rank 1 leaves out."""
    first, second = (begun(raw(port), pid) for pid in pids)
    return bool(first) and first != second


def main(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and report."""
    argparse.ArgumentParser(prog="python -m benchmarks.nccl_ras").parse_args(list(arguments))
    port = free_port()
    with bench() as node, node.session():
        pids, version = hang(node, port)
        return report("nccl_ras", {"nccl": version, **compare(node, port, pids)})


if __name__ == "__main__":
    sys.exit(not all(main(sys.argv[1:])["met"].values()))
