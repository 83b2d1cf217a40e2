"""How this process was started, for commands that are printed to be pasted into the same shell."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def invocation() -> str:
    """The words that start this program again: `hoptui`, the path of its script, or `python -m hoptui`."""
    script = Path(sys.argv[0] if sys.argv else "")
    found = shutil.which("hoptui")
    if script.name == "hoptui" and script.is_file() and os.access(script, os.X_OK):
        return "hoptui" if found and script.samefile(found) else shlex.quote(str(script.absolute()))
    return f"{shlex.quote(sys.executable)} -m hoptui"
