"""The target `slurm:JOB`, with stand-ins for the programs of Slurm."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hoptui.client import slurm_jobs
from hoptui.client.client import Client
from hoptui.client.routes import There
from hoptui.client.slurm_jobs import Allocation, SlurmError, SlurmTarget, allocation, parse, place, srun
from hoptui.client.target import BadPlace, Place, is_host
from tests.client.slurm_programs import write_programs
from tests.conftest import TestNode, until
from tests.golden import Golden, sheet

SSH = """#!/bin/sh
# It runs the command here, in the directories of the other node. The forwarded socket is a link.
for word in "$@"; do
  case $word in *:/tmp/hoptui-via-*) ln -s "${{word#*:}}" "${{word%%:*}}" ;; esac
  host=$last last=$word
done
echo "$host" > {folder}/destination
export HOPTUI_DIR={directory} HOPTUI_STATE_DIR={state}
exec sh -c "$last"
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first on the PATH with `squeue` and `scontrol`. This process is in no job."""
    folder = tmp_path / "slurm"
    write_programs(folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    return folder


@pytest.mark.parametrize(
    ("typed", "target"),
    [
        ("slurm:123", SlurmTarget("123")),
        ("SLURM:123/", SlurmTarget("123")),
        ("slurm:123_4", SlurmTarget("123_4")),
        ("slurm:123+1.0/gpu07", SlurmTarget("123+1", "0", "gpu07")),
        ("slurm:123.batch/gpu07/ppo/2", SlurmTarget("123", "batch", "gpu07", "ppo/2")),
        ("slurm:123//ppo", SlurmTarget("123", "", "", "ppo")),
    ],
)
def test_targets(typed: str, target: SlurmTarget) -> None:
    assert parse(typed) == target


@given(st.text(max_size=40))
def test_nothing_that_is_typed_becomes_an_option_of_a_program(typed: str) -> None:
    try:
        target = parse(f"slurm:{typed}")
    except BadPlace:
        return
    assert target.job[0].isdigit()
    assert not target.node.startswith("-")
    assert not any(c.isspace() for c in target.job + target.step + target.node)


JOB_NAMES = st.sampled_from(["1", "1_²", "1_2", "1+0", "1+1", "2_[3-5%2]"])
STATES = st.sampled_from(["RUNNING", "PENDING", "COMPLETED", "NEW_STATE"])
HOSTS = st.sampled_from(["", "g1", "g2", "g[1-2]", "-x", "n/a"]) | st.text(max_size=5)
LINES = st.tuples(JOB_NAMES, st.sampled_from(["1", "2"]), STATES, HOSTS, HOSTS, st.text(max_size=5))


@given(st.lists(LINES.map("|".join), max_size=4), st.sampled_from(["1", "1_2", "1+0", "1.0", "1/g1"]))
@example(["1_²|1|RUNNING|g1|g1|"], "1")
def test_whatever_slurm_prints_is_a_host_or_an_error(lines: list[str], job: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slurm_jobs, "_ask", lambda *words: "\n".join(lines))
        with contextlib.suppress(SlurmError):
            assert is_host(allocation(parse(f"slurm:{job}")).node)


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("slurm:1", Allocation("1", "1", "gpu01")),
        ("slurm:1/gpu02", Allocation("1", "1", "gpu02")),
        ("slurm:1.0", Allocation("1", "1", "gpu02")),
        ("slurm:2_1", Allocation("2_1", "10", "gpu01")),
        ("slurm:10", Allocation("2_1", "10", "gpu01")),
        ("slurm:3", Allocation("3+0", "3", "gpu03")),
        ("slurm:3/gpu02", Allocation("3+1", "4", "gpu02")),
        ("slurm:3+1", Allocation("3+1", "4", "gpu02")),
        ("slurm:4", Allocation("3+1", "4", "gpu02")),
        ("slurm:7", Allocation("7", "7", "gpu01")),
        ("slurm:8", Allocation("8_2", "8", "gpu02")),
        ("slurm:11", Allocation("11", "11", "gpu02")),
    ],
)
def test_the_node_of_rank_0_or_the_named_one(programs: Path, typed: str, found: Allocation) -> None:
    assert allocation(parse(typed)) == found


def test_every_other_answer_is_one_sentence(
    programs: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    problems = {}
    for typed in ("slurm:", "slurm:ppo", "slurm:1 2", "slurm:1.x", "slurm:1/-x", "slurm:1_2_3"):
        with pytest.raises(BadPlace) as bad:
            parse(typed)
        problems[typed] = str(bad.value)
    jobs = ["2", "2_15", "3+5", "3+1.0", "5", "6", "9", "12", "999", "1.7", "1/gpu03", "3/gpu09"]
    for typed in (f"slurm:{job}" for job in jobs):
        with pytest.raises(SlurmError) as caught:
            allocation(parse(typed))
        problems[typed] = str(caught.value)
    (programs / "squeue").write_text(
        "#!/bin/sh\necho 'squeue: error: Unable to contact controller' >&2; exit 1"
    )
    with pytest.raises(SlurmError) as caught:
        allocation(parse("slurm:1"))
    problems["the controller is down"] = str(caught.value)
    monkeypatch.setattr(slurm_jobs, "LIMIT_S", 0.05)
    (programs / "squeue").write_text("#!/bin/sh\nexec sleep 60")
    with pytest.raises(SlurmError) as caught:
        allocation(parse("slurm:1"))
    problems["no answer"] = str(caught.value)
    monkeypatch.setenv("PATH", str(programs / "empty"))
    with pytest.raises(SlurmError) as caught:
        allocation(parse("slurm:1"))
    problems["no squeue"] = str(caught.value)
    assert not any("\n" in problem for problem in problems.values())
    golden(sheet(problems))


def test_on_the_node_itself_no_ssh_is_needed(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu01.cluster.example")
    assert place(parse("slurm:1//ppo")) == Place(run="ppo")
    assert place(parse("slurm:1/gpu02/ppo")) == Place("gpu02", run="ppo")
    monkeypatch.setenv("SLURMD_NODENAME", "gpu02")
    assert place(parse("slurm:1")) == Place("gpu01")
    assert place(parse("slurm:1/gpu02")) == Place()


def test_srun_shares_what_the_job_has() -> None:
    words = srun(Allocation("2_1", "10", "gpu01"), ["hoptui", "attach"])
    assert words[:3] == ["srun", "--jobid=10", "--overlap"]
    assert words[-3:] == ["--pty", "hoptui", "attach"]
    assert "--nodelist=gpu01" in words
    assert srun(Allocation("3+1", "4", "gpu02"), [])[1:3] == ["--jobid=3", "--het-group=1"]


@pytest.fixture
def behind_ssh(node: TestNode, programs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A stand-in for ssh that leads to `node`; returns the command there. This process is elsewhere."""
    directory, state = (node.environment[name] for name in ("HOPTUI_DIR", "HOPTUI_STATE_DIR"))
    (programs / "ssh").write_text(SSH.format(folder=programs, directory=directory, state=state))
    (programs / "hoptui").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m hoptui "$@"\n')
    for name in ("ssh", "hoptui"):
        (programs / name).chmod(0o755)
    here = tempfile.mkdtemp(prefix="hoptui-")
    monkeypatch.setenv("HOPTUI_DIR", f"{here}/d")
    yield str(programs / "hoptui")
    shutil.rmtree(here)


def test_a_run_of_a_job_is_seen_through_ssh_to_its_first_node(
    node: TestNode, programs: Path, behind_ssh: str
) -> None:
    node.start()
    client = Client(way=There(place(parse("slurm:1")), hoptui=behind_ssh))
    try:
        client.start()
        until(
            lambda: (found := client.store.node) and any(run.name == "toy" for run in found.runs),
            what="the run of the other node",
        )
        assert client.link.node == "gpu01"
    finally:
        client.close()
    assert (programs / "destination").read_text() == "gpu01\n"
