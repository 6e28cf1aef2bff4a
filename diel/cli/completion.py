"""``diel completion``: scripts that make a shell complete commands, options and files.

Commands, options and arguments are taken from the parsers, as a list of `Level`; each shell has a
function here that writes this list in its own language.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Literal, TypeAlias

from diel.errors import PluginError
from diel.frozen import Frozen
from diel.loading.reporter import reporters
from diel.workflow.examples import list_examples

# The names that arguments for files and folders have in the commands' help.
_FILES: Final[dict[str, Literal["toml", "folder", "file"]]] = {
    "FILE": "toml",
    "FILE | RUN_DIR": "toml",
    "FILE | RUN_DIR | FOLDER": "toml",
    "RUN_DIR": "folder",
    "DIR": "folder",
    "CSV": "file",
    "TABLE": "file",
    "MODEL": "file",
    "SCRIPT": "file",
    "REPORT": "file",
}
_SUGGESTED: Final[Mapping[tuple[str, str], Callable[[], Iterable[str]]]] = {
    ("examples", "name"): lambda: (example.name for example in list_examples()),
    ("sweep", "export"): lambda: (
        name for reporter in reporters() for name in reporter.export_formats()
    ),
}
"""By command and argument: values that depend on what is installed."""

Values: TypeAlias = 'tuple[str, ...] | Literal["toml", "folder", "file", "any"]'
"""Words to choose from; or workflow files and folders, folders, files; ``any`` is not completed."""


class Option(Frozen):
    """An option of a command."""

    names: tuple[str, ...]  # ``-n`` and ``--ranks``
    help: str
    values: Values | None  # of its argument; None if it takes no argument
    is_list: bool = False  # whether several arguments may follow it


class Level(Frozen):
    """The commands, options and arguments that may follow ``diel`` or one of its commands."""

    words: tuple[str, ...]  # the commands so far: ``()``, ``("run",)``, ``("tuple", "put")``
    commands: dict[str, str]  # commands that may follow, with their help
    options: tuple[Option, ...]
    arguments: tuple[Values, ...]  # of each positional argument


def completion(options: argparse.Namespace) -> int:
    """Print the script for a shell; return the exit code."""
    print(SCRIPTS[options.shell](list(levels(options.build_parser()))), end="")
    return 0


def levels(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[Level]:
    """Yield a `Level` for a parser, and for each of its subcommands at any depth."""
    commands: dict[str, str] = {}
    below: list[tuple[str, argparse.ArgumentParser]] = []
    options, arguments = [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands |= {str(choice.dest): choice.help or "" for choice in action._choices_actions}
            below += action.choices.items()
        elif action.option_strings:
            values = None if action.nargs == 0 else _values(words, action)
            help_ = " ".join((action.help or "").split())
            is_list = action.nargs in ("+", "*")
            options.append(Option(tuple(action.option_strings), help_, values, is_list))
        else:
            arguments.append(_values(words, action))
    yield Level(words, commands, tuple(options), tuple(arguments))
    for word, inner in below:
        yield from levels(inner, (*words, word))


def _values(words: tuple[str, ...], action: argparse.Action) -> Values:
    if action.choices is not None:
        return tuple(map(str, action.choices))
    suggest = _SUGGESTED.get((" ".join(words), action.dest))
    if suggest is not None:
        try:
            return tuple(suggest())
        except PluginError:
            return "any"  # the command itself says which plugin is broken
    return _FILES.get(str(action.metavar), "any")


# -- bash -----------------------------------------------------------------------------------------


def bash(levels: list[Level]) -> str:
    """Return the script for bash, 4 or newer."""
    commands = [level for level in levels if level.words]
    pairs = [
        shlex.quote(f"{' '.join(command.words[:-1])}:{command.words[-1]}") for command in commands
    ]
    with_values = [
        (
            option.is_list,
            f"        {'|'.join(shlex.quote(f'{_key(level)}:{name}') for name in option.names)}) "
            f"{_bash_values(option.values)}; return ;;",
        )
        for level in levels
        for option in level.options
        if option.values is not None
    ]
    flags = [
        f"        {shlex.quote(_key(level))}) _diel_words "
        f"{shlex.quote(' '.join(name for option in level.options for name in option.names))} ;;"
        for level in levels
    ]
    first = [
        f"        {shlex.quote(_key(level))}) {_bash_values(_first(level))} ;;" for level in levels
    ]
    return _BASH.format(
        pairs="|".join(pairs),
        behind="\n".join(line for _, line in with_values),
        lists="\n".join(line for is_list, line in with_values if is_list),
        flags="\n".join(flags),
        first="\n".join(first),
    )


def _key(level: Level) -> str:
    return " ".join(level.words)


def _first(level: Level) -> Values:
    """Return the values that may follow a command: all its arguments are of one kind."""
    if level.commands:
        return tuple(level.commands)
    known = [argument for argument in level.arguments if argument != "any"]
    return known[0] if known else "any"


def _bash_values(values: Values) -> str:
    if isinstance(values, tuple):
        return f"_diel_words {shlex.quote(' '.join(values))}"
    known = {"toml": "_diel_files -X '!*.toml'", "folder": "_diel_files -d", "any": ":"}
    return known.get(values, "_diel_files -f")


_BASH: Final = """\
# Completion of diel for bash, written by: diel completion bash

_diel_words() {{
    mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur")
}}

