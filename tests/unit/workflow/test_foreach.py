from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diel.errors import Problem
from diel.executive.placement.planning import needs
from diel.loading.functions import check_options
from diel.workflow.drawing import draw_text, drawing_of, drawing_of_draft
from diel.workflow.load import Draft, read_draft
from diel.workflow.model import Workflow

MODULES = """\
[[module]]
name = "solver"
executable = ["echo", "${dt}", "${case}", "{element}"]
[[module]]
name = "end"
executable = ["true"]
"""
ARRAY = """\
[[group]]
name = "cases"
modules = ["solver"]
foreach = { dt = [0.1, 0.2], case = ["dam", "sea"] }
[[group]]
name = "after"
modules = ["end"]
depends = ["cases"]
"""
NESTED = """\
[parameters]
limit = 2
[[module]]
name = "prepare"
executable = ["echo", "${case}"]
[[module]]
name = "solver"
executable = ["echo", "${case}"]
[[group]]
name = "cases"
groups = ["first", "second"]
foreach = { case = [1, 2, 3] }
[[group]]
name = "first"
modules = ["prepare"]
[[group]]
name = "second"
modules = ["solver"]
depends = ["first"]
when = "outcome('first') == 'finished' and case <= limit"
"""


def draft_of(folder: Path, text: str, **tables: str) -> Draft:
    for name, table in tables.items():
        (folder / f"{name}.csv").write_text(table)
    (folder / "w.toml").write_text(text)
    return read_draft(folder / "w.toml")


def loaded(folder: Path, text: str, **tables: str) -> Workflow:
    return draft_of(folder, text, **tables).finish()


def problems_of(folder: Path, text: str, **tables: str) -> list[Problem]:
    return draft_of(folder, text, **tables).in_order()


def words_of(workflow: Workflow, name: str) -> tuple[str, ...]:
    found = workflow.module(name).executable
    assert found is not None
    return found


def test_each_combination_is_a_group_with_modules_of_its_own(tmp_path: Path) -> None:
    workflow = loaded(tmp_path, MODULES + ARRAY)
    names = ["cases", "cases-0", "cases-1", "cases-2", "cases-3", "after"]
    assert [group.name for group in workflow.groups] == names
    assert workflow.group("cases").groups == tuple(names[1:5])
    assert workflow.group("cases-2").modules == ("solver-2",)
    assert [words_of(workflow, f"solver-{number}")[1:3] for number in range(4)] == [
        ("0.1", "dam"),
        ("0.1", "sea"),
        ("0.2", "dam"),
        ("0.2", "sea"),
    ]
    assert workflow.group("after").depends == ("cases",)
    assert [module.name for module in workflow.modules][-1] == "end"


