"""A run of two ranks on one node: the daemon, its viewers and the command line see both, and steer them as
one."""

from __future__ import annotations

import json
import re
import signal

from hoptui.protocol import messages
from tests.conftest import TestNode, over, until
from tests.impatient import impatient_daemon
from tests.sdk.two_ranks import pair

TRAINS = """
import signal
signal.signal(signal.SIGTERM, lambda *_: run.stop("SIGTERM"))
def put(value):
    time.sleep(0.02)
knob = run.knob("grad_accum", 4, min=1, max=64, effect="speed", cost="shape", apply=put)
run.on_profile(lambda steps: run.event(f"trace of {steps} iterations written: /somewhere"))
run.gpus([f"GPU-{rank}"])
run.event(f"from rank {rank}")
with run:
    for i in run.iterations():
        with run.phase("update"):
            time.sleep(0.01 * (1 + rank))
            ranks.set(f"trained{rank}", str(i).encode())
            while int(ranks.get(f"trained{1 - rank}") or -1) < i:
                time.sleep(0.001)  # as an all-reduce waits
        run.log(samples=10, loss=0.5)
"""


def test_two_ranks_are_one_run(node: TestNode) -> None:
    impatient_daemon(node)
    viewer = node.viewer()
    with pair(TRAINS, node.environment) as (first, second):
        until(lambda: viewer.run("two").ranks, what="both ranks")
        run = viewer.run("two")
        assert (run.rank, run.world, run.pid) == (0, 2, first.pid)
        assert [(rank.rank, rank.pid) for rank in run.ranks] == [(1, second.pid)]
        until(lambda: viewer.run("two").thread == first.pid, what="the thread of rank 0: its main thread")
        until(lambda: viewer.run("two").ranks[0].thread == second.pid, what="that of rank 1")
        source = f"rank/{run.run}/1"
        until(lambda: viewer.fetch(cursors={source: 0}).columns, what="rows of rank 1")
        (rows,) = viewer.fetch(cursors={source: 0}).columns
        assert set(rows.names) == {"iteration_s", "phase/update", "samples", "samples_per_s"}
        assert min(rows.column("iteration_s")) >= 0.02

        told = node.hoptui("set", "two", "grad_accum=8")
        assert told.returncode == 0, told.stderr
        assert "grad_accum 4 → 8" in told.stdout
        took = r"took [\d.]+ m?s"
        assert re.search(f", {took}", told.stdout)
        assert re.search(f", {took}", node.hoptui("history", "two").stdout)
        assert re.search(rf"shape \({took}\)", node.hoptui("get", "two").stdout)
        assert node.hoptui("profile", "two", "--steps", "3").returncode == 0
        assert node.hoptui("profile", "two", "--steps", "0").returncode == 2

        status = json.loads(node.hoptui("status", "two", "--json").stdout)
        ranks = status["ranks"]
        assert [(r["rank"], r["pid"]) for r in ranks] == [(0, first.pid), (1, second.pid)]
        assert ranks[0]["iteration_s"] >= 0.01
        assert ranks[1]["iteration_s"] >= 0.02
        assert all(0 <= r["age_s"] < 30 for r in ranks)
        assert status["knobs"]["grad_accum"]["took_s"] >= 0.02
        plain = node.hoptui("status", "two").stdout
        assert "ranks on this node: 2 of 2" in plain
        assert f"rank 1  pid {second.pid}" in plain

        texts = [event.text for event in viewer.fetch(run=run.run).events]
        assert "trace of 3 iterations written: /somewhere" in texts
        assert "from rank 0" in texts
        assert "from rank 1" not in texts  # rank 0 speaks for all

        # A new daemon knows both again, and asks the recording for the past of rank 1.
        pid = node.daemon_pid()
        viewer.send(messages.Shutdown(id=1))
        until(lambda: over(pid), what="the daemon's end")
        impatient_daemon(node)
        again = node.viewer("again")
        newest = rows.times()[-1] + 1_000_000_000  # later than what the recording has
        until(lambda: again.fetch(cursors={source: newest}).columns, what="new rows of rank 1")
        buckets = again.ask(messages.Query(id=9, source=source, run=run.run), messages.Buckets)
        assert "iteration_s" in buckets.names

        until(lambda: again.vital(run.run).state == "live", what="rank 0 again")
        second.send_signal(signal.SIGTERM)
        assert (first.wait(10), second.wait(10)) == (0, 0)
        until(lambda: again.run("two").exit_reason, what="the end")
        ended = again.run("two")
        assert (ended.exit_reason, ended.exit_detail) == ("stopped", "by SIGTERM on rank 1")
        assert [(rank.rank, rank.pid) for rank in ended.ranks] == [(1, second.pid)]  # what is known stays


def test_where_rank_0_is_off_no_rank_starts_a_daemon(node: TestNode) -> None:
    script = """
for i in run.iterations(100_000):
    run.log(i=i)
    time.sleep(0.002)
    if i == 3 and rank == 0:
        run.stop()
print(run.id)
"""
    with pair(script, node.environment, of_ranks=({"HOPTUI": "off"}, {})) as children:
        said = [child.communicate(timeout=20)[0] for child in children]
    assert said[0] == said[1] != ""
    assert not node.daemon_pid()


def test_a_rank_whose_process_is_stopped_is_named(node: TestNode) -> None:
    impatient_daemon(
        node, hung_s=120.0
    )  # else it would be hung before the command line asks on a busy machine
    viewer = node.viewer()
    with pair(TRAINS, node.environment) as (_, second):
        until(lambda: viewer.run("two").ranks, what="both ranks")
        run = viewer.run("two").run
        until(lambda: viewer.vital(run).step > 20, what="iterations")
        second.send_signal(signal.SIGSTOP)

        def named() -> bool:
            because = viewer.vital(run).because
            return because is not None and because.code == "state.rank_silent" and because.fields["rank"] == 1

        until(named, seconds=40, what="the rank that hangs")
        assert "busy: rank 1 sends no pulse for" in node.hoptui("status", "two").stdout
        second.send_signal(signal.SIGCONT)
        until(lambda: viewer.vital(run).state == "live", what="both ranks again")
