"""The package of the previous release, frozen. `python -m tests.compat.previous` freezes that of HEAD.

`.ci/release` does so after it has tagged a release.
"""

from __future__ import annotations

import lzma
import re
import subprocess
import tarfile
from pathlib import Path

HERE = Path(__file__).parent
PATTERN = "hoptui-*.tar.xz"


def archive() -> Path:
    """The archive of the previous release; there is one."""
    [found] = HERE.glob(PATTERN)
    return found


def version(path: Path) -> str:
    """The version in the name of an archive."""
    found = re.fullmatch(r"hoptui-(.+)\.tar\.xz", path.name)
    assert found is not None, path
    return found[1]


def unpack(directory: Path) -> None:
    """Unpack the previous release, so that `directory` can be put on PYTHONPATH."""
    with tarfile.open(archive()) as file:
        file.extractall(directory, filter="data")


def environment(directory: Path) -> dict[str, str]:
    """What makes a process import the package in `directory`, wherever it is started."""
    return {"PYTHONPATH": str(directory), "PYTHONSAFEPATH": "1"}


def freeze(name: str, to: Path = HERE) -> None:
    """Replace the archive by the package of HEAD, as version `name`."""
    packed = subprocess.run(
        ["git", "archive", "--format=tar", "HEAD", "hoptui"],
        cwd=HERE.parents[1],
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    for old in to.glob(PATTERN):
        old.unlink()
    (to / f"hoptui-{name}.tar.xz").write_bytes(lzma.compress(packed, preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    import hoptui

    freeze(hoptui.__version__)