def test_the_values_of_a_table_have_types_and_keep_their_texts(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("def run(ctx): pass\n")
    text = """\
[[module]]
name = "solver"
function = "./f.py:run"
copies = "${n}"
options = { dt = "${dt}", case = "${case}", fast = "${fast}", label = "dt=${dt}", id = "${id}" }
[[group]]
name = "cases"
modules = ["solver"]
foreach = "c.csv"
"""
    table = '\ufeffn, dt,case,fast,id\n1,0.10,dam,true,007\n\n2,1e-3,"a, b",false,8\n'
    workflow = loaded(tmp_path, text, c=table)
    assert [workflow.module(f"solver-{number}").options for number in range(2)] == [
        {"dt": 0.1, "case": "dam", "fast": True, "label": "dt=0.10", "id": "007"},
        {"dt": 0.001, "case": "a, b", "fast": False, "label": "dt=1e-3", "id": "8"},
    ]
    assert workflow.module("solver-1").copies == 2
    assert workflow.expansion.arrays["cases"].rows[0] == [1, 0.1, "dam", True, "007"]


def test_groups_inside_an_element_depend_on_each_other(tmp_path: Path) -> None:
    workflow = loaded(tmp_path, NESTED)
    assert workflow.group("cases-1").groups == ("first-1", "second-1")
    assert workflow.group("second-1").depends == ("first-1",)
    when = workflow.when_of(workflow.group("second-1"))
    assert when is not None
    assert when.groups == ["first-1"]
    assert when.decided is None
    assert workflow.surely_skipped == {"second-2"}


def test_a_condition_without_values_of_elements_is_that_of_all(tmp_path: Path) -> None:
    text = MODULES + ARRAY.replace("foreach", "when = \"case == 'sea'\"\nforeach")
    workflow = loaded(tmp_path, text)
    assert workflow.group("cases").when is None
    assert workflow.surely_skipped == {"cases-0", "cases-2"}
    text = (
        "[parameters]\nrefine = false\n"
        + MODULES
        + ARRAY.replace("foreach", 'when = "refine"\nforeach')
    )
    workflow = loaded(tmp_path, text)
    assert workflow.group("cases").when == "refine"
    assert workflow.group("cases-0").when is None


def test_lists_may_be_parameters(tmp_path: Path) -> None:
    text = "[parameters]\nsteps = [1, 2, 3]\n" + MODULES + ARRAY.replace("[0.1, 0.2]", '"${steps}"')
    assert len(loaded(tmp_path, text).expansion.arrays["cases"].elements) == 6
    (tmp_path / "w.toml").write_text(text)
    draft = read_draft(tmp_path / "w.toml", given=["steps=[7]", "group.cases.at_once=2"])
    workflow = draft.finish()
    assert [values for values, *_ in workflow.expansion.arrays["cases"].rows] == [7, 7]
    assert workflow.group("cases").at_once == 2


def test_a_module_without_values_may_be_in_other_groups_too(tmp_path: Path) -> None:
    text = MODULES + ARRAY.replace('["solver"]', '["solver", "end"]')
    workflow = loaded(tmp_path, text)
    assert workflow.group("after").modules == ("end",)
    assert workflow.group("cases-0").modules == ("solver-0", "end-0")


def test_a_single_element_can_be_run_alone(tmp_path: Path) -> None:
    from diel.run.part import Part

    part = loaded(tmp_path, MODULES + ARRAY).limited_to(Part(only=("cases-1",)))
    assert [group.name for group in part.groups] == ["cases", "cases-1"]
    assert needs(part, cores=8).moment == 3


@pytest.mark.parametrize(
    ("at_once", "cores", "moment"), [("", 3, 3), ("", 1, 1), ("at_once = 2", 8, 2)]
)
def test_as_many_ranks_as_elements_run_at_once(
    tmp_path: Path, at_once: str, cores: int, moment: int
) -> None:
    text = MODULES + ARRAY.replace("foreach", f"{at_once}\nforeach")
    assert needs(loaded(tmp_path, text), cores).moment == 2 + moment


def test_it_is_drawn_once(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, NESTED)
    text = draw_text(drawing_of(draft.finish()))
    assert "cases  ↻ for each of 3" in text
    assert "when outcome('first') == 'finished' and case <= limit" in text
    assert "-0" not in text
    assert draw_text(drawing_of_draft(draft)) == text
    broken = draft_of(tmp_path, MODULES + ARRAY.replace("{ dt", "{ end = 3, dt"))
    assert "solver" in draw_text(drawing_of_draft(broken))


def test_options_name_modules_of_the_same_element(tmp_path: Path) -> None:
    text = """\
[[module]]
name = "master"
function = "modules.master:run"
options = { strategy = "grid", space = { learning_rate = [0.1], epochs = 1 }, seed = "${seed}" }
[[module]]
name = "trainer"
function = "modules.trainer:run"
options = { dataset = "digits" }
[[group]]
name = "sweep"
modules = ["master", "trainer"]
foreach = { seed = [1, 2] }
"""
    workflow = check_options(draft_of(tmp_path, text))
    assert workflow.names_in("sweep-1") == {"master-1": "master", "trainer-1": "trainer"}


def changed(before: str, after: str) -> str:
    assert before in MODULES + ARRAY
    return (MODULES + ARRAY).replace(before, after)


FOREACH = "foreach = { dt"


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        (
            changed(FOREACH, "foreach = 3\n#"),
            "group[0].foreach",
            "expected lists by name or a file",
        ),
        (changed(FOREACH, "foreach = {}\n#"), "group[0].foreach", "expected lists by name"),
        (changed("[0.1, 0.2]", "0.1"), "group[0].foreach.dt", "expected a list of values"),
        (changed("[0.1, 0.2]", "[[1]]"), "group[0].foreach.dt", "expected numbers, texts"),
        (changed("{ dt", '{ "d t"'), "group[0].foreach", "is no name of a value"),
        (
            "[parameters]\ndt = 1\n" + MODULES + ARRAY,
            "group[0].foreach",
            '"dt" is a parameter too',
        ),
        (changed(FOREACH, 'foreach = "c.txt"\n#'), "group[0].foreach", "is no table"),
        (changed(FOREACH, 'foreach = "none.csv"\n#'), "group[0].foreach", "there is no file"),
        (changed(FOREACH, 'foreach = "empty.csv"\n#'), "group[0].foreach", "is empty"),
        (changed(FOREACH, 'foreach = "header.csv"\n#'), "group[0].foreach", "there is no element"),
        (changed(FOREACH, 'foreach = "ragged.csv"\n#'), "group[0].foreach", "line 3: 1 values"),
        (changed(FOREACH, 'foreach = "twice.csv"\n#'), "group[0].foreach", "two columns"),
        (changed(FOREACH, 'foreach = "quote.csv"\n#'), "group[0].foreach", "quote.csv, line"),
        (changed("dt = [0.1", f"n = [{'1, ' * 9000}], dt = [0.1"), "group[0].foreach", "at most"),
        (changed("${dt}", "${dd}"), "module[0].executable[1]", "${dd} is no parameter"),
        (changed("{element}", "{elements}"), "module[0].executable[3]", "no placeholder"),
        (changed('["true"]', '["echo", "{element_dir}"]'), "module[1].executable", "of elements"),
        (
            changed('modules = ["end"]', 'modules = ["end", "solver"]'),
            "module[0]",
            "is in a group without foreach too",
        ),
        (
            changed('["end"]\n', '["end", "solver"]\nforeach = { x = [1] }\n'),
            "group[1].modules",
            "is in two groups with foreach",
        ),
        (
            changed('name = "after"', 'name = "cases-1"'),
            "group[0].foreach",
            'group "cases-1" would be there twice',
        ),
        (
            changed('name = "end"', 'name = "solver-3"').replace('["end"]', '["solver-3"]'),
            "group[0].foreach",
            'module "solver-3" would be there twice',
        ),
        (
            changed("foreach", "# foreach").replace("${", "").replace(', "{element}"', "")
            + "at_once = 2\n",
            "group[1]",
            "at_once has no effect",
        ),
        (NESTED.replace('["prepare"]', '["prepare"]\nforeach = { x = [1] }'), None, "foreach too"),
        (changed('["solver"]', '["solvr"]'), "group[0].modules[0]", 'no module "solvr"'),
        (changed("foreach", 'max_failures = "200%"\nforeach'), None, "200%"),
    ],
)
def test_what_is_wrong_is_said_where_it_stands(
    tmp_path: Path, text: str, path: str | None, message: str
) -> None:
    found = problems_of(
        tmp_path,
        text,
        empty="\n",
        header="dt,case\n",
        ragged="dt,case\n1,2\n3\n",
        twice="dt,dt\n1,2\n",
        quote='dt,case\n1,"2\n',
    )
    assert any(message in problem.message for problem in found), found
    problem = next(problem for problem in found if message in problem.message)
    assert "(in " not in problem.message  # it is so for all elements
    assert path is None or problem.path == path
    assert problem.line


