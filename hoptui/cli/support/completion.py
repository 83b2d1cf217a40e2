"""The completion scripts of the shells: those of the parser, and your running Slurm jobs after `attach`.

The scripts ask `squeue` themselves, for at most two seconds. So no Python starts at a press of Tab.
"""

from __future__ import annotations

from typing import Literal

from cyclopts import App

from hoptui.client.target import SLURM

Shell = Literal["zsh", "bash", "fish", "powershell"]

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


class CommandLine(App):
    """The parser, whose completion scripts know Slurm jobs."""

    def generate_completion(self, *, prog_name: str | None = None, shell: Shell | None = None) -> str:
        """Return the script of a shell, the current one if `shell` is None."""
        if shell is None:
            from cyclopts.completion import detect_shell

            shell = detect_shell()
        script = super().generate_completion(prog_name=prog_name, shell=shell)
        if shell == "zsh":
            return script.replace(ZSH_BEGIN, ZSH_BEGIN + ZSH, 1)
        return script + {"bash": BASH, "fish": FISH}.get(shell, "")
