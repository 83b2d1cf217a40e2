from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from hoptui.cli.doctor import machine
from tests.cli.doctor.conftest import host, listed
from tests.golden import Golden


def test_clocks(tmp_path: Path, golden: Golden) -> None:
    place = tmp_path / "proc/sys/kernel/random"
    place.mkdir(parents=True)
    (place / "boot_id").write_text("0123abcd-4567\n")
    found = [
        machine.clock(0.5, tmp_path, lambda: True),
        machine.clock(None, tmp_path, lambda: None),
        machine.clock(None, tmp_path, lambda: False),
        machine.clock(3600.0, tmp_path, lambda: True),
        machine.clock(-5.0, tmp_path, lambda: True),
    ]
    assert [check.status for check in found] == ["ok", "ok", "optional", "warning", "warning"]
    for check, part in zip(found, ("0123abcd", "unknown", "not ", "1 h 0 m", "5 s"), strict=True):
        assert part in check.detail
    golden(listed(*found))


def test_the_real_clock() -> None:
    assert machine.ntp() in (True, False, None)
    gained = machine.gained(os.getpid(), psutil.Process().create_time())
    assert gained is None or 0 <= gained < 1.0
    assert machine.gained(1 << 30, 0.0) is None


@pytest.mark.parametrize("later_s", [1.0, 5.0, 20.0])
def test_a_process_that_takes_long_to_start_is_no_jump_of_the_clock(later_s: float) -> None:
    assert machine.gained(os.getpid(), psutil.Process().create_time() + later_s) is None


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_a_jump_of_the_clock_is_measured(jump_s: float) -> None:
    found = machine.gained(os.getpid(), psutil.Process().create_time() - jump_s)
    assert found == pytest.approx(jump_s, abs=1.0)


def test_no_container(tmp_path: Path) -> None:
    assert machine.container({}, host(tmp_path, gpus_there=2, here=2)).detail == "no container"


def test_a_container_that_hides_pids_and_gpus(tmp_path: Path, golden: Golden) -> None:
    root = host(tmp_path, namespace=4026532000, gpus_there=8, here=2)
    (root / ".dockerenv").touch()
    found = machine.container({}, root)
    assert found.status == "ok"
    assert "--pid=host" in found.advice
    golden(listed(found))


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
