"""What the launcher hands over to rank 0 is what rank 0 would find itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from diel.executive.placement.planning import plan_run
from diel.executive.plans import RunPlan
from diel.loading.functions import check_options
from diel.workflow.load import read_draft

FILE = """\
[workflow]
name = "study"
private = false

[tuple_space]
servers = 2
when_full = "raise"

[[module]]
name = "solver"
function = "./solver.py:run"
copies = "fill"
processes = 2
gpus = 0.333
placement = "spread"
time_limit = "2 min"
options = { rates = [0.1, 1e300, inf], deep = { "a b" = [true, "é"] }, large = 9223372036854775807 }

[[module]]
name = "program"
executable = ["/bin/echo", "{copy}"]
launcher = ["/usr/bin/env"]
environment = { SEED = 7 }
tasks = 3

[[group]]
name = "inner"
modules = ["solver", "program"]
until = ["converged", 3]

[[group]]
name = "outer"
groups = ["inner"]
iterations = 2
"""
RANKS = 9


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "solver.py").write_text("class Grid:\n    pass\n\n\ndef run(ctx):\n    pass\n")
    path = tmp_path / "w.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def checked(file: Path) -> RunPlan:
    draft = read_draft(file)
    return plan_run(check_options(draft), draft, RANKS)


def test_rank_0_reads_what_the_launcher_has_found(file: Path, tmp_path: Path) -> None:
    plan, left = checked(file), tmp_path / "plan.json"
    plan.save(left, FILE)
    assert RunPlan.take(left, str(file), RANKS) == plan
    assert plan.server_ranks == (1, 2)
    assert plan.pool == tuple(range(3, 9))
    assert plan.needs["solver"].is_fill
    assert plan.groups[0].modules[0].copies == 2
    assert not left.exists()


def test_a_plan_is_of_one_text_and_one_number_of_ranks(file: Path, tmp_path: Path) -> None:
    plan, left = checked(file), tmp_path / "plan.json"
    plan.save(left, FILE)
    assert RunPlan.take(left, str(file), RANKS + 1) is None
    plan.save(left, FILE)
    assert RunPlan.take(left, str(tmp_path / "other.toml"), RANKS) is None
    plan.save(left, FILE)
    file.write_text(FILE.replace("0.1", "0.2"), encoding="utf-8")
    assert RunPlan.take(left, str(file), RANKS) is None
    left.write_text("{")
    assert RunPlan.take(left, str(file), RANKS) is None


@pytest.mark.parametrize(
    "added",
    [
        "\n[module.options]\nwhen = 1979-05-27\n",
        '\n[[boundary]]\nname = "w"\nshape = [4]\nowners = [{ module = "m" }]\n'
        'readers = [{ module = "m" }]\n',
    ],
    ids=["a date", "a boundary"],
)
def test_what_json_cannot_hold_is_left_to_rank_0(file: Path, tmp_path: Path, added: str) -> None:
    file.write_text(
        '[[group]]\nname = "g"\nmodules = ["m"]\n\n'
        f'[[module]]\nname = "m"\nfunction = "./solver.py:run"\n{added}'
    )
    left = tmp_path / "plan.json"
    checked(file).save(left, file.read_text())
    assert RunPlan.take(left, str(file), RANKS) is None


def test_rank_0_needs_no_pydantic_for_it() -> None:
    code = "import sys, diel.executive.rank0; print([n for n in sys.modules if 'pydantic' in n])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert printed.stdout == "[]\n", printed.stderr
