"""Print a completion script for a shell, such as: source <(qdhuac completion bash)."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
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


def _actions() -> Iterator[tuple[str, argparse.Action, str]]:
    """Each argument of each command, with the name of the command and the known values."""
    for name, parser in commands().items():
        for action in parser._actions:
            values: Any = action.choices or getattr(action, "suggestions", ())
            yield name, action, " ".join(values)


def _bash(shell: str) -> str:
    flags: dict[str, list[str]] = {}
    after, start = [], []
    for name, action, values in _actions():
        if action.option_strings:
            flags.setdefault(name, []).append(action.option_strings[-1])
            if values:
                after.append(f'    {name}:{action.option_strings[-1]}) offers="{values}" ;;')
        elif values:
            start.append(f'      {name}:*) offers="{values}" ;;')
    return "\n".join(
        [
            *(["autoload -U +X bashcompinit && bashcompinit"] if shell == "zsh" else []),
            "_qdhuac() {",
            '  local cur="${COMP_WORDS[COMP_CWORD]}" command="${COMP_WORDS[1]}" offers=""',
            '  case "$command:${COMP_WORDS[COMP_CWORD-1]}" in',
            *after,
            '    *) case "$command:$cur" in',
            *(f'      {name}:-*) offers="{" ".join(words)}" ;;' for name, words in flags.items()),
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
    for name, action, values in _actions():
        line = f"complete -c qdhuac -n '__fish_seen_subcommand_from {name}'"
        offered = f" -a {shlex.quote(values)}" if values else ""
        if action.option_strings:
            takes = "" if action.nargs == 0 else " -r"
            text = shlex.quote(action.help or "")
            lines.append(f"{line} -l {action.option_strings[-1][2:]}{takes}{offered} -d {text}")
        elif offered:
            lines.append(f"{line} -f{offered}")
    return "\n".join(lines)
