"""The completion scripts of the shells: those of the parser, with your running Slurm jobs after `attach`, and
with the names of runs and knobs (`hoptui.cli.completion`).

The scripts ask `squeue` themselves, for at most two seconds.
"""

from __future__ import annotations

from pathlib import Path

from cyclopts import App
from cyclopts.completion.install import create_install_completion_command

from hoptui.cli.completion.scripts import Shell, with_names
from hoptui.client.target import SLURM

JOBS = f"timeout 2 squeue --me --noheader --states=RUNNING --format={SLURM}%i 2>/dev/null"
BASH = f"""
# Slurm jobs. bash splits words at colons, and replaces only what follows the last one.
_hoptui_and_jobs() {{
  local line="${{COMP_LINE:0:COMP_POINT}}"
  local typed="${{line##* }}"
  if [[ "$line" != *" attach "* || "$typed" != {SLURM}* ]]; then
    _hoptui "$@"
    return
  fi
  COMPREPLY=($(compgen -W "$({JOBS})" -- "$typed"))
  [[ "$COMP_WORDBREAKS" != *:* ]] || COMPREPLY=("${{COMPREPLY[@]#{SLURM}}}")
}}

complete -F _hoptui_and_jobs hoptui
"""
ZSH_BEGIN = "_cyclopts_hoptui() {\n"
ZSH = f"""\
  if [[ "${{words[2]}}" == attach && "${{words[CURRENT]}}" == {SLURM}* ]]; then
    compadd -- ${{(f)"$({JOBS})"}}
    return
  fi
"""
FISH = f"""
# Slurm jobs
function __fish_hoptui_slurm
    __fish_hoptui_using_command attach; and string match -q "{SLURM}*" -- (commandline -ct)
end
complete -c hoptui -n __fish_hoptui_slurm -f -a '({JOBS})'
"""


def script(app: App, shell: Shell) -> str:
    """Return the completion script of a shell."""
    return _extended(app.generate_completion(shell=shell), shell)


def register_install(app: App) -> None:
    """Add the option `--install-completion`, which writes the script of a shell to where it looks for it."""

    def install(*, shell: Shell, output: Path | None, add_to_startup: bool) -> Path:
        path = app.install_completion(shell=shell, output=output, add_to_startup=add_to_startup)
        path.write_text(_extended(path.read_text(), shell))
        return path

    app.command(create_install_completion_command(install, False), name="--install-completion")


def _extended(parser_script: str, shell: Shell) -> str:
    return with_names(_with_jobs(parser_script, shell), shell)


def _with_jobs(parser_script: str, shell: Shell) -> str:
    """Return the script of the parser with Slurm jobs. There are none for other shells."""
    if shell == "zsh":
        return parser_script.replace(ZSH_BEGIN, ZSH_BEGIN + ZSH, 1)
    return parser_script + {"bash": BASH, "fish": FISH}.get(shell, "")
