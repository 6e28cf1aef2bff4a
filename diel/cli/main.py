"""The command ``diel``: its arguments are parsed, and the command that they name is performed."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from diel import __version__
from diel.cli.commands import COMMANDS, Command, add_commands
from diel.cli.output import protect_standard_streams, why_output_was_lost
from diel.errors import DielError
from diel.exit_codes import BAD_INPUT, FAILED, MEANINGS
from diel.text import describe_error, did_you_mean, is_short_of_memory

# Names that commands have in other programs, and what to type here.
_SYNONYMS: Final = {
    "help": "--help",
    "version": "--version",
    "resume": "run --resume RUN_DIR",
    "start": "run FILE",
    "validate": "check",
    "lint": "check",
    "list": "runs",
    "ls": "runs",
    "status": "watch",
    "init": "new-module",
}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Exit codes are those of `diel.exit_codes`.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default those of the process.
    """
    protect_standard_streams()
    options = parse(arguments)
    try:
        status = options.command.perform(options)
        if not status and options.command.fails_without_output and (lost := why_output_was_lost()):
            print(f"diel: {lost}", file=sys.stderr, flush=True)
            status = FAILED
        sys.exit(status)
    except DielError as error:
        print(f"diel: {error}", file=sys.stderr, flush=True)
        sys.exit(BAD_INPUT)
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_short_of_memory(error):
            raise
        text = f"there is no memory left for this command ({describe_error(error)})"
        print(f"diel: {text}", file=sys.stderr, flush=True)
        sys.exit(FAILED)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; exit with a message and a suggestion if it is wrong."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # Only the parser of this command: building those of all commands takes longer than some of
    # them run.
    asked = [command for command in COMMANDS if command.name in arguments[:1]]
    parser = build_parser(asked or COMMANDS)
    options, unknown = parser.parse_known_args(arguments)
    options.build_parser = build_parser
    if unknown:
        # The main parser does not know the options of the command.
        of_command = Parser(prog=f"diel {options.command.name}")
        options.command.add_arguments(of_command)
        unknown = _filled(of_command, options, unknown)
    if unknown:
        known = of_command.option_strings()
        near = next((did_you_mean(word, known) for word in unknown if word.startswith("-")), None)
        hint = f': did you mean "{near}"?' if near else ""
        of_command.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return options


def _filled(
    parser: argparse.ArgumentParser, options: argparse.Namespace, unknown: Sequence[str]
) -> list[str]:
    """Set arguments that may be left out and stand behind an option; return the words left over.

    Before Python 3.13, argparse takes such an argument to be left out as soon as an option comes.
    """
    left = list(unknown)
    for action in parser._actions:
        is_free = action.nargs == "?" and not action.option_strings
        if not is_free or not left or any(word.startswith("-") for word in left):
            continue
        if getattr(options, action.dest) == action.default:
            setattr(options, action.dest, parser._get_value(action, left.pop(0)))
    return left


class Parser(argparse.ArgumentParser):
    """An argument parser that suggests the command or choice that a mistyped word may mean."""

    def option_strings(self) -> list[str]:
        """Return all option strings, such as ``--ranks``, of this parser and its subcommands."""
        names: list[str] = []
        for action in self._actions:
            names += action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    names += parser.option_strings()
        return names

    def error(self, message: str) -> NoReturn:
        """Print the message, with a suggestion where there is one, and exit."""
        found = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL)
        if found is None:
            super().error(message)
        given, known = found[1], re.findall(r"[\w.-]+", found[2])
        if {"run", "check"} <= set(known):
            super().error(f"there is no command {given!r}: {_meant(given)}")
        near = did_you_mean(given, known)
        super().error(f'{message}: did you mean "{near}"?' if near else message)


def _meant(given: str) -> str:
    """Return a suggestion for a command that does not exist."""
    names = [command.name for command in COMMANDS]
    meant = _SYNONYMS.get(given.lower()) or did_you_mean(given, names)
    if given.endswith(".toml"):
        meant = f"run {given}"
    if meant is None:
        return f"there are {', '.join(names)}"
    return f'did you mean "diel {meant}"?'


def build_parser(commands: Sequence[Command] = COMMANDS) -> Parser:
    """Return the parser of the command line, with these commands."""
    parser = Parser(
        prog="diel",
        description="Run workflows of coupled modules and hyperparameter sweeps on MPI.",
        epilog="Exit codes: "
        + "; ".join(f"{code} {meaning}" for code, meaning in MEANINGS.items())
        + ".",
    )
    parser.add_argument("--version", action="version", version=f"diel {__version__}")
    add_commands(parser.add_subparsers(required=True, metavar="COMMAND"), commands)
    return parser
