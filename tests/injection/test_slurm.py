"""`hoptui run` in jobs of a real Slurm."""

from __future__ import annotations

import json
import shlex
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import TestNode, until
from tests.injection.scripts import live_run, run_command, script
from tests.slurm_cluster import Cluster, needs_slurm

pytest.importorskip("torch")

LIMIT_S = 60.0
RUN = shlex.join(run_command("--name", "job", "--"))
SHARED = ("HOPTUI_DIR", "HOPTUI_STATE_DIR", "HOPTUI_IDLE_S", "HOPTUI_METRICS")
pytestmark = [
    needs_slurm,
    pytest.mark.slow,
    pytest.mark.timeout(180, method="signal"),  # which ends the daemons too
]


def submit(cluster: Cluster, node: TestNode, folder: Path, way: str, nodes: int = 1) -> str:
    """Queue a job of two ranks; returns its number. What they print is in `out` of the folder."""
    names = [name for name in SHARED if name in node.environment]
    exports = "\n".join(f"export {name}={shlex.quote(node.environment[name])}" for name in names)
    wants = f"--nodes={nodes} --ntasks=2 --mem=2G --output={folder}/out"
    head = f"#!/bin/bash\n#SBATCH {wants}\n{exports}\nexport OMP_NUM_THREADS=1"
    return cluster.submit(f"{head}\nsrun {way}\n", folder)


def printed(cluster: Cluster, folder: Path, job: str) -> list[str]:
    """What the two ranks of a job print, without their numbers, once it has ended."""
    until(
        lambda: cluster.state(job) not in ("PENDING", "RUNNING", "COMPLETING"),
        seconds=LIMIT_S,
        what="its end",
    )
    text = (folder / "out").read_text()
    assert cluster.state(job) == "COMPLETED", text
    lines = sorted(line for line in text.splitlines() if line.startswith("rank "))
    assert [line[:8] for line in lines] == ["rank 0: ", "rank 1: "], text
    return [line[8:] for line in lines]


def test_results_are_those_without_hoptui(cluster: Cluster, node: TestNode, tmp_path: Path) -> None:
    found = []
    for number, before in enumerate(("", RUN)):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = script(folder)
        job = submit(cluster, node, folder, f"{before} {sys.executable} {path} short")
        found.append(printed(cluster, folder, job))
    assert found[0] == found[1]
    viewer = node.viewer()
    state = until(lambda: (s := viewer.run("job")).exit_reason and s, what="its end")
    assert (state.world, state.exit_reason, viewer.vital(state.run).step) == (2, "finished", 100)


def test_both_ranks_of_a_job_change_at_the_same_iteration(
    cluster: Cluster, node: TestNode, tmp_path: Path
) -> None:
    path = script(tmp_path)
    viewer = node.viewer()
    job = submit(cluster, node, tmp_path, f"{RUN} {sys.executable} {path} long")
    run = live_run(viewer, "job")
    status = json.loads(node.hoptui("status", "job", "--json").stdout)
    assert status["details"]["environment"]["SLURM_JOB_ID"] == job
    applied = viewer.outcome(viewer.command(run, knob="lr", value=0.02))
    assert (applied.stage, applied.effective) == ("applied", 0.02)
    Path(f"{path}.end").touch()
    first, second = (
        json.loads(line.split(maxsplit=2)[2].partition(" ")[2]) for line in printed(cluster, tmp_path, job)
    )
    assert first == second != []


def test_a_job_that_is_cancelled_ends_by_a_signal(cluster: Cluster, node: TestNode, tmp_path: Path) -> None:
    viewer = node.viewer()
    job = submit(cluster, node, tmp_path, f"{RUN} {sys.executable} {script(tmp_path)} long")
    live_run(viewer, "job")
    cluster.run("scancel", job)
    state = until(lambda: (s := viewer.run("job")).exit_reason and s, seconds=LIMIT_S, what="its end")
    assert state.exit_reason == "killed"
    assert "SIGTERM" in state.exit_detail


def test_ranks_on_two_nodes_have_metrics_of_their_job(
    three_nodes: Cluster, node: TestNode, tmp_path: Path
) -> None:
    """Both nodes are this machine, so one daemon has both ranks."""
    node.environment["HOPTUI_METRICS"] = "127.0.0.1:0"
    path = script(tmp_path)
    job = submit(three_nodes, node, tmp_path, f"{RUN} {sys.executable} {path} long", nodes=2)
    until(node.daemon_pid, seconds=LIMIT_S, what="the daemon of the job")
    viewer = node.viewer()
    run = live_run(viewer, "job")
    status = json.loads(node.hoptui("status", "job", "--json").stdout)
    environment = status["details"]["environment"]
    assert (environment["SLURM_JOB_ID"], environment["SLURM_NNODES"]) == (job, "2")
    address = viewer.state().metrics

    def seconds_by_rank() -> dict[str, float]:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        found = (
            sample
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "hoptui_rank_iteration_seconds"
        )
        return {
            each.labels["rank"]: each.value
            for each in found
            if (each.labels["run"], each.labels["slurm_job"]) == (run.run, job)
        }

    until(lambda: seconds_by_rank().keys() == {"0", "1"}, seconds=LIMIT_S, what="metrics of both ranks")
    assert min(seconds_by_rank().values()) > 0.005
    Path(f"{path}.end").touch()
    printed(three_nodes, tmp_path, job)
