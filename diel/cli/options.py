"""Arguments and options that several commands have.

Nothing is imported here that takes time, as in `diel.cli.commands`.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def count(text: str) -> int:
    """Convert an argument to a positive whole number; argparse prints the error."""
    return whole(text, least=1)


def whole(text: str, *, least: int = 0) -> int:
    """Convert an argument to a whole number; argparse prints the error."""
    number = int(text)
    if number < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}")
    return number


whole.__name__ = "count"  # what argparse calls it in its messages


def seconds(text: str) -> float:
    """Convert a duration such as ``30 s`` or ``2 h`` to seconds; argparse prints the error."""
    from diel.text import duration_s

    return duration_s(float(text) if text.replace(".", "", 1).isdecimal() else text)


seconds.__name__ = "duration"


def add_file(parser: argparse.ArgumentParser) -> None:
    """Add the argument FILE, the workflow file."""
    parser.add_argument("file", metavar="FILE", help="the workflow file (TOML)")


def add_choices(parser: argparse.ArgumentParser, repeats: str = "", *, runs: bool = True) -> None:
    """Add the options that choose, for this time, what a workflow file says and what of it runs.

    Those that only make sense where something `runs` are left out elsewhere; `repeats` is what more
    --from does with a run that is resumed.
    """
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="give a parameter of the file this value, or any key another: --set dt=0.1 --set "
        "module.solver.options.cells=64; as often as you like",
    )  # fmt: skip
    parser.add_argument(
        "--only", dest="only_groups", action="append", default=[], metavar="GROUP",
        help="this group alone, with what is inside it; as often as you like",
    )  # fmt: skip
    parser.add_argument(
        "--from", dest="from_groups", action="append", default=[], metavar="GROUP",
        help=f"this group and all that depends on it, and nothing before it{repeats}",
    )  # fmt: skip
    if runs:
        parser.add_argument(
            "--force", action="store_true",
            help="run also what is up to date, by the inputs and outputs that the file declares",
        )  # fmt: skip


def add_launch_arguments(
    parser: argparse.ArgumentParser, *, runs: Path | None = Path("runs")
) -> None:
    """Add the options of all commands that start ranks: how they start, and where runs are kept."""
    parser.add_argument(
        "-n", "--ranks", type=count, metavar="N",
        help="MPI ranks to start (default: as many as the file can use at once)",
    )  # fmt: skip
    parser.add_argument(
        "--runs", type=Path, default=runs, metavar="DIR",
        help=f"where run directories are made (default: {runs or 'RUN_DIR/joined'})",
    )  # fmt: skip
    parser.add_argument(
        "--restarts", type=whole, metavar="N",
        help="how often to start it again, on what is left, when a rank, a host or mpiexec has "
        "died (default: what the file says, or never)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-run-as-root", action="store_true",
        help="pass this on to Open MPI, which otherwise refuses to run as root",
    )  # fmt: skip
    add_launcher(parser)


def add_launcher(parser: argparse.ArgumentParser) -> None:
    """Add the option --launcher."""
    from diel.executive.batch_scripts import LAUNCHERS

    parser.add_argument(
        "--launcher", choices=LAUNCHERS,
        help="what starts the ranks (default: mpiexec; within a job of Flux flux run, and within "
        "one of Slurm srun, where MPI is the site's and Slurm offers what it needs)",
    )  # fmt: skip


def add_share(parser: argparse.ArgumentParser) -> None:
    """Add the option --share, for sweeps of several runs."""
    parser.add_argument(
        "--share", type=Path, metavar="DIR",
        help="a folder in which the run shares its sweeps with others of the same file, such as "
        "the jobs of an array: each trial is run by one of them, and each ends with all results",
    )  # fmt: skip


def add_silence(parser: argparse.ArgumentParser) -> None:
    """Add the option --silence, for sweeps of several runs."""
    parser.add_argument(
        "--silence", type=seconds, default=30.0, metavar="TIME",
        help="how long one of several runs may say nothing before its trials are given to others "
        "(default: 30 s)",
    )  # fmt: skip


def add_sweep(parser: argparse._ActionsContainer) -> None:
    """Add the option --sweep, which chooses one of a run's."""
    parser.add_argument(
        "--sweep", default="", metavar="GROUP.MODULE", help="which sweep, where there are several"
    )


def add_run_dir(parser: argparse.ArgumentParser) -> None:
    """Add the argument RUN_DIR."""
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the run's directory")


def add_run_dir_or_newest(parser: argparse.ArgumentParser, what_is_done: str) -> None:
    """Add the argument RUN_DIR, which may be left out or be a folder of runs."""
    parser.add_argument(
        "run_dir", nargs="?", type=Path, metavar="RUN_DIR",
        help=f"the run's directory, or a folder of runs, of which the newest is {what_is_done} "
        "(default: runs)",
    )  # fmt: skip


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option --json, for lists."""
    parser.add_argument("--json", action="store_true", help="print a JSON list")
