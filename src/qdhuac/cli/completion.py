"""Print a completion script for a shell, such as: source <(qdhuac completion bash)."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

SHELLS = ("bash", "zsh", "fish")


def add(parser: argparse.ArgumentParser) -> None:
    """The options of `qdhuac completion`."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"one of: {', '.join(SHELLS)}")


def run(arguments: argparse.Namespace) -> int:
    """Print the script, which is made from the parsers of the commands."""
    print(_fish() if arguments.shell == "fish" else _bash(arguments.shell))
    return 0


def commands() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command by its name."""
    from qdhuac.cli import parser

    (found,) = (a.choices for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return found


def values(action: argparse.Action) -> tuple[str, ...]:
    """Return the known values of an option or argument."""
    found: Any = action.choices or getattr(action, "suggestions", ())
    return tuple(found)


def _bash(shell: str) -> str:
    after, start = [], []
    for name, parser in commands().items():
        flags = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
        arguments = [one for action in parser._actions if not action.option_strings for one in values(action)]
        start.append(f'      {name}:-*) offers="{" ".join(flags)}" ;;')
        if arguments:
            start.append(f'      {name}:*) offers="{" ".join(arguments)}" ;;')
        for action in parser._actions:
            if action.option_strings and values(action):
                after.append(f'    {name}:{action.option_strings[-1]}) offers="{" ".join(values(action))}" ;;')
    return "\n".join(
        [
            *(["autoload -U +X bashcompinit && bashcompinit"] if shell == "zsh" else []),
            "_qdhuac() {",
            '  local cur="${COMP_WORDS[COMP_CWORD]}" command="${COMP_WORDS[1]}" offers=""',
            '  case "$command:${COMP_WORDS[COMP_CWORD-1]}" in',
            *after,
            '    *) case "$command:$cur" in',
            *start,
            "    esac ;;",
            "  esac",
            f'  [ "$COMP_CWORD" = 1 ] && offers="{" ".join(commands())}"',
            '  COMPREPLY=($(compgen -W "$offers" -- "$cur"))',
            "}",
            "complete -o default -F _qdhuac qdhuac",  # file names where nothing else is known
        ]
    )


def _fish() -> str:
    lines = [f"complete -c qdhuac -f -n __fish_use_subcommand -a {shlex.quote(' '.join(commands()))}"]
    for name, parser in commands().items():
        seen = f"complete -c qdhuac -n '__fish_seen_subcommand_from {name}'"
        for action in parser._actions:
            offered = f" -a {shlex.quote(' '.join(values(action)))}" if values(action) else ""
            if action.option_strings:
                takes = " -r" if action.nargs != 0 else ""
                text = shlex.quote(action.help or "")
                lines.append(f"{seen} -l {action.option_strings[-1][2:]}{takes}{offered} -d {text}")
            elif offered:
                lines.append(f"{seen} -f{offered}")
    return "\n".join(lines)
