"""The commands of ``diel``: their arguments, and where each is performed.

Nothing is imported here that takes time, so that ``diel --help`` answers at once. The completion of
shells and the list in the README are derived from this table.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from diel.cli.options import (
    add_choices,
    add_file,
    add_json,
    add_launch_arguments,
    add_launcher,
    add_run_dir,
    add_run_dir_or_newest,
    add_share,
    add_silence,
    add_sweep,
    count,
    seconds,
    whole,
)
from diel.frozen import Frozen


class Command(Frozen):
    """A command of ``diel``: its help, its arguments, and the function that performs it."""

    name: str
    # A function that returns it, where what it lists takes time to import.
    help: str | Callable[[], str]
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    function: str  # ``module:function``: takes the parsed arguments, returns the exit code
    fails_without_output: bool = True  # as it only prints; False: it is done also if that fails

    def perform(self, options: argparse.Namespace) -> int:
        """Import the function that performs the command, and call it; return the exit code."""
        module, _, function = self.function.partition(":")
        exit_code: int = getattr(import_module(module), function)(options)
        return exit_code


def add_commands(parsers: Any, commands: Sequence[Command]) -> None:
    """Add a subparser for each command."""
    for command in commands:
        text = command.help if isinstance(command.help, str) else command.help()
        parser = parsers.add_parser(command.name, help=text, description=command.description)
        command.add_arguments(parser)
        parser.set_defaults(command=command)


def _join_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_dir(parser)
    add_sweep(parser)
    parser.add_argument(
        "--time", type=seconds, metavar="TIME",
        help='leave after so long, such as "2 h": trials that have begun then are brought to their '
        "end (default: at the end of the sweep)",
    )  # fmt: skip
    add_silence(parser)
    add_launch_arguments(parser, runs=None)


def _workers_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_dir_or_newest(parser, "asked")


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="?", help="the workflow file (TOML)")
    parser.add_argument(
        "--resume", type=Path, metavar="RUN_DIR",
        help="in place of FILE: go on with this run, from its last checkpoint",
    )  # fmt: skip
    parser.add_argument(
        "--run-dir", type=Path, metavar="RUN_DIR",
        help="begin the run in this directory; or go on with it, if it has begun there already",
    )  # fmt: skip
    add_choices(parser, "; with --resume, run again although it has finished")
    add_launch_arguments(parser)
    add_share(parser)
    add_silence(parser)
    parser.add_argument(
        "--trace", action="store_true",
        help="keep every single call of the tuple space in trace.json, not the long ones alone",
    )  # fmt: skip


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    add_choices(parser, runs=False)
    parser.add_argument(
        "-n", "--ranks", type=count, metavar="N",
        help="also check whether it can run on N ranks, and with how many copies",
    )  # fmt: skip
    parser.add_argument(
        "--per-node", type=count, metavar="M",
        help="also print where each copy would run, with M ranks on each node",
    )  # fmt: skip
    parser.add_argument(
        "--gpus-per-node", type=whole, metavar="G",
        help="GPUs of each node (default: as few as the file needs)",
    )  # fmt: skip
    parser.add_argument(
        "--cores-per-node", type=count, metavar="C",
        help="also check that the threads of the ranks on a node have a core each",
    )  # fmt: skip


def _config_arguments(parser: argparse.ArgumentParser) -> None:
    for name, text in (
        ("cflags", "where diel.h lies"),
        ("libs", "what to link: nothing, without --mpi"),
        ("fortran", "the file of the Fortran module, to be compiled before those that use it"),
        ("mpi", "with what the MPI of this environment needs, as its mpicc says"),
    ):
        parser.add_argument(f"--{name}", action="store_true", help=text)


def _graph_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    add_choices(parser, runs=False)
    parser.add_argument(
        # The keys of `diel.cli.workflow_file.DRAWINGS`, which takes long to import.
        "--format", choices=("text", "dot", "mermaid", "svg"), default="text",
        help="text for people (default), dot for Graphviz, mermaid for Markdown pages, svg for "
        "any browser",
    )  # fmt: skip


def _schema_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", choices=("json", "markdown"), default="json",
        help="JSON Schema for editors (default), or the same as a page to read",
    )  # fmt: skip


def _examples_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="the example to copy")
    parser.add_argument(
        "--to", type=Path, default=Path(), metavar="DIR",
        help="the folder to copy it to, made if need be (default: this one)",
    )  # fmt: skip


def _new_module_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the module's name, a Python identifier")
    parser.add_argument(
        "--language", choices=("python", "c", "cpp", "fortran"), default="python",
        help="what it is written in (default: python); others get a Makefile, too",
    )  # fmt: skip
    parser.add_argument(
        "--in", dest="folder", type=Path, default=Path(), metavar="DIR",
        help="the folder to write into, made if need be (default: this one)",
    )  # fmt: skip


def _batch_help() -> str:
    from diel.executive.batch_scripts import SCHEDULERS

    *others, last = (scheduler.name for scheduler in SCHEDULERS.values())
    return f"print a batch script for a workflow file: {', '.join(others)} or {last}"


def _batch_arguments(parser: argparse.ArgumentParser) -> None:
    from diel.executive.batch_scripts import SCHEDULERS

    first, *others = (" ".join(scheduler.submit_stdin) for scheduler in SCHEDULERS.values())
    parser.description = (
        "Print a batch script that runs a workflow file, with the ranks, threads and GPUs that the "
        f"file asks for: diel batch FILE > job.sh; {first} < job.sh (or {', '.join(others)}). "
        "docs/clusters.md tells more."
    )
    parser.add_argument(
        "--scheduler", choices=tuple(SCHEDULERS),
        help="for which batch scheduler (default: the one whose command is on the PATH)",
    )  # fmt: skip
    _add_job_arguments(parser)


def _sbatch_arguments(parser: argparse.ArgumentParser) -> None:
    _add_job_arguments(parser)
    parser.set_defaults(scheduler="slurm")


def _add_job_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    add_choices(parser)
    parser.add_argument(
        "-n", "--ranks", type=count, metavar="N",
        help="MPI ranks (default: nodes times ranks on each, or what the file can use at once)",
    )  # fmt: skip
    parser.add_argument("--nodes", type=count, metavar="N", help="nodes of the job")
    parser.add_argument("--per-node", type=count, metavar="M", help="ranks on each node")
    parser.add_argument(
        "--time", metavar="LIMIT",
        help="the job's time limit as Slurm writes it: minutes, H:M:S, D-H, ... "
        "(default: the queue's)",
    )  # fmt: skip
    parser.add_argument(
        "--queue", "--partition", metavar="NAME", help="where it waits (default: the site's)"
    )
    parser.add_argument("--account", metavar="NAME", help="who pays (default: the site's)")
    parser.add_argument(
        "--requeue", type=count, default=0, metavar="N",
        help="let the script submit itself again, N times at most, while its time was too short; "
        "goes with --output",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, metavar="SCRIPT",
        help="the file that the script is written to (default: it is printed)",
    )  # fmt: skip
    add_share(parser)
    add_launcher(parser)


def _runs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", type=Path, metavar="DIR",
        help="the folder that run directories are in, or one of them (default: runs)",
    )  # fmt: skip
    parser.add_argument(
        "--where", metavar="CONDITION",
        help="only runs of which this is true: 'dt < 0.1 and state == \"finished\"'; it names "
        "parameters, objectives, and workflow, state, started, seconds, ranks, run, best, why",
    )  # fmt: skip
    add_json(parser)


def _diff_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dirs", nargs=2, type=Path, metavar="RUN_DIR",
        help="the runs' directories, or folders of runs, each for the newest in it",
    )  # fmt: skip
    add_json(parser)


def _sweep_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", type=Path,
        help="the workflow file; or a run's directory, to look at a sweep that has run",
    )  # fmt: skip
    add_choices(parser)
    parser.add_argument(
        "--dry-run", action="store_true",
        help="run nothing but one trial: show how many there are, the first points, and how long "
        "it may take",
    )  # fmt: skip
    parser.add_argument(
        "--top", type=count, metavar="N", help="how many of the best trials to show (default: 10)"
    )
    parser.add_argument(
        "--export", nargs="+", default=[], metavar="FORMAT",
        help="write what was recorded as csv, json, parquet, or optuna (for optuna-dashboard)",
    )  # fmt: skip
    parser.add_argument(
        "--repeat", metavar="TRIAL",
        help="of a run's directory: try this trial here once more, and show what it gave then and "
        "gives now (NAME:TRIAL where the run had several sweeps)",
    )  # fmt: skip
    steering = parser.add_argument_group("to change a sweep while it runs, with a run's directory")
    steering.add_argument(
        "--enqueue", action="append", default=[], metavar="JSON",
        help='try a point next: \'{"learning_rate": 0.01}\'; may be repeated',
    )  # fmt: skip
    steering.add_argument("--pause", action="store_true", help="give out no further trials")
    steering.add_argument("--resume", action="store_true", help="go on after --pause")
    steering.add_argument(
        "--stop-trial", action="append", type=whole, default=[], metavar="N",
        help="end a trial at its next report, or do not begin it; may be repeated",
    )  # fmt: skip
    steering.add_argument(
        "--trials", type=count, metavar="N", help="how many points the strategy is to try in all"
    )
    steering.add_argument(
        "--time", type=seconds, metavar="TIME",
        help="end its trials after so much time from now on, or from when the run is resumed",
    )  # fmt: skip
    add_sweep(steering)
    steering.add_argument(
        "--no-wait", action="store_true", help="do not wait for the sweep's answer"
    )
    add_launch_arguments(parser)
    add_share(parser)
    add_silence(parser)


def _watch_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_dir_or_newest(parser, "shown")
    parser.add_argument("--once", action="store_true", help="print how it stands, and leave")


def _gui_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", nargs="?", type=Path, default=Path(), metavar="FILE | RUN_DIR | FOLDER",
        help="a workflow file to compose, a run to watch, or the folder that the page may show "
        "(default: this one)",
    )  # fmt: skip
    parser.add_argument(
        "--port", type=whole, default=8470, metavar="N",
        help="the port to listen on; 0 takes a free one (default: 8470)",
    )  # fmt: skip
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="H",
        help="the address to listen on (default: 127.0.0.1, this machine alone)",
    )  # fmt: skip


def _explain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", nargs="?", type=Path, metavar="FILE | RUN_DIR",
        help="the run's directory, or a folder of runs, of which the newest is explained "
        "(default: runs); or a workflow file",
    )  # fmt: skip
    parser.add_argument(
        "-n", "--ranks", type=count, metavar="N",
        help="of a workflow file: on so many ranks (default: as many as it can use at once)",
    )  # fmt: skip
    add_choices(parser, runs=False)


def _tuple_arguments(parser: argparse.ArgumentParser) -> None:
    from diel.cli.tuple import add_tuple_arguments  # late, as it imports sockets

    add_tuple_arguments(parser)


def _completion_arguments(parser: argparse.ArgumentParser) -> None:
    from diel.cli.completion import SCRIPTS

    parser.add_argument("shell", choices=tuple(SCRIPTS), help="which shell")


def _compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dirs", nargs="+", type=Path, metavar="RUN_DIR", help="the runs' directories"
    )
    parser.add_argument(
        "--report", type=Path, default=Path("comparison.html"), metavar="REPORT",
        help="where the report is written (default: comparison.html)",
    )  # fmt: skip


def _predict_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dir", type=Path, metavar="RUN_DIR",
        help="the run's directory; or the .safetensors file of a model",
    )  # fmt: skip
    parser.add_argument(
        "data", nargs="?", type=Path, metavar="CSV",
        help="the raw rows: columns are found by their names, others are not read; or an image, a "
        "folder of images, or a table of them (default: show what the model is)",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, metavar="TABLE",
        help="the file that predictions are written to, as CSV (default: they are printed)",
    )  # fmt: skip
    parser.add_argument(
        "--proba", action="store_true", help="write the probability of each class too"
    )
    parser.add_argument(
        "--keep-columns", action="store_true",
        help="write all columns of the rows too, in front of the predictions",
    )  # fmt: skip
    parser.add_argument(
        "--trial", type=whole, metavar="N",
        help="take the network of this trial: it is trained again, unless it is there (default: "
        "the best one)",
    )  # fmt: skip
    parser.add_argument(
        "--average", type=count, metavar="K",
        help="average the networks of K of the best trials, which are trained again and chosen by "
        "the rows that they were not trained on; a trial may count several times",
    )  # fmt: skip
    add_sweep(parser)
    parser.add_argument(
        "--delimiter", metavar="C",
        help="what separates cells (default: what did in the table of the training)",
    )  # fmt: skip
    parser.add_argument(
        "--onnx", type=Path, metavar="MODEL",
        help="write the model as ONNX, with the preparation inside: it takes raw rows",
    )  # fmt: skip


COMMANDS = (
    Command(
        "run",
        "run a workflow file",
        "Run a workflow file. Starts mpiexec itself, unless mpirun, mpiexec or srun has started it "
        "already: mpirun -n 64 diel run FILE.",
        _run_arguments,
        "diel.cli.run:run",
        fails_without_output=False,
    ),
    Command(
        "check",
        "check a workflow file and count its ranks, without MPI",
        "Check a workflow file, without MPI and without running a module. Files that define "
        "Options are imported to check the options.",
        _check_arguments,
        "diel.cli.workflow_file:check",
        fails_without_output=False,
    ),
    Command(
        "doctor",
        "say what is installed, and what its absence costs",
        "Say which parts are installed: MPI, compiled loops on the CPU, GPUs; and what it costs "
        "where one is missing.",
        lambda parser: None,
        "diel.cli.doctor:doctor",
    ),
    Command(
        "config",
        "print what a compiler needs for modules in C, C++ and Fortran",
        "Print what a compiler needs for library modules, as "
        "cc -shared -fPIC $(diel config --cflags) -o solver.so solver.c: all of it in words, or "
        "what is asked for, in one line.",
        _config_arguments,
        "diel.cli.config:config",
    ),
    Command(
        "graph",
        "draw the groups of a workflow file, without MPI",
        "Draw the groups of a workflow file, their modules and what waits for what.",
        _graph_arguments,
        "diel.cli.workflow_file:graph",
    ),
    Command(
        "schema",
        "print the JSON Schema of workflow files, for editors",
        "Print the JSON Schema of workflow files: an editor that knows it completes keys, shows "
        "what they mean and underlines mistakes. docs/workflow-file.md says how.",
        _schema_arguments,
        "diel.cli.workflow_file:schema",
    ),
    Command(
        "examples",
        "list workflow files that come with diel, or copy one",
        "List the workflow files that come with diel, and what each does; or copy one, with the "
        "files that it needs. A file that is there already is never replaced.",
        _examples_arguments,
        "diel.cli.templates:examples",
    ),
    Command(
        "new-module",
        "write a new module, its test and a workflow that runs it",
        "Write NAME.py, test_NAME.py and NAME.toml: a module that works, its test and a workflow "
        "that runs it; in another language NAME.c, NAME.cpp or NAME.f90, and a Makefile. A file "
        "that is there already is never touched.",
        _new_module_arguments,
        "diel.cli.templates:new_module",
    ),
    Command(
        "batch",
        _batch_help,
        "",  # with the arguments
        _batch_arguments,
        "diel.cli.workflow_file:batch",
    ),
    Command(
        "sbatch",
        "the same as batch --scheduler slurm",
        "Print a batch script for Slurm: diel sbatch FILE > job.sh; sbatch job.sh.",
        _sbatch_arguments,
        "diel.cli.workflow_file:batch",
    ),
    Command(
        "runs",
        "list runs: when, how long, how they ended, how good they are",
        "List the runs in a folder, newest first: when they began, how long they took, how they "
        "ended, their best score, and the parameters in which they differ.",
        _runs_arguments,
        "diel.cli.run_directory:runs",
    ),
    Command(
        "diff",
        "say what differs between two runs",
        "Print what differs between two runs, with both values: keys of the workflow file, "
        "parameters, versions, how they ended, how long they took, and their best scores.",
        _diff_arguments,
        "diel.cli.run_directory:diff",
    ),
    Command(
        "sweep",
        "run a sweep, or look at it before or after",
        "Run a workflow file with a sweep, as diel run does; or with --dry-run look at it before, "
        "or at a run's directory after.",
        _sweep_arguments,
        "diel.cli.sweep:sweep",
    ),
    Command(
        "predict",
        "score new rows with the best network of a sweep",
        "Predict the raw rows of a CSV file with the best network of a sweep: they are prepared as "
        "the rows of the training were. If the column of the labels is in the file, print how good "
        "the predictions are.",
        _predict_arguments,
        "diel.cli.predict:predict",
    ),
    Command(
        "join",
        "let ranks of this machine or job take part in a sweep that runs",
        "Start a run that takes part in a sweep of another, through its run directory: it takes "
        "trials, and leaves at the end of the sweep, after --time, or at Ctrl-C. The table is the "
        "same as without it.",
        _join_arguments,
        "diel.cli.join:join",
        fails_without_output=False,
    ),
    Command(
        "workers",
        "list who has joined the sweeps of a run",
        "List the workers of other runs that take part in the sweeps of a run, or did: who they "
        "are, how many trials each has run, and when it was heard of last.",
        _workers_arguments,
        "diel.cli.join:workers",
    ),
    Command(
        "watch",
        "watch a run of another terminal",
        "Show a run as it goes on: groups, copies, who waits for what, tuples and results. It "
        "reads the run's directory, from whatever machine sees that, and ends with the run.",
        _watch_arguments,
        "diel.cli.display:watch",
    ),
    Command(
        "gui",
        "compose, start and watch workflows in a browser",
        "Serve a page for a browser: it composes workflow files, starts them and shows runs as "
        "they go on. It needs pip install 'diel[gui]', and prints the address to open.",
        _gui_arguments,
        "diel.gui.server:serve",
        fails_without_output=False,
    ),
    Command(
        "explain",
        "say why groups of a run do not start, and what ranks wait for",
        "Say of each group of a run what it waits for: other groups, ranks and who has them, its "
        "place in the queue; and of each rank that waits for what, since when, and who could end "
        "that. Of a workflow file: what would start when.",
        _explain_arguments,
        "diel.cli.explain:explain",
    ),
    Command(
        "trace",
        "write trace.json of a run that goes on or was killed",
        "Write trace.json anew from what the ranks have left in a run's directory. A run that "
        "ends by itself has done that already.",
        add_run_dir,
        "diel.cli.run_directory:trace",
    ),
    Command(
        "report",
        "write report.html of a run's results anew",
        "Write report.html, to be opened in a browser, from the results and the journal in a run's "
        "directory. A sweep has done that already, while it went on; other modules' results, and "
        "a run that was killed, are given a report by this.",
        add_run_dir,
        "diel.cli.run_directory:report",
    ),
    Command(
        "compare",
        "compare the sweeps of several runs",
        "Print the best of each sweep of several runs, and write one report over them: histories "
        "and fronts on common axes, and parameters side by side. Their objectives must be the "
        "same.",
        _compare_arguments,
        "diel.cli.run_directory:compare",
    ),
    Command(
        "tuple",
        "put, get or read tuples, from within a run's executable",
        "The tuple space of a run, for its executables: shell scripts, say.",
        _tuple_arguments,
        "diel.cli.tuple:use_tuples",
        fails_without_output=False,  # it checks its output itself
    ),
    Command(
        "completion",
        "print what makes a shell complete diel's commands",
        "Print a script that makes a shell complete diel's commands, options and files: "
        "diel completion bash > ~/.local/share/bash-completion/completions/diel; "
        "diel completion zsh > _diel in a folder of $fpath; "
        "diel completion fish > ~/.config/fish/completions/diel.fish.",
        _completion_arguments,
        "diel.cli.completion:completion",
    ),
)