_diel_files() {{
    compopt -o filenames 2>/dev/null
    if [[ $1 == -X ]]; then
        mapfile -t COMPREPLY < <(compgen -d -- "$cur"; compgen -f -X "$2" -- "$cur")
    elif [[ $1 == -f ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    else
        mapfile -t COMPREPLY < <(compgen -d -- "$cur")
    fi
}}

_diel() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} path="" last="" i
    COMPREPLY=()
    # bash makes words of their own of the = in --format=dot
    if [[ $cur == "=" ]]; then
        cur=""
    elif [[ $prev == "=" ]]; then
        prev=${{COMP_WORDS[COMP_CWORD - 2]}}
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$path:${{COMP_WORDS[i]}}" in
        {pairs}) path="${{path:+$path }}${{COMP_WORDS[i]}}" ;;
        *:-*) last=${{COMP_WORDS[i]}} ;;
        esac
    done
    case "$path:$prev" in
{behind}
    esac
    if [[ $cur == -* ]]; then
        case "$path" in
{flags}
        esac
        return
    fi
    # Behind an option that takes several arguments, all words up to the next option are such.
    case "$path:$last" in
{lists}
    esac
    case "$path" in
{first}
    esac
}}

complete -F _diel diel
"""


# -- zsh ------------------------------------------------------------------------------------------


def zsh(levels: list[Level]) -> str:
    """Return the script for zsh, to be found on its ``fpath`` or sourced."""
    functions = [_zsh_function(level) for level in levels]
    return _ZSH.format(functions="\n".join(functions))


def _zsh_function(level: Level) -> str:
    lines = [_zsh_option(option) for option in level.options]
    if level.commands:
        lines += ["'1: :->command'", "'*:: :->rest'"]
    else:
        lines += [f"'*: :{_zsh_values(_first(level))}'"] if level.arguments else []
    body = [f"{_function(level.words)}() {{", "    local state line", "    local -a commands"]
    body.append(" \\\n        ".join([f"    _arguments -s{' -C' * bool(level.commands)}", *lines]))
    if level.commands:
        listed = " ".join(shlex.quote(f"{name}:{help_}") for name, help_ in level.commands.items())
        body += [
            "    case $state in",
            f"    command) commands=({listed}); _describe command commands ;;",
            "    rest)",
            "        case $words[1] in",
            *(f"        {name}) {_function((*level.words, name))} ;;" for name in level.commands),
            "        esac ;;",
            "    esac",
        ]
    return "\n".join([*body, "}", ""])


def _function(words: tuple[str, ...]) -> str:
    return re.sub(r"\W", "_", "_".join(("_diel", *words)))


def _zsh_option(option: Option) -> str:
    help_text = re.sub(r"([\[\]:\\])", r"\\\1", option.help)
    behind = "" if option.values is None else f": :{_zsh_values(option.values)}"
    if option.is_list:
        behind = f":*-*{behind}"
    specs = [shlex.quote(f"{name}[{help_text}]{behind}") for name in option.names]
    if len(specs) == 1:
        return specs[0]
    excluded = f"({' '.join(option.names)})"
    return " ".join(shlex.quote(f"{excluded}{name}[{help_text}]{behind}") for name in option.names)


def _zsh_values(values: Values) -> str:
    if isinstance(values, tuple):
        return f"({' '.join(values)})"
    known = {"toml": '_files -g "*.toml"', "folder": "_files -/", "file": "_files", "any": " "}
    return known[values]


_ZSH: Final = """\
#compdef diel
# Completion of diel for zsh, written by: diel completion zsh

{functions}
if [[ $funcstack[1] == _diel ]]; then
    _diel "$@"
else
    compdef _diel diel
fi
"""


# -- fish -----------------------------------------------------------------------------------------


def fish(levels: list[Level]) -> str:
    """Return the script for fish."""
    lines = ["# Completion of diel for fish, written by: diel completion fish", "", _FISH]
    for level in levels:
        here = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in level.words)
        none_yet = f"not __fish_seen_subcommand_from {' '.join(level.commands)}"
        where = here or "__fish_use_subcommand"
        for name, help_ in level.commands.items():
            first = f"{here}; and {none_yet}" if here else where
            lines.append(f"complete -c diel -n {shlex.quote(first)} -a {name} -d {_fish(help_)}")
        for option in level.options:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.names
            )
            behind = "" if option.values is None else f" -x{_fish_values(option.values)}"
            if option.values == "file":
                behind = " -r -F"
            lines.append(
                f"complete -c diel -n {shlex.quote(where)} {names}{behind} -d {_fish(option.help)}"
            )
            if option.is_list:
                behind_it = f"{where}; and __diel_is_behind {' '.join(option.names)}"
                lines.append(
                    f"complete -c diel -n {shlex.quote(behind_it)}{_fish_values(option.values)}"
                )
        if not level.commands and _fish_values(_first(level)):
            lines.append(f"complete -c diel -n {shlex.quote(where)}{_fish_values(_first(level))}")
    return "\n".join([*lines, ""])


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _fish_values(values: Values | None) -> str:
    if isinstance(values, tuple):
        return f" -a {shlex.quote(' '.join(values))}"
    known = {"toml": "__fish_complete_suffix .toml", "folder": "__fish_complete_directories"}
    return f" -a '({known[values]})'" if values in known else ""


_FISH: Final = """\
function __diel_is_behind --description 'Whether the last option is one of these'
    set -l given (string match -- '-*' (commandline -opc))
    contains -- "$given[-1]" $argv
end

complete -c diel -f"""

SCRIPTS: Final = {"bash": bash, "zsh": zsh, "fish": fish}
