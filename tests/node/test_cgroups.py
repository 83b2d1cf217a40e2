"""The memory limit of the control groups of a process."""

from __future__ import annotations

from pathlib import Path

from hoptui.node.cgroups import LimitedMemory, limited_memory

GIB = 1 << 30
PID = 42


def group(folder: Path, limit: int | str, used: int, reclaimable: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {reclaimable}\n")


def belongs(root: Path, lines: str) -> None:
    (root / f"proc/{PID}").mkdir(parents=True)
    (root / f"proc/{PID}/cgroup").write_text(lines)


def test_the_group_with_the_least_left_counts(tmp_path: Path) -> None:
    belongs(tmp_path, "0::/slurm/job_7/step_0/task_0\n")
    top = tmp_path / "sys/fs/cgroup"
    group(top / "slurm", 512 * GIB, 300 * GIB)
    group(top / "slurm/job_7", 64 * GIB, 60 * GIB, reclaimable=8 * GIB)
    group(top / "slurm/job_7/step_0", "max", 60 * GIB)
    group(top / "slurm/job_7/step_0/task_0", 128 * GIB, 50 * GIB)
    assert limited_memory(PID, tmp_path) == LimitedMemory(52 * GIB, 64 * GIB)


def test_a_container_sees_its_own_group_at_the_top(tmp_path: Path) -> None:
    belongs(tmp_path, "0::/\n")
    group(tmp_path / "sys/fs/cgroup", 16 * GIB, 4 * GIB)
    assert limited_memory(PID, tmp_path) == LimitedMemory(4 * GIB, 16 * GIB)


def test_the_first_version_of_control_groups(tmp_path: Path) -> None:
    belongs(tmp_path, "12:cpu,cpuacct:/job\n9:memory:/job\n0::/job\n")
    folder = tmp_path / "sys/fs/cgroup/memory/job"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{8 * GIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{6 * GIB}\n")
    (folder / "memory.stat").write_text(f"inactive_file 5\ntotal_inactive_file {GIB}\n")
    (folder.parent / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert limited_memory(PID, tmp_path) == LimitedMemory(5 * GIB, 8 * GIB)


def test_without_a_limit_nothing_is_known(tmp_path: Path) -> None:
    belongs(tmp_path, "0::/user\n")
    group(tmp_path / "sys/fs/cgroup/user", "max", GIB)
    assert limited_memory(PID, tmp_path) is None


def test_a_process_that_is_gone(tmp_path: Path) -> None:
    assert limited_memory(PID, tmp_path) is None


def test_files_of_an_odd_format(tmp_path: Path) -> None:
    belongs(tmp_path, "0::/user\n")
    group(tmp_path / "sys/fs/cgroup/user", "much", GIB)
    (tmp_path / "sys/fs/cgroup/memory.max").write_bytes(b"\xff")
    assert limited_memory(PID, tmp_path) is None
