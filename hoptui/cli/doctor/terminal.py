"""Checks of the terminal, tmux, SSH and the configuration."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping

from hoptui.cli.doctor.check import Check
from hoptui.cli.support.terminal import interactive
from hoptui.settings.config import read, short

TMUX_S = 1.0


def terminal(environ: Mapping[str, str]) -> Check:
    """Its name, colours, size and encoding."""
    if not interactive():
        return Check("terminal", "ok", "no terminal here: plain text and JSON only")
    width, height = shutil.get_terminal_size()
    name = environ.get("TERM", "")
    colours = "true colour" if true_colour(environ) else "256 colours" if "256" in name else "16 colours"
    detail = f"{name or 'TERM is not set'}, {colours}, {width} × {height}, {sys.stdout.encoding}"
    if (sys.stdout.encoding or "").lower().replace("-", "") != "utf8":
        return Check("terminal", "warning", detail, "without UTF-8 it draws in ASCII: export LANG=C.UTF-8")
    if name in ("", "dumb"):
        return Check("terminal", "failed", detail, "the dashboard needs a real TERM, e.g. xterm-256color")
    if width < 80 or height < 24:
        return Check("terminal", "warning", detail, "80 × 24 is the least for more than the key numbers")
    return Check("terminal", "ok", detail)


def multiplexer(environ: Mapping[str, str]) -> Check:
    """Check tmux, screen and SSH. Each may reduce colours; SSH alone loses the dashboard on disconnect."""
    name = environ.get("TERM", "")
    ssh = "SSH_CONNECTION" in environ
    if environ.get("TMUX"):
        detail = f"in tmux{' over SSH' if ssh else ''}, TERM={name or 'not set'}"
        if not name.startswith(("tmux", "screen")):
            advice = "in ~/.tmux.conf: set -g default-terminal tmux-256color"
            return Check("tmux", "warning", f"{detail}, which is not tmux's own", advice)
        features = _tmux_features()
        if features is not None and "RGB" not in features and not true_colour(environ):
            advice = "for true colour, in ~/.tmux.conf: set -as terminal-features ',*:RGB'"
            return Check("tmux", "ok", f"{detail}, 256 colours", advice)
        return Check("tmux", "ok", detail)
    if environ.get("STY"):
        return Check("tmux", "ok", f"in screen, TERM={name or 'not set'}")
    if not ssh:
        return Check("tmux", "ok", "no tmux and no SSH in between")
    if true_colour(environ):
        return Check("tmux", "ok", "over SSH, with true colour")
    advice = "for true colour: export COLORTERM=truecolor; in tmux a dashboard outlives the connection"
    return Check("tmux", "ok", f"over SSH without tmux, TERM={name or 'not set'}", advice)


def configuration(environ: Mapping[str, str]) -> Check:
    """Check the settings of the user and report invalid ones."""
    config = read(environ=environ)
    if config.problems:
        where = short(config.file) if config.file else "the environment"
        return Check("configuration", "warning", "; ".join(config.problems), f"fix it in {where}")
    chosen = [
        f"{name} by {value.origin}" for name, value in config.values.items() if value.origin != "default"
    ]
    chosen += [f"{len(config.keys)} keys"] if config.keys else []
    return Check(
        "configuration", "ok", ", ".join(chosen) or "nothing is set: all settings have their defaults"
    )


def true_colour(environ: Mapping[str, str]) -> bool:
    """Whether the terminal announces 24-bit colour."""
    return environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")


def _tmux_features() -> str | None:
    """The features of the outer terminal according to tmux; None if unknown."""
    try:
        done = subprocess.run(
            ["tmux", "display-message", "-p", "#{client_termfeatures}"],
            capture_output=True,
            text=True,
            timeout=TMUX_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
