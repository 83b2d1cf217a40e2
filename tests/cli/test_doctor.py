"""`hoptui doctor` as a whole; its probes are tested one by one in `checks`."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hoptui.cli.commands.doctor import IDS
from hoptui.cli.doctor import Check, Status, gpus, machine, within
from hoptui.cli.support import snapshot as node_module
from hoptui.domain.columns import pack
from hoptui.domain.devices import GpuInfo
from hoptui.domain.facts import fact
from hoptui.node import processes
from hoptui.presentation import sentences
from tests import factories
from tests.cli.conftest import Hoptui
from tests.cli.doctor.conftest import H100, listed
from tests.client.fake_daemon import FakeDaemon
from tests.factories import NO_DRIVER
from tests.golden import Golden


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine is, its clock is right and nothing about GPUs is in its environment."""
    monkeypatch.setattr(machine, "ntp", lambda: True)
    monkeypatch.setattr(machine, "gained", lambda pid, started: 0.1)
    monkeypatch.setattr(node_module, "SAMPLER_S", 0.1)
    for name in ("CUDA_VISIBLE_DEVICES", "HOPTUI_METRICS", "HOPTUI_KEEP_GB", "TMUX", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)


def diagnose(hoptui: Hoptui) -> tuple[int, dict[str, dict[str, Any]]]:
    ended = hoptui("doctor", "--json")
    checks = ended.json["checks"]
    assert all(set(check) == {"id", "status", "detail", "advice"} for check in checks)
    assert all(check["detail"] for check in checks)
    assert all(check["advice"] or check["status"] in ("ok", "unknown") for check in checks)
    ids = [check["id"] for check in checks]
    assert sorted(ids) == sorted(IDS)
    return ended.code, {check["id"]: check for check in checks}


def test_all_is_well(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    ppo.where.runs.touch()
    ppo.node = structs.replace(ppo.node, gpus=(H100,), gpu_problem=None, hz=2.0)
    ppo.columns.append(pack("gpu/GPU-a", [(ppo.now, -1, {"sm_active": 12.0, "window_s": 0.5})]))
    code, checks = diagnose(hoptui)
    assert tuple(checks) == IDS
    golden(
        "".join(f"{name}: {checks[name]['detail']}\n" for name in ("nvml", "gpm", "sampler")),
        normalize={r"[\d.]+ \w+ (?=old)": "A MOMENT "},
    )
    assert {name for name, check in checks.items() if check["status"] != "ok"} == {"sockets", "lock"}
    assert code == 1


def test_a_machine_that_lacks_only_what_is_optional_has_no_warning(
    hoptui: Hoptui, ppo: FakeDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpus.driver, "__defaults__", (tmp_path,))
    monkeypatch.setattr(gpus.nvml, "__defaults__", (tmp_path,))
    monkeypatch.setattr(machine, "ntp", lambda: False)
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    _, checks = diagnose(hoptui)
    optional = {name for name, check in checks.items() if check["status"] == "optional"}
    assert optional == {"parquet", "metrics", "clock", "driver", "nvml"}
    assert checks["nvml"]["detail"] == sentences.sentence(NO_DRIVER)
    assert checks["gpm"]["status"] == "unknown"
    warned = {name for name, check in checks.items() if check["status"] in ("warning", "failed")}
    assert warned <= {"sockets", "lock", "sampler"}, "this daemon is a stand-in"
    text = hoptui("doctor").out
    assert "✓ python" in text
    assert f"○ nvml               {sentences.sentence(NO_DRIVER)}" in text


@pytest.mark.parametrize(
    ("status", "code"), [("ok", 0), ("optional", 0), ("unknown", 0), ("warning", 1), ("failed", 2)]
)
def test_the_exit_code_is_that_of_the_worst_check(
    hoptui: Hoptui, monkeypatch: pytest.MonkeyPatch, status: Status, code: int
) -> None:
    found = [Check("python", "ok", "3.12"), Check("clock", status, "so")]
    monkeypatch.setattr("hoptui.cli.commands.doctor._every", lambda: iter(found))
    assert hoptui("doctor").code == code


def test_a_lost_gpu_and_a_silent_sampler(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    lost = GpuInfo(uuid="GPU-a", index=0, name="H100", problem=fact("recorded", text="GPU is lost"))
    ppo.node = structs.replace(
        factories.node(factories.run()),
        gpus=(lost,),
        sampler_problems=(fact("starting"),),
        history="the disk is full",
    )
    code, checks = diagnose(hoptui)
    assert code == 2
    assert checks["nvml"]["detail"] == "GPU 0: GPU is lost"
    assert checks["sampler"]["status"] == "failed"
    assert checks["history"]["detail"] == ppo.node.history


def test_a_bad_directory_ends_the_checks(hoptui: Hoptui, daemon: FakeDaemon) -> None:
    daemon.where.directory.chmod(0o755)
    code, checks = diagnose(hoptui)
    assert code == 2
    assert checks["runtime-directory"]["status"] == "failed"
    assert checks["daemon"]["status"] == "unknown"
    assert checks["clock"]["status"] != "unknown"


@pytest.mark.guarantee("private-recordings")
def test_a_state_directory_open_to_others_is_not_used(hoptui: Hoptui, daemon: FakeDaemon) -> None:
    daemon.where.state.mkdir(mode=0o700, exist_ok=True)
    daemon.where.state.chmod(0o755)
    code, checks = diagnose(hoptui)
    assert code == 2
    assert checks["state-directory"]["status"] == "failed"
    assert checks["daemon"]["status"] == "unknown"
    for command in (("ls",), ("ls", "--all"), ("report", "toy"), ("get", "toy"), ("daemon", "status")):
        ended = hoptui(*command)
        assert ended.code, command
        assert f"{daemon.where.state} is open to others" in ended.err, command
        assert "chmod 700" in ended.err, command


def test_a_daemon_that_does_not_start(
    hoptui: Hoptui, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = "the daemon could not be started: no disk"

    def fail(where: object) -> None:
        raise processes.StartError(problem)

    monkeypatch.setattr(processes, "start_daemon", fail)
    code, checks = diagnose(hoptui)
    assert code == 2
    assert checks["daemon"]["detail"] == problem
    assert "runtime-directory" in checks["daemon"]["advice"], "it has not come as far as to a log"
    daemon.where.log.touch()
    assert diagnose(hoptui)[1]["daemon"]["advice"] == f"see {daemon.where.log}"
    assert {"driver", "clock"} <= set(checks)


# no probe hangs or falls ------------------------------------------------------------------------------------


def test_a_probe_that_hangs(golden: Golden) -> None:
    release = threading.Event()
    before = time.monotonic()
    found = within("disk", lambda: Check("disk", "ok", str(release.wait(60))), limit_s=0.05)
    assert time.monotonic() - before < 5
    release.set()
    assert (found.status, "0.05 s" in found.detail) == ("failed", True)
    golden(listed(found))


def test_a_probe_that_falls(golden: Golden) -> None:
    def fall() -> Check:
        raise RuntimeError("a fault")

    found = within("disk", fall)
    assert found.detail.endswith("RuntimeError: a fault")
    golden(listed(found))
