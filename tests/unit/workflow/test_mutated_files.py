"""Thousands of spoilt workflow files: each is a workflow, or one error that says what is wrong.

The files are those of ``workflows/``, those in the documents, and one that has every key. What is
drawn is the same every time; a failure names the file and the seed, for ``mutated(good, seed)``.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from elf_file import write_library
from jsonschema import Draft7Validator
from support import ROOT, THOROUGH, WORKFLOWS, case_count, status_of

from diel.errors import WorkflowError
from diel.executive.batch_scripts import job_for
from diel.executive.placement.planning import needs, plan_groups
from diel.loading.functions import check_options
from diel.workflow.elf import machine_here
from diel.workflow.load import Draft, read_draft
from diel.workflow.model import Workflow
from diel.workflow.problems import keys_of
from diel.workflow.schema import tables, workflow_schema
from diel.workflow.source import Place, parse_document

from .mutations import mutated

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGES = ("README.md", "docs/modules.md", "docs/executables.md")
MEANT_TO_BE_WRONG = "wrong.toml"
EVERY_KEY = """\
[workflow]
name = "everything"
log_size = "1 MiB"
returned_size = "1 MiB"
returned_total = "1 GiB"
private = false
restarts = 3
checkpoint_every = "5 min"
on_rank_loss = "continue"
heartbeat_timeout = "1 min"
signal_before = "2 min"
resources = { licence = 4, disk = 9 }
[parameters]
wide = 64
dt = { default = 0.1, type = "number", from = 0.01, to = 1.0, text = "time step, in s" }
mode = { default = "a", choices = ["a", "b"] }
[tuple_space]
servers = 2
memory = "64 MiB"
when_full = "raise"
spill = true
replicas = 1
[[module]]
name = "solver"
function = "./hello.py:answer"
processes = 2
copies = 3
threads = 2
gpus = 1
placement = "spread"
on_failure = "continue"
retries = 2
time_limit = "10 min"
signal_before = "1 min"
pin = "numa"
resources = { licence = 1 }
[[module]]
name = "filler"
function = "./hello.py:greet"
copies = "fill"
inputs = ["hello.p*"]
outputs = ["made/{copy}.txt"]
options = { deep = { list = [1, 2.5, "three"] } }
[[module]]
name = "compiled"
library = "./solver.so:run"
[[module]]
name = "program"
executable = ["sh", "-c", "echo {copy} of {copies}"]
launcher = ["env"]
directory = "{run_dir}/{module}.{copy}"
environment = { SEED = "{copy}", WIDTH = "${wide}", DT = "${dt}", MODE = "${mode}" }
stdin = "hello.py"
tasks = 3
max_failures = "40%"
memory = "1 GiB"
retry_memory = 2
signal = "USR1"
resources = { disk = 2 }
retries = 1
copies = 2
[[group]]
name = "work"
modules = ["solver", "compiled", "program"]
iterations = 3
until = ["done", 1]
[[group]]
name = "rest"
modules = ["filler"]
depends = ["work"]
when = "value(['norm', 1]) > dt and outcome('work') != 'skipped' or mode == '${mode}'"
[[group]]
name = "outer"
groups = ["work", "rest"]
iterations = 2
[[module]]
name = "each"
function = "./hello.py:answer"
options = { n = "${n}" }
[[group]]
name = "many"
modules = ["each"]
foreach = { n = [1, 2], case = ["a", "b"] }
at_once = 2
max_failures = 1
[[boundary]]
name = "wall"
dtype = "float32"
shape = [64, 2]
owners = [{ module = "solver", copy = 0, section = [[0, 64], [0, 1]], split = 0 }]
readers = [{ module = "solver", copy = 1, rank = 1, section = [[0, 32], [0, 1]] }]
ahead = 2
policy = "wait"
"""
SEEDS = range(160 if THOROUGH else 40)
MOST_RANKS_DRAWN = 2000


def documented() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        blocks = re.findall(r"```toml\n(# \S+\.toml\n.*?)```", (ROOT / page).read_text(), re.S)
        for block in blocks:
            name = block.split()[1]
            if name != MEANT_TO_BE_WRONG:
                yield f"{page}, {name}", block


GOOD = {
    "every key": EVERY_KEY,
    **{file.name: file.read_text() for file in sorted(WORKFLOWS.glob("*.toml"))},
    **dict(documented()),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the files that the good ones name."""
    folder = tmp_path_factory.mktemp("mutated")
    for file in (*WORKFLOWS.glob("*.py"), *WORKFLOWS.glob("*.csv")):
        shutil.copy(file, folder)
    shutil.copytree(WORKFLOWS / "digit_images", folder / "digit_images")
    write_library(folder / "solver.so", machine=machine_here() or 62)
    for page in PAGES:
        text = (ROOT / page).read_text()
        for name, body in re.findall(r"```python\n# (\S+\.py)\n(.*?)```", text, re.S):
            (folder / name).write_text(body)
    data = folder / "heart" / "processed.cleveland.data"
    data.parent.mkdir()
    rows = (f"{age},1,1,145,233,1,2,150,0,2.3,3,0,6,{age % 2}" for age in range(40, 60))
    data.write_text("\n".join(rows))
    for name in ("mnist", "cifar10"):
        (folder / name).mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIEL_DATA", str(folder))
        yield folder


