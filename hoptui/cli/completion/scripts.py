"""What the completion scripts know of the names of runs and knobs.

For a command that takes names, a script asks `hoptui __complete`. If that offers nothing, the rest of the
script answers: Slurm jobs, then the parser's own words.
"""

from __future__ import annotations

from typing import Literal

from hoptui.cli.completion.grammar import GRAMMARS

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


def with_names(script: str, shell: Shell) -> str:
    """The script of a shell with Slurm jobs, extended by names; unchanged for PowerShell."""
    if shell == "powershell":
        return script
    commands = " ".join(GRAMMARS)
    if shell == "zsh":  # the shell calls the function with the name of the script's file
        script = script.replace("_cyclopts_hoptui", "_hoptui_options")
    added = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}[shell]
    return f"{script.rstrip()}\n{added.replace('@COMMANDS@', commands)}"
