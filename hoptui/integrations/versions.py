"""The versions of frameworks that the adapters support. `make test-integrations` tests both ends."""

from __future__ import annotations

import importlib.metadata
import logging
import re
from dataclasses import dataclass

log = logging.getLogger("hoptui")


@dataclass(frozen=True)
class Supported:
    """The range of versions of one package.

    Args:
        package: Its name on the package index.
        oldest: The oldest supported version, such as `"4.46"`.
        newest: The newest one that was tested, inclusive: `"5.23"` includes `5.23.4`.
    """

    package: str
    oldest: str
    newest: str

    def problem(self, installed: str | None = None) -> str:
        """Return one sentence if the version is outside of the range, else "".

        Args:
            installed: The version. None: the one that is installed.
        """
        if installed is None:
            try:
                installed = importlib.metadata.version(self.package)
            except importlib.metadata.PackageNotFoundError:
                return f"{self.package} is not installed."
        newest = _release(self.newest)
        if _release(self.oldest) <= _release(installed) and _release(installed)[: len(newest)] <= newest:
            return ""
        return (
            f"{self.package} {installed} is outside of the tested versions "
            f"{self.oldest} to {self.newest}: some knobs may be missing."
        )

    def warn(self) -> None:
        """Log one warning if the installed version is outside of the range."""
        if problem := self.problem():
            log.warning("hoptui: %s", problem)


def older(package: str, version: str) -> bool:
    """Return whether the installed version of a package is older than this one.

    Raises:
        importlib.metadata.PackageNotFoundError: the package is not installed.
    """
    return _release(importlib.metadata.version(package)) < _release(version)


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: (5, 23, 0) for `5.23.0rc1`."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found.group().split("."))) if found else ()