@pytest.fixture(scope="module")
def validator() -> Draft7Validator:
    return Draft7Validator(workflow_schema())


def load(file: Path) -> Workflow | WorkflowError:
    return finished(read_draft(file))


def finished(draft: Draft) -> Workflow | WorkflowError:
    try:
        return check_options(draft)
    except WorkflowError as error:
        return error


def write(folder: Path, data: bytes) -> Path:
    file = folder / "w.toml"
    file.write_bytes(data)
    return file


def test_the_file_with_every_key_has_every_key_and_is_good(folder: Path) -> None:
    document = tomllib.loads(EVERY_KEY)
    for table in tables():
        given = document[table.key]
        if table.is_by_name:
            given = [entry for entry in given.values() if isinstance(entry, dict)]
        entries = given if isinstance(given, list) else [given]
        assert {key for entry in entries for key in entry} == set(keys_of(table.model)), table.key
    assert isinstance(load(write(folder, EVERY_KEY.encode())), Workflow)


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", GOOD)
def test_a_spoilt_file_is_a_workflow_or_a_clear_error(name: str, folder: Path) -> None:
    refused = 0
    for seed in SEEDS:
        data = mutated(GOOD[name], seed)
        try:
            draft = read_draft(write(folder, data))
            check_lines(draft)
            found = finished(draft)
        except BaseException as error:
            shown = data[:4000]
            raise AssertionError(f"{name}, seed {seed}: {error!r} for\n{shown!r}") from error
        if isinstance(found, WorkflowError):
            refused += 1
            check_problems(found, f"{name}, seed {seed}")
    assert 0.2 * len(SEEDS) < refused < len(SEEDS)  # of both there were some


def check_lines(draft: Draft) -> None:
    """Every key that the parser finds has a line, and no other."""
    if not draft.document:
        return  # of what is not TOML the lines mean nothing
    document = parse_document(draft.source)[0]  # without values of parameters, and elements

    def places(value: object, place: Place) -> Iterator[Place]:
        yield place
        inside = value.items() if isinstance(value, dict) else ()
        inside = enumerate(value) if isinstance(value, list) else inside
        for step, one in inside:
            yield from places(one, (*place, step))

    assert {(), *draft.lines} == set(places(document, ()))
    assert list(draft.lines.values()) == sorted(draft.lines.values())


def check_problems(error: WorkflowError, which: str) -> None:
    assert error.problems, which
    assert len(set(map(str, error.problems))) == len(error.problems), f"{which}: {error}"
    for problem in error.problems:
        assert re.fullmatch(r'|(\w|[-.\[\]]|"([^"\\]|\\.)*")+', problem.path), (
            f"{which}: {problem!r}"
        )
        assert problem.message.strip(), which
        assert len(str(problem)) < 2000, f"{which}: {problem!r}"
        # The file as a whole may lack something, or be no text; else there is a place.
        assert problem.line or problem.path in ("", "module", "group"), f"{which}: {problem!r}"
        assert "Traceback" not in str(problem), which
        assert str(problem).isprintable(), f"{which}: {problem!r}"


def accepted(folder: Path, least: int) -> Iterator[tuple[str, bytes, Workflow]]:
    """Yield spoilt files that are workflows all the same, and other ones than the good file."""
    found = 0
    for seed in SEEDS:
        for name, good in GOOD.items():
            if 'dataset = "csv"' in good:
                continue  # diel check reads the rows too, and finds no column of a spoilt name
            data = mutated(good, 10_000 + seed)
            workflow = load(write(folder, data))
            if data.decode(errors="replace") == good or not isinstance(workflow, Workflow):
                continue
            found += 1
            yield f"{name}, seed {10_000 + seed}", data, workflow
            if found == least:
                return
    raise AssertionError(f"only {found} files were accepted")


def test_what_is_accepted_is_planned_drawn_and_submitted(
    folder: Path, validator: Draft7Validator, capsys: pytest.CaptureFixture[str]
) -> None:
    """All commands agree on it, and on how many ranks it takes."""
    for which, data, workflow in accepted(folder, case_count(60)):
        assert not list(validator.iter_errors(tomllib.loads(data.decode()))), which
        need = needs(workflow, cores=3)
        assert 0 < need.minimum <= need.moment, which
        plans = plan_groups(workflow, need.minimum, "w.toml")
        assert [plan.name for plan in plans] == [group.name for group in workflow.groups], which
        file = write(folder, data)
        for how in ("text", "dot", "mermaid", "svg"):
            drawn = printed(capsys, which, "graph", "--format", how, file)
            for group in workflow.groups:
                template = workflow.expansion.templates.get(("group", group.name), group.name)
                assert template in drawn, which
        if need.moment > MOST_RANKS_DRAWN:
            continue
        job = job_for(workflow, "w.toml", ranks=need.moment, per_node=need.moment)
        printed(capsys, which, "check", "--ranks", need.moment, "--per-node", need.moment, file)
        script = printed(capsys, which, "sbatch", "--ranks", need.moment, file)
        assert f"#SBATCH --ntasks={need.moment}\n" in script, which
        assert job.ranks == need.moment, which


def printed(capsys: pytest.CaptureFixture[str], which: str, *arguments: object) -> str:
    status = status_of(*arguments)
    out, err = capsys.readouterr()
    assert status == 0, f"{which}: {arguments}\n{err}"
    return out
