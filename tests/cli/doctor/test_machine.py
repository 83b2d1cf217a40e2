from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from hoptui.cli.doctor import machine
from tests.cli.doctor.conftest import host


@pytest.mark.parametrize(
    ("synced", "gained", "status", "part"),
    [
        (True, 0.5, "ok", "synchronised, boot 0123abcd"),
        (None, None, "ok", "synchronisation unknown"),
        (False, None, "warning", "not synchronised"),
        (True, 3600.0, "warning", "jumped forward by 1 h 0 m"),
        (True, -5.0, "warning", "jumped back by 5 s"),
    ],
)
def test_clocks(tmp_path: Path, synced: bool | None, gained: float | None, status: str, part: str) -> None:
    place = tmp_path / "proc/sys/kernel/random"
    place.mkdir(parents=True)
    (place / "boot_id").write_text("0123abcd-4567\n")
    found = machine.clock(gained, tmp_path, lambda: synced)
    assert found.status == status
    assert part in found.detail


def test_the_real_clock() -> None:
    assert machine.ntp() in (True, False, None)
    gained = machine.gained(os.getpid(), psutil.Process().create_time())
    assert gained is not None
    assert abs(gained) < 1.0
    assert machine.gained(1 << 30, 0.0) is None


def test_no_container(tmp_path: Path) -> None:
    assert machine.container({}, host(tmp_path, gpus_there=2, here=2)).detail == "no container"


def test_a_container_that_hides_pids_and_gpus(tmp_path: Path) -> None:
    root = host(tmp_path, namespace=4026532000, gpus_there=8, here=2)
    (root / ".dockerenv").touch()
    found = machine.container({}, root)
    assert found.status == "ok"
    assert found.detail.startswith("in a container (docker); the driver's pids are the host's")
    assert found.detail.endswith("2 of the host's 8 GPUs are in it")
    assert "--pid=host" in found.advice


@pytest.mark.parametrize(
    ("environ", "cgroup", "kind"),
    [
        ({"APPTAINER_NAME": "x"}, "", "apptainer"),
        ({"KUBERNETES_SERVICE_HOST": "x"}, "", "kubernetes"),
        ({}, "0::/system.slice/docker-abc.scope", "docker"),
        ({}, "8:devices:/slurm/uid_1/job_2", "slurm's cgroup"),
        ({"container": "lxc"}, "", "lxc"),
    ],
)
def test_kinds_of_container(tmp_path: Path, environ: dict[str, str], cgroup: str, kind: str) -> None:
    root = host(tmp_path)
    (root / "proc/self/cgroup").write_text(cgroup)
    assert machine.container(environ, root).detail == f"in a container ({kind})"
