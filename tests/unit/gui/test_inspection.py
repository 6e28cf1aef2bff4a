"""What is known of a workflow's text while it is edited."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, wait_until

from diel.errors import DielError, Problem
from diel.executive.placement.preview import SchedulePreview
from diel.gui.inspection import Findings, Inspection, inspect, inspection_of, places
from diel.gui.inspector import Inspector, code_state
from diel.workflow.load import Draft, draft_of_text, read_draft
from modules.trainer_options import OPTION_GROUPS

DIGITS = ROOT / "workflows" / "digits_grid.toml"
FLOW = """\
[[module]]
name = "mod"
function = "./train.py:run"
[[group]]
name = "group"
modules = ["mod"]
"""
CODE = """\
from pydantic import BaseModel
class Options(BaseModel):
    {field}: int = 1
def run(ctx): pass
"""


def test_a_sweep_is_previewed_and_its_options_have_fields() -> None:
    pytest.importorskip("sklearn")
    draft = read_draft(DIGITS)
    findings = inspect(draft)
    assert Findings.of_plain(json.loads(json.dumps(findings.as_plain()))) == findings
    found = inspection_of(draft, findings)
    assert found.problems == []
    assert found.workflow is not None
    assert found.needs is not None
    (sweep,) = found.sweeps
    assert "trials, grid, tried by trainer" in found.sweeps[sweep]
    assert len(found.points[sweep]) == 5
    assert " = " in found.points[sweep][0]
    assert found.fields.keys() == {module.name for module in found.workflow.modules}
    shown = places(found.workflow, ranks=8, per_node=3, shown_as="digits")
    assert {row[0] for row in shown.rows} == {"node 0", "node 1", "node 2"}
    assert ("node 0", "", "the executive", "", "0", "", "") in shown.rows
    with pytest.raises(DielError, match="ranks"):
        places(found.workflow, ranks=1, per_node=1, shown_as="digits")
    # As many as somebody may type: only the first nodes are looked at.
    looked: list[Any] = []
    rows = SchedulePreview.rows

    def counted(preview: SchedulePreview, ranks: Any) -> Any:
        looked.append(ranks)
        return rows(preview, ranks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SchedulePreview, "rows", counted)
        many = places(found.workflow, ranks=500, per_node=1, shown_as="digits")
    assert len(looked) == 64
    assert many.note == "and 436 nodes more"
    with pytest.raises(DielError, match="more than 100,000 ranks"):
        places(found.workflow, ranks=9_999_999, per_node=1, shown_as="digits")


TABLE = """\
[[module]]
name = "trainer"
function = "modules.trainer:run"
options = { dataset = "csv", path = "mine.csv", validation_fraction = 0.5, OPTIONS }
[[group]]
name = "search"
modules = ["trainer"]
"""


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ('reading = { label = "b", weight = "c" }', ".reading.weight"),
        ('reading = { label = "b", drop = ["c"] }', ".reading.drop"),
        ('reading = { label = "b", rename = { c = "d" } }', ".reading.rename"),
        ('reading = { label = "b" }, impute = { c = "mean" }', ".impute"),
        ('reading = { label = "b" }, class_weight = { c = 2.0 }', ".class_weight"),
        ('reading = { label = "b", weight = "c", drop = ["c"] }', ""),  # either may be meant
    ],
)
def test_what_the_data_have_not_is_told_at_its_option(
    options: str, place: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.csv").write_text("a,b\n1,x\n2,y\n3,x\n4,y\n")
    draft = draft_of_text(TABLE.replace("OPTIONS", options), tmp_path / "table.toml")
    found = inspect(draft)
    assert found.problems == []
    (remark,) = found.remarks
    assert remark.path == f"module[0].options{place}"


def test_options_are_grouped_and_no_group_names_one_that_there_is_not(tmp_path: Path) -> None:
    text = TABLE.replace(", OPTIONS", "")
    fields = inspect(draft_of_text(text, tmp_path / "table.toml")).fields["trainer"]
    groups = {field.label: field.group for field in fields}
    assert {label for label, group in groups.items() if not group} == {
        *("dataset", "path", "layers", "train"),
    }
    assert groups["reading.label"] == groups["reading"] != groups["reading.x"]
    listed = [name for names in OPTION_GROUPS.values() for name in names]
    assert len(set(listed)) == len(listed)
    assert set(listed) <= groups.keys()


SWEEP = """\
[[module]]
name = "master"
function = "modules.master:run"
options = { space = { learning_rate = [0.1] } }
[[module]]
name = "trainer"
function = "modules.trainer:run"
options = { dataset = "csv", path = "data.csv" }
[[group]]
name = "search"
modules = ["master", "trainer"]
"""


def test_what_is_odd_about_the_data_is_shown_and_does_not_keep_from_starting(
    tmp_path: Path,
) -> None:
    rows = [f"{2 * row},{1 + row % 2}" for row in range(40)]
    for cells, message in [
        (rows, "data: the labels begin with 1"),
        ([*rows, "1,x"], "module 'trainer': DataError: .*line 42, column 'y': 'x' is no number"),
    ]:
        (tmp_path / "data.csv").write_text("\n".join(["a,y", *cells]) + "\n")
        draft = draft_of_text(SWEEP, tmp_path / "flow.toml")
        found = inspection_of(draft, inspect(draft))
        assert found.problems == []
        (remark,) = found.remarks
        assert re.search(message, remark.message)
        assert found.sweeps["master"].startswith("1 trial, grid")


def test_problems_of_options_are_there_with_those_of_the_file() -> None:
    text = DIGITS.read_text().replace("[module.options.space]", "sed = 1\n[module.options.space]")
    draft = draft_of_text(text.replace("[[group]]", "[[grup]]"), DIGITS)
    found = inspection_of(draft, inspect(draft))
    assert [problem.message for problem in found.problems] == [
        'unknown key sed', 'unknown table grup',
    ]  # fmt: skip
    assert all(problem.remedy and problem.line for problem in found.problems)
    assert found.workflow is None
    assert "trainer" in found.fields


# -- code that is run in a process of its own -----------------------------------------------------


def draft_in(folder: Path, code: str) -> Draft:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(code)
    return draft_of_text(FLOW, folder / "flow.toml")


def ask(draft: Draft, limit_s: float = 20.0) -> Inspection:
    found = asyncio.run(Inspector(limit_s).inspect(draft))
    assert found is not None
    return found


def fields_in(draft: Draft) -> list[str]:
    found = ask(draft)
    assert found.problems == []
    return [field.label for field in found.fields["mod"]]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_code_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    hangs = (
        "import subprocess, time, os\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(tmp_path / 'pids')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)\n"
    )
    found = ask(draft_in(tmp_path, hangs + CODE.format(field="size")), limit_s=8)
    assert found.problems == [
        Problem(
            "module[0].function", "importing ./train.py took more than 8 s",
            "is data loaded outside of a function?",
        )
    ]  # fmt: skip
    assert found.problems[0].line == 3
    assert found.workflow is None
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    wait_until(lambda: not any(map(is_running, pids)))


def test_an_inspection_that_is_stopped_says_nothing(tmp_path: Path) -> None:
    draft = draft_in(tmp_path, "import time; time.sleep(600)\n" + CODE.format(field="size"))

    async def stop_it() -> Inspection | None:
        inspector = Inspector()
        task = asyncio.ensure_future(inspector.inspect(draft))
        await asyncio.sleep(0.1)
        inspector.stop()
        return await task

    assert asyncio.run(stop_it()) is None


@pytest.mark.parametrize(
    ("ends", "message", "path"),
    [
        ("import os; os._exit(3)\n", "importing ./train.py ended Python with exit code 3", "at"),
        ("import os; os.abort()\n", "importing ./train.py ended Python by SIGABRT", "at"),
        ("import sys; sys.exit(4)\n", "./train.py:run: SystemExit at import: 4", "at"),
        (
            "def preview_sweep(options, folder):\n    import os; os._exit(5)\n",
            "its preview_sweep ended Python with exit code 5",
            "",
        ),
    ],
)
def test_code_that_ends_python_is_a_problem_at_its_module(
    tmp_path: Path, ends: str, message: str, path: str
) -> None:
    (problem,) = ask(draft_in(tmp_path, ends + CODE.format(field="size"))).problems
    assert problem.message == message
    assert problem.path == ("module[0].function" if path else "module[0]")
    assert problem.remedy


def test_code_that_says_exit_leaves_the_rest(tmp_path: Path) -> None:
    exits = "    import sys; sys.exit('enough')\n"
    code = (
        f"{CODE.format(field='size')}def preview_sweep(options, folder):\n{exits}"
        f"def describe_network(options, folder, point):\n{exits}"
        f"def missing_here(options, module):\n{exits}"
    )
    found = ask(draft_in(tmp_path, code))
    assert found.problems == []
    assert found.sweeps == {"mod": "no preview: SystemExit: enough"}
    assert "SystemExit in missing_here" in found.remarks[0].message
    assert found.needs is not None
    assert found.failures == {"mod": "no table of layers without a point of a sweep: "
                                     "SystemExit: enough"}  # fmt: skip


def test_what_a_table_of_an_option_holds_is_known_by_its_kind() -> None:
    pytest.importorskip("sklearn")
    draft = draft_of_text(DIGITS.read_text(), DIGITS)
    findings = inspect(draft)
    assert findings.failures == {}
    layers = findings.variants["trainer"]["layers"]
    assert layers.key == "type"
    fields = {field.label: field for field in layers.fields["fully_connected"]}
    assert fields["units"].is_required
    assert fields["activation"].kind == "text"
    assert fields["repeat"].default == "1"
    kinds = {field.label: field.kind for field in findings.fields["trainer"]}
    assert kinds["layers"] == "tables"
    strategies = findings.variants["master"]["strategy"].fields
    names = {name: [field.label for field in fields] for name, fields in strategies.items()}
    assert names["grid"] == names["random"] == []
    assert names["cross_entropy"] == ["elite", "startup", "explore"]
    assert names["halving"] == ["min_steps", "reduction"]
    strategy = next(field for field in findings.fields["master"] if field.label == "strategy")
    assert strategy.kind == "variant"


def test_the_documented_tables_of_an_option_have_forms(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(# smoothing.py\n.*?)^```$", page, re.M | re.S)
    findings = ask(draft_in(tmp_path, code))
    steps = findings.variants["mod"]["steps"]
    assert steps.key == "kind"
    labels = {kind: [field.label for field in fields] for kind, fields in steps.fields.items()}
    assert labels == {"jacobi": ["weight"], "chebyshev": ["degree"]}
    assert [(field.label, field.kind) for field in findings.fields["mod"]] == [("steps", "tables")]


def test_changed_code_and_modules_of_one_name_in_two_folders_are_told_apart(
    tmp_path: Path,
) -> None:
    path = list(sys.path)
    one = draft_in(tmp_path / "one", CODE.format(field="aa"))
    two = draft_in(tmp_path / "two", CODE.format(field="bb"))
    one.file.with_name("train.py").touch()
    before = code_state(one)
    assert fields_in(one) == ["aa"]
    assert fields_in(two) == ["bb"]
    (tmp_path / "one" / "train.py").write_text(CODE.format(field="cc"))
    os.utime(tmp_path / "one" / "train.py", ns=(0, 10**18))
    assert code_state(one) != before
    assert fields_in(one) == ["cc"]
    assert sys.path == path
    assert "train" not in sys.modules
