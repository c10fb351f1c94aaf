"""Print a completion script for bash or zsh, such as: source <(qdhuac completion bash)."""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh")
SCRIPT = """_qdhuac() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" values="" flags=""
  case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in
{cases}
  esac
  [[ "$cur" == -* ]] && values="$flags"
  [ "$COMP_CWORD" = 1 ] && values="{commands}"
  COMPREPLY=($(compgen -W "$values" -- "$cur"))
}}
complete -o default -F _qdhuac qdhuac"""  # `-o default`: file names where nothing else is known


def add(parser: argparse.ArgumentParser) -> None:
    """The options of `qdhuac completion`."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"one of: {', '.join(SHELLS)}")


def run(arguments: argparse.Namespace) -> int:
    """Print the script, which is made from the parsers of the commands."""
    from qdhuac.cli import parser

    (commands,) = (a.choices for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    cases = []
    for name, command in commands.items():
        flags, positional = [], ""
        for action in command._actions:
            values = " ".join(action.choices or getattr(action, "suggestions", ()))
            if not action.option_strings:
                positional = values
                continue
            flags.append(action.option_strings[-1])
            if values:
                cases.append(f'    "{name} {flags[-1]}") values="{values}" ;;')
        cases.append(f'    "{name} "*) values="{positional}" flags="{" ".join(flags)}" ;;')
    if arguments.shell == "zsh":
        print("autoload -U +X bashcompinit && bashcompinit")
    print(SCRIPT.format(cases="\n".join(cases), commands=" ".join(commands)))
    return 0
