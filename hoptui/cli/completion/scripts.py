"""The completion scripts of the shells.

For a command that takes names of runs and knobs, a script asks `hoptui __complete`. If that offers nothing,
the rest of the script answers: your running Slurm jobs after `attach`, then the parser's own words. The
scripts ask `squeue` themselves, for at most two seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cyclopts import App
from cyclopts.completion.install import create_install_completion_command

from hoptui.cli.completion.grammar import GRAMMARS
from hoptui.client.target import SLURM

Shell = Literal["bash", "zsh", "fish", "powershell"]

_BASH = """
# The names of runs and knobs.
_hoptui_names() {
  local name
  local -a names=()
  case " @COMMANDS@ " in
    *" ${COMP_WORDS[1]} "*)
      if [[ $COMP_CWORD -ge 2 && ${COMP_WORDS[COMP_CWORD]} != -* ]]; then
        while IFS= read -r name; do
          names+=("$name")
        done < <(command hoptui __complete bash "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" \\
          </dev/null 2>/dev/null)
      fi
      ;;
  esac
  if [[ ${#names[@]} -eq 0 ]]; then
    _hoptui_and_jobs "$@"
    return
  fi
  COMPREPLY=("${names[@]}")
  if [[ ${#names[@]} -eq 1 && ${names[0]} == *[=/] ]]; then
    compopt -o nospace
  fi
}

complete -F _hoptui_names hoptui
"""

_ZSH = """
# The names of runs and knobs.
_cyclopts_hoptui() {
  local typed
  local -a names open
  case " @COMMANDS@ " in
    *" ${words[2]} "*)
      if (( CURRENT >= 3 )) && [[ ${words[CURRENT]} != -* ]]; then
        typed="${PREFIX-${words[CURRENT]}}"
        names=("${(@f)$(command hoptui __complete zsh "${(@Q)words[2,CURRENT-1]}" "$typed" \\
          </dev/null 2>/dev/null)}")
        names=(${names:#})
      fi
      ;;
  esac
  if (( ${#names} == 0 )); then
    _hoptui_options "$@"
    return
  fi
  open=(${(M)names:#*[=/]})
  names=(${names:#*[=/]})
  (( ${#names} )) && compadd -- "${names[@]}"
  (( ${#open} )) && compadd -S '' -- "${open[@]}"
  return 0
}

if [[ ${funcstack[1]} == _*hoptui ]]; then
  _cyclopts_hoptui "$@"
elif (( $+functions[compdef] )); then
  compdef _cyclopts_hoptui hoptui
fi
"""

_FISH = """
# The names of runs and knobs.
function __hoptui_takes_names
    set -l words (commandline -opc)
    test (count $words) -ge 2; or return 1
    contains -- $words[2] @COMMANDS@
end

function __hoptui_names
    set -l words (commandline -opc)
    set -e words[1]
    set -l current (commandline -ct)
    command hoptui __complete fish $words "$current" </dev/null 2>/dev/null
end

complete -c hoptui -f -n __hoptui_takes_names -a '(__hoptui_names)'
"""


_JOBS = f"timeout 2 squeue --me --noheader --states=RUNNING --format={SLURM}%i 2>/dev/null"
_BASH_JOBS = f"""
# Slurm jobs. bash splits words at colons, and replaces only what follows the last one.
_hoptui_and_jobs() {{
  local line="${{COMP_LINE:0:COMP_POINT}}"
  local typed="${{line##* }}"
  if [[ "$line" != *" attach "* || "$typed" != {SLURM}* ]]; then
    _hoptui "$@"
    return
  fi
  COMPREPLY=($(compgen -W "$({_JOBS})" -- "$typed"))
  [[ "$COMP_WORDBREAKS" != *:* ]] || COMPREPLY=("${{COMPREPLY[@]#{SLURM}}}")
}}

complete -F _hoptui_and_jobs hoptui
"""
_ZSH_BEGIN = "_cyclopts_hoptui() {\n"
_ZSH_JOBS = f"""\
  if [[ "${{words[2]}}" == attach && "${{words[CURRENT]}}" == {SLURM}* ]]; then
    compadd -- ${{(f)"$({_JOBS})"}}
    return
  fi
"""
_FISH_JOBS = f"""
# Slurm jobs
function __fish_hoptui_slurm
    __fish_hoptui_using_command attach; and string match -q "{SLURM}*" -- (commandline -ct)
end
complete -c hoptui -n __fish_hoptui_slurm -f -a '({_JOBS})'
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
    return _with_names(_with_jobs(parser_script, shell), shell)


def _with_jobs(parser_script: str, shell: Shell) -> str:
    """Return the script of the parser with Slurm jobs. There are none for other shells."""
    if shell == "zsh":
        return parser_script.replace(_ZSH_BEGIN, _ZSH_BEGIN + _ZSH_JOBS, 1)
    return parser_script + {"bash": _BASH_JOBS, "fish": _FISH_JOBS}.get(shell, "")


def _with_names(script: str, shell: Shell) -> str:
    """The script of a shell with Slurm jobs, extended by names; unchanged for PowerShell."""
    if shell == "powershell":
        return script
    commands = " ".join(GRAMMARS)
    if shell == "zsh":  # the shell calls the function with the name of the script's file
        script = script.replace("_cyclopts_hoptui", "_hoptui_options")
    added = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}[shell]
    return f"{script.rstrip()}\n{added.replace('@COMMANDS@', commands)}"
