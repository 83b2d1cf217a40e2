"""A real run on two nodes as users see it: on the command line, and from the recordings of both nodes."""

from __future__ import annotations

import json
import signal

from hoptui.model.recorded.joined import JoinedStore
from hoptui.recording import Recording
from tests.conftest import TestNode, new_node, until
from tests.daemon.test_nodes import complete
from tests.daemon.test_ranks import TRAINS
from tests.sdk.two_ranks import pair

SECOND = 1_000_000_000


def test_both_nodes_are_seen_on_one_and_their_recordings_are_joined(node: TestNode) -> None:
    node.daemon()
    with new_node() as other:
        there = other.viewer()
        with pair(TRAINS, {}, of_ranks=(node.environment, other.environment)) as (first, second):
            run = until(lambda: there.state().runs, seconds=60, what="the run on the node of rank 1")[0].run
            complete(node.viewer("asks"), run)
            status = json.loads(node.hoptui("status", "two", "--json").stdout)
            assert status["job"]["conditions"] == {"live": 2}
            assert [one["ranks"] for one in status["job"]["nodes"]] == [[0], [1]]
            assert status["job"]["spread"]["iteration_s"]["median"]["value"] > 0.01
            assert "on all nodes: 2 ranks on 2 nodes" in node.hoptui("status", "two").stdout
            away = node.hoptui("where", "two", "--rank", "1")
            assert away.returncode == 3
            assert "rank 1 is on " in away.stderr
            assert "hoptui where two --rank 1" in away.stderr
            until(lambda: there.vital(run).step > 60, what="iterations of rank 1")
            first.send_signal(signal.SIGTERM)
            assert (first.wait(10), second.wait(10)) == (0, 0)
            until(lambda: there.run("two").exit_reason, what="the end")
        paths = [each.where.recording(run) for each in (node, other)]
        opened = [Recording.open(path) for path in paths]
        try:
            joined = JoinedStore(opened)
            (offset,) = joined.offsets.values()
            assert offset.steps > 40
            assert abs(offset.offset_ns) < 0.05 * SECOND, "both nodes have the clock of this machine"
            joined.seek(joined.span[1] - SECOND // 2)
            job = joined.job(run)
            assert job is not None
            assert job.state is not None
            assert [rank.rank for _, rank in job.state.ranks()] == [0, 1]
            assert all(rank.iteration_s is not None for _, rank in job.state.ranks())
        finally:
            for each in opened:
                each.close()
