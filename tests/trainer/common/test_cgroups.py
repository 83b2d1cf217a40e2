"""What containers and jobs may use of a machine's memory, from the files that kernels of both versions show
of it."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from hoptui_trainer.common import device as devices
from hoptui_trainer.common.cgroups import VERSIONS, left_bytes
from hoptui_trainer.common.device import free_bytes
from hoptui_trainer.common.memory_budget import USABLE, limit_bytes

CPU = torch.device("cpu")
V2, V1 = VERSIONS
NO_LIMIT_V1 = "9223372036854771712"


class Machine:
    """A machine with control groups, mounted under a folder."""

    def __init__(self, root: Path) -> None:
        self.membership, self.mounted = root / "cgroup", root / "mounted"

    def group(self, path: str, limit: str, used: int, given_up: int, version: int = 2) -> None:
        kind = {1: V1, 2: V2}[version]
        folder = self.mounted / kind.below / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / kind.limit).write_text(f"{limit}\n")
        (folder / kind.used).write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 7\n{kind.given_up} {given_up}\nactive_file 9\n")

    def left(self, *lines: str) -> int | None:
        """What a process in these groups is told."""
        self.membership.write_text("".join(f"{line}\n" for line in lines))
        return left_bytes(self.membership, self.mounted)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_container_sees_its_own_group_as_the_root(machine: Machine) -> None:
    machine.group("/", "1000", 600, 150)
    assert machine.left("0::/") == 1000 - 600 + 150  # pages of files that were read are no memory in use


def test_of_a_job_and_its_steps_the_tightest_limit_counts(machine: Machine) -> None:
    machine.group("/job_7", "1000", 900, 0)
    machine.group("/job_7/step_0", "max", 300, 0)
    machine.group("/job_7/step_0/task_3", "5000", 200, 0)
    assert machine.left("0::/job_7/step_0/task_3") == 100
    assert machine.left("0::/other") is None


def test_the_first_version_says_it_otherwise(machine: Machine) -> None:
    machine.group("/", NO_LIMIT_V1, 5000, 0, version=1)
    machine.group("/slurm/uid_1/job_2", "800", 500, 40, version=1)
    lines = ["12:devices:/slurm/uid_1/job_2", "4:hugetlb,memory:/slurm/uid_1/job_2/step_0", "0::/"]
    assert machine.left(*lines) == 340


def test_a_path_that_only_the_machine_sees_leads_to_what_is_mounted(machine: Machine) -> None:
    machine.group("/", "800", 500, 0, version=1)
    assert machine.left("4:memory:/docker/3f2a") == 300


def test_a_group_beyond_its_limit_has_nothing_left(machine: Machine) -> None:
    machine.group("/", "800", 900, 0)
    assert machine.left("0::/") == 0


def test_where_nothing_is_limited_or_told_nothing_is_known(machine: Machine) -> None:
    assert left_bytes(machine.membership, machine.mounted) is None  # no such file: no Linux
    machine.group("/", "max", 900, 0)
    assert machine.left("0::/", "9:name=systemd:/") is None
    (machine.mounted / "memory.max").write_text("1000")
    (machine.mounted / "memory.stat").unlink()
    assert machine.left("0::/") is None


@pytest.mark.parametrize(("left", "free"), [(None, 900), (2000, 900), (600, 600)])
def test_ranks_share_what_machine_and_groups_leave(
    left: int | None, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told:
        available = 900

    monkeypatch.setattr(psutil, "virtual_memory", lambda: Told)
    monkeypatch.setattr(devices, "left_bytes", lambda: left)
    assert [free_bytes(CPU, ranks) for ranks in (1, 2, 3)] == [free, free // 2, free // 3]
    own = psutil.Process().memory_info().rss
    assert limit_bytes(CPU, 3) == pytest.approx(USABLE * (free // 3 + own), rel=0.05)
