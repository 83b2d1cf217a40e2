"""Where the output of a process goes, and why it is not known, as text."""

from __future__ import annotations

from hoptui.domain.enumerations import ByValue
from hoptui.presentation import numbers

AS_COPY = "hoptui run --output copies what the Python code writes"
_ORIGINS: ByValue[str] = ByValue(
    {
        "file": "in {path}",
        "copied": "copied from the Python code of the process",
        "terminal": f"goes to a terminal, which is not read; {AS_COPY}",
        "pipe": f"goes to a pipe, which is not read; {AS_COPY}",
        "discarded": "goes to a device such as /dev/null, so nothing keeps it",
        "closed": "is closed",
        "unreadable": "goes to a file that the daemon may not read",
        "unknown": "is not known",
    },
    lambda origin: f"is not known ({origin})",
)
_PROBLEMS: ByValue[str] = ByValue(
    {
        "no_answer": "the file system of the output does not answer",
        "failed": "the daemon could not read the output; its log has the reason",
        "old_daemon": "the daemon is older than this hoptui: hoptui daemon stop, then try again",
        "not_recorded": "output is not recorded",
    },
    lambda problem: f"the output is not known: {problem}",
)
NOBODY_LOOKED = "the daemon has seen no process of this rank alive, so its output is not known"


def origin_text(origin: str, path: str = "") -> str:
    """Say where a stream goes, as a clause without a subject."""
    return _ORIGINS[origin].replace("{path}", numbers.clean(path, 200))


def problem_text(problem: str) -> str:
    """Say why there is no output, one sentence."""
    return numbers.clean(_PROBLEMS[problem], 200)
