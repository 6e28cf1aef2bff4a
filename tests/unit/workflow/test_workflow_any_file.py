"""Whatever a file says, it is a workflow or a WorkflowError: files that Hypothesis has spoilt."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support import case_count
from unit.workflow.samples import GOOD

from diel.errors import WorkflowError
from diel.executive.placement.planning import needs, plan_groups, pool_ranks
from diel.executive.scheduler import Scheduler
from diel.workflow.load import read_draft
from diel.workflow.model import Group, Module

NEST = """\
[[group]]
name = "study"
groups = ["search", "report"]
iterations = 3
until = ["converged", 1]
"""
LINES = (GOOD + NEST).splitlines()
VALUES = ["3", "0", "true", '""', "[]", "{}", '"x"', '["x"]', "[[1]]", "{ a = 1 }", "1.5", "nan"]
VALUES += ["1979-05-27", "'fill'", '["search", "report"]', "[{}]", '"\\u0000"', '"a:b"', '"./:x"']
KEYWORDS = [*Module.model_fields, *Group.model_fields, "x"]


@st.composite
def mutated_files(draw: st.DrawFn) -> str:
    lines = list(LINES)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        change = draw(
            st.sampled_from(["drop", "double", "value", "key", "swap", "table", "letter"])
        )
        key, equals, _ = lines[at].partition(" = ")
        if change == "drop":
            lines[at] = ""
        elif change == "double":
            lines.insert(at, lines[at])
        elif change == "value" and equals:
            lines[at] = f"{key} = {draw(st.sampled_from(VALUES))}"
        elif change == "key":
            lines[at] = f"{draw(st.sampled_from(KEYWORDS))} = {draw(st.sampled_from(VALUES))}"
        elif change == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
        elif change == "table":
            lines[at] = lines[at].replace("[[", "[").replace("]]", "]")
        elif change == "letter":
            letter = draw(st.sampled_from(string.printable + "é\0\ufeff"))
            column = draw(st.integers(0, len(lines[at])))
            lines[at] = lines[at][:column] + letter + lines[at][column + 1 :]
    return "\n".join(lines)


@settings(max_examples=case_count(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=mutated_files() | st.text(max_size=30))
@example(text="group = [[]]\nmodule = [[]]")
@example(text='[[module]]\nname = ""\n[[group]]\nname = ""\nmodules = [""]\ndepends = [""]')
@example(text="[[module]]\nfunction = ''\nexecutable = ['.']\n")
def test_any_file_is_a_workflow_or_a_workflow_error(folder: Path, text: str) -> None:
    file = folder / "study.toml"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    draft = read_draft(file)
    if draft.problems:
        assert len(set(draft.problems)) == len(draft.problems)
        with pytest.raises(WorkflowError):
            draft.finish()
        return
    workflow = draft.finish()
    size = needs(workflow, cores=1).minimum
    if size < 1000:  # what the reader accepts, the scheduler does
        Scheduler(plan_groups(workflow, size, "w.toml"), pool_ranks(workflow, size)).start()
    used = {name for group in workflow.groups for name in group.modules}
    assert used == {module.name for module in workflow.modules}