def test_a_boundary_is_no_elements(tmp_path: Path) -> None:
    text = MODULES + ARRAY + '[[boundary]]\nname = "wall"\nowners = [{ module = "solver" }]\n'
    (problem,) = problems_of(tmp_path, text)
    assert (problem.path, problem.line) == ("boundary[0]", 15)
    assert "none has this boundary" in problem.message


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ("[1, 0, 2]", "(in cases-1, where n = 0)"),
        ("[0, 0, 2]", "(in cases-0, where n = 0 and 1 more elements)"),
        ("[0, 0]", ""),
    ],
)
def test_a_problem_of_some_elements_names_the_first(
    tmp_path: Path, counts: str, expected: str
) -> None:
    text = f"""\
[[module]]
name = "solver"
executable = ["true"]
copies = "${{n}}"
[[group]]
name = "cases"
modules = ["solver"]
foreach = {{ n = {counts} }}
"""
    (problem,) = problems_of(tmp_path, text)
    assert (problem.path, problem.line) == ("module[0].copies", 4)
    assert problem.message.endswith(expected)
    assert ("(in" in problem.message) == bool(expected)


def test_a_file_without_foreach_keeps_its_letters(tmp_path: Path) -> None:
    text = """\
[[module]]
name = "solver"
executable = ["echo", "${{dt}}"]
[[group]]
name = "cases"
modules = ["solver"]
"""
    assert words_of(loaded(tmp_path, text), "solver") == ("echo", "${{dt}}")


def test_braces_of_values_are_no_placeholders(tmp_path: Path) -> None:
    from diel.workflow.programs import fill_placeholders

    workflow = loaded(tmp_path, changed('"dam"', '"{copy}"'))
    values: dict[str, Any] = {"element": "cases-0"}
    filled = [fill_placeholders(word, values) for word in words_of(workflow, "solver-0")]
    assert filled == ["echo", "0.1", "{copy}", "cases-0"]
