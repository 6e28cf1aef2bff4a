"""The command ``diel``. Each command imports what it needs when it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from diel import __version__
from diel.cli.commands import add_commands, add_file, add_launch_arguments, count, positive
from diel.cli.output import protect_standard_streams, why_output_was_lost
from diel.cli.tuple import add_tuple_command
from diel.errors import DielError

FAILED = 1
BAD_INPUT = 2
STOPPED = 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Exit codes: 0 all went well, 1 a module failed, 2 bad input and nothing was run, 130 stopped
    by the user.

    Parameters
    ----------
    arguments : sequence of str, optional
        Default: those of the process.
    """
    protect_standard_streams()
    options = _parser().parse_args(arguments)
    try:
        if hasattr(options, "perform"):
            status = options.perform(options)
            # What such a command prints is all that it is for.
            if not status and (reason := why_output_was_lost()) is not None:
                print(f"diel: {reason}", file=sys.stderr, flush=True)
                status = FAILED
            sys.exit(status)
        if options.command == "check":
            from diel.cli.check import check

            sys.exit(check(options))
        if options.command == "tuple":
            from diel.cli.tuple import use_tuples

            sys.exit(use_tuples(options))
        from diel.cli.run import run

        sys.exit(run(options))
    except DielError as error:
        print(f"diel: {error}", file=sys.stderr, flush=True)
        sys.exit(BAD_INPUT)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="diel",
        description="Run workflows of coupled modules and hyperparameter sweeps on MPI.",
        epilog="Exit codes: 0 fine, 1 a module failed, 2 bad input and nothing was run, "
        "130 stopped by the user.",
    )
    parser.add_argument("--version", action="version", version=f"diel {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="run a workflow file",
        description="Run a workflow file. Starts mpiexec itself, unless mpirun, mpiexec or srun "
        "has started it already: mpirun -n 64 diel run FILE.",
    )
    run.add_argument("file", metavar="FILE", nargs="?", help="the workflow file (TOML)")
    run.add_argument(
        "--resume", type=Path, metavar="RUN_DIR",
        help="in place of FILE: go on with this run, from its last checkpoint",
    )  # fmt: skip
    add_launch_arguments(run)
    run.add_argument(
        "--trace", action="store_true",
        help="keep every single call of the tuple space in trace.json, not the long ones alone",
    )  # fmt: skip
    run.add_argument("--run-dir", type=Path, help=argparse.SUPPRESS)

    check = commands.add_parser(
        "check",
        help="check a workflow file and count its ranks, without MPI",
        description="Check a workflow file, without MPI and without running a module. Files that "
        "define Options are imported to check the options.",
    )
    add_file(check)
    check.add_argument(
        "-n", "--ranks", type=positive, metavar="N",
        help="also check whether it can run on N ranks, and with how many copies",
    )  # fmt: skip
    check.add_argument(
        "--per-node", type=count, metavar="M",
        help="also print who would sit where, with M ranks on each node",
    )  # fmt: skip
    check.add_argument(
        "--gpus-per-node", type=_whole, metavar="G",
        help="GPUs of each node (default: as few as the file needs)",
    )  # fmt: skip
    check.add_argument(
        "--cores-per-node", type=count, metavar="C",
        help="also check that the threads of the ranks on a node have a core each",
    )  # fmt: skip
    add_commands(commands)
    add_tuple_command(commands)
    return parser


def _whole(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must be at least 0")
    return number


_whole.__name__ = "count"
