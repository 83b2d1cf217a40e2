"""`hoptui completion`: print the script that completes command lines in a shell."""

from __future__ import annotations

from typing import Literal

from hoptui.cli.support.terminal import OK, emit


def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Print the completion script of a shell. `hoptui --install-completion` installs it."""
    from hoptui.cli.completion.scripts import script
    from hoptui.cli.main import build

    emit(script(build(), shell))
    return OK
