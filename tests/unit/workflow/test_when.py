"""Conditions of groups: what they may say, what is known of them before a run, and in one."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diel.cli.main import main
from diel.executive.placement.planning import assign_ranks, needs, plan_run, simulated_nodes
from diel.executive.placement.preview import moments
from diel.executive.plans import RunPlan
from diel.expressions import ExpressionError
from diel.workflow.load import draft_of_text, read_draft
from diel.workflow.when import When

STUDY = """\
[parameters]
dt = {{ default = 0.1, type = "number" }}
cells = 64
refine = true
mode = "fast"
sizes = [1, 2]
time-step = 1
[[module]]
name = "a"
executable = ["echo", "${{dt}} ${{cells}} ${{refine}} ${{mode}} ${{time-step}}"]
[[module]]
name = "b"
executable = ["echo", "b"]
copies = 3
[[module]]
name = "c"
function = "modules.master:run"
options = {{ list = "${{sizes}}" }}
[[group]]
name = "solve"
modules = ["a"]
[[group]]
name = "refine"
modules = ["b"]
depends = ["solve"]
when = {when}
[[group]]
name = "inner"
modules = ["b"]
[[group]]
name = "nest"
groups = ["inner"]
depends = ["refine"]
[[group]]
name = "beside"
modules = ["a"]
[[group]]
name = "rest"
modules = ["c"]
"""


def problems(when: str) -> list[str]:
    draft = draft_of_text(STUDY.format(when=f'"""{when}"""'), Path.cwd() / "w.toml")
    return [f"{each.message} ({each.remedy})" for each in draft.problems if "when" in each.path]


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ("refine and", "is no expression"),
        ("__import__('os')", "__import__(...) is not allowed in"),
        ("dt.real > 1", "'dt.real' is not allowed in"),
        ("[1, 2]", "is not allowed in"),
        ("dt in mode", "is not allowed in"),
        ("(lambda: 1)()", "is not allowed in"),
        ("+".join(["dt"] * 200) + " > 1", "is nested too deeply"),
        ("dt > 1 or " * 200 + "refine", "is too long"),
        ("refin", "there is no parameter 'refin' (did you mean \"refine\"?)"),
        ("mode == fast", "there is no parameter 'fast' (there are dt, cells"),
        ("time > 1", "there is no parameter 'time' (write \"${time-step}\""),
        ("sizes == 1", "sizes is a list, and an expression takes none"),
        ("cells", "a number is neither true nor false (compare it"),
        ("cells + dt", "a number is neither true nor false (compare it"),
        ("not mode", "a text is neither true nor false"),
        ("mode > 3", "a text is compared with 3, and they are of different types"),
        ("mode + 1 > 3", "a text is no number, and is computed with"),
        ("not refine and mode < 1", "a text is compared with 1"),
        ("cells / (cells - 64) > 1", "it has no value: ZeroDivisionError"),
        ("value() > 1", 'value takes one text, as in value("x")'),
        ("value(mode) > 1", 'value takes one text, as in value("x")'),
        ("value([]) > 1", "[] is no tag: a tag is a text, or a list of texts and whole numbers"),
        ("value(['x', 1.5]) > 1", "is no tag"),
        ("value('\\\\ud800') > 1", "is no tag"),
        ("outcome(3) == 'failed'", 'outcome takes one text, as in outcome("x")'),
        ("outcome('solve') == 'fialed'", '"fialed" is no outcome of a group (did you mean'),
        ("outcome('solve') == 1", "a text is compared with 1"),
        ("outcome('solve')", "a text is neither true nor false"),
        ("outcome('slove') == 'failed'", 'there is no group "slove" (did you mean "solve"?)'),
        ("outcome('refine') == 'failed'", 'the outcome of "refine" is not known before it runs'),
        ("outcome('beside') == 'failed'", '(let group "refine" depend on "beside")'),
        ("outcome('inner') == 'failed'", "(that one comes later)"),
    ],
)
def test_what_is_wrong_is_said_when_a_file_is_loaded(when: str, words: str) -> None:
    (found,) = problems(when)
    assert words in found


@pytest.mark.parametrize(
    ("when", "decided"),
    [
        ("refine and dt < 0.2", True),
        ("dt < 0.05", False),
        ("${dt} < 0.05 or mode == '${mode}'", True),
        ("${time-step} > 3", False),
        ("0 < dt < 1 <= cells", True),
        ("cells % 10 == 4 and max(dt, 2) == 2 and -dt < 0", True),
        ("true if mode == 'fast' else cells / 0 > 1", True),
        ("value('x') > 1 and not refine", False),
        ("value('x') > 1 or refine", True),
        ("value('x') > 1 and refine", None),
        ("value(['x', 3]) == 'a'", None),
        ("outcome('solve') == 'failed'", None),
        ("(value('x') if outcome('solve') == 'failed' else dt) > 0.05", None),
        ("value('x') == none and false", False),
    ],
)
def test_what_parameters_decide_is_known_before_a_run(when: str, decided: bool | None) -> None:
    assert problems(when) == []
    draft = draft_of_text(STUDY.format(when=f'"""{when}"""'), Path.cwd() / "w.toml")
    (group,) = (group for _, group in draft.groups if group.name == "refine")
    assert group.when is not None
    assert When.of(group.when, draft.values).decided is decided


@pytest.mark.parametrize(
    ("text", "x", "runs"),
    [
        ("value('x') > n", 3, True),
        ("value('x') > n", np.float32(3), True),
        ("value('x') > n", np.ones((1, 1)), False),
        ("value('x') > n", None, False),
        ("value('x') <= n", None, False),
        ("value('x') * 2 - 1 < n", None, False),
        ("value('x') == none", None, True),
        ("value('x') != 3", None, True),
        ("not value('x')", None, True),
        ("value('x')", np.bool_(True), True),
        ("value('x') == 'done'", "done", True),
        ("value('x') == 1", True, True),
        ("value('x') or outcome('g') == 'skipped'", False, True),
    ],
)
def test_a_tuple_decides(text: str, x: Any, runs: bool) -> None:
    when = When.of(text, {"n": 2})
    assert when.judge({"x": x}, {"g": "skipped"}) is runs


def test_a_parameter_comes_before_a_constant_of_its_name() -> None:
    assert When.of("true > 2", {"true": 3}).decided is True
    assert When.of("true", {}).decided is True


class Broken:
    def item(self) -> float:
        raise KeyError("no item")


@pytest.mark.parametrize(
    ("text", "x", "words"),
    [
        ("value('x') > 2", "much", '"much" is compared with 2'),
        ("value('x') > 2", {"a": 1}, "value('x') is of type dict"),
        ("value('x') > 2", np.ones(3), "value('x') is of type ndarray"),
        ("value('x') > 2", Broken(), "value('x') is of type Broken"),
        ("value('x')", 1, "1 is neither true nor false"),
        ("1 / value('x') > 2", 0, "it has no value: ZeroDivisionError"),
        ("value('x') ** 999 > 2", 1e9, "it has no value: OverflowError"),
    ],
)
def test_a_tuple_of_another_type_is_an_error(text: str, x: Any, words: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        When(text).judge({"x": x}, {})
    assert words in str(caught.value)


SKIPPED = """\
[parameters]
large = {large}
[[module]]
name = "a"
executable = ["echo", "a"]
[[module]]
name = "b"
executable = ["echo", "b"]
copies = 9
[[group]]
name = "first"
modules = ["a"]
[[group]]
name = "inner"
modules = ["b"]
[[group]]
name = "nest"
groups = ["inner"]
depends = ["first"]
when = "large"
[[group]]
name = "unsure"
modules = ["a"]
depends = ["first"]
when = "value('x') > 1"
[[group]]
name = "last"
modules = ["a"]
depends = ["nest", "unsure"]
"""


def shown(*words: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 0
    return printed.getvalue()


def test_a_group_that_will_be_skipped_takes_no_ranks(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    least, groups_of = {}, {}
    for large in ("true", "false"):
        file.write_text(SKIPPED.format(large=large))
        draft = read_draft(file)
        workflow = draft.finish()
        least[large] = needs(workflow, cores=1).minimum
        plan = plan_run(workflow, draft, least[large])
        nodes = simulated_nodes(plan.pool, plan.ranks, 0)
        plans, assignment = assign_ranks(plan.groups, plan.needs, nodes, "w.toml")
        groups_of[large] = [{copy.group for copy in each} for each in moments(plans, assignment)]
        plan.save(tmp_path / "plan", file.read_text())
        assert RunPlan.take(tmp_path / "plan", str(file), plan.ranks) == plan
    assert least == {"true": 11, "false": 3}
    assert groups_of["true"] == [{"first"}, {"inner"}, {"unsure"}, {"last"}]
    assert groups_of["false"] == [{"first"}, {"unsure"}, {"last"}]


def test_commands_say_what_will_and_what_may_be_skipped(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    file.write_text(SKIPPED.format(large="false"))
    checked = shown("check", str(file))
    assert 'group nest will be skipped: when = "large": large = false' in checked
    assert "group unsure may be skipped: when = \"value('x') > 1\"" in checked
    assert "    3  the largest group" in checked
    assert "may be skipped" in shown("check", str(file), "--set", "large=true")
    assert "nest" not in shown("check", str(file), "--set", "large=true")
    assert "nest will be" in shown("check", str(file), "--set", "group.nest.when=large and 1 > 2")
    assert "unsure will be" in shown("check", str(file), "--set", "group.unsure.when=false")
    drawn = shown("graph", str(file))
    assert "nest  [when large: will be skipped]  after first" in drawn
    assert "unsure  [when value('x') > 1: may be skipped]" in drawn
    assert 'style="rounded,dashed"' in shown("graph", "--format", "dot", str(file))
    svg = shown("graph", "--format", "svg", str(file))
    assert '<g class="group outer skipped" data-group="nest"' in svg
    assert '<g class="group unsure" data-group="unsure"' in svg
    explained = shown("explain", str(file))
    assert 'will be skipped: when = "large" is false: large = false' in explained
    assert "waits for first (starting); may be skipped: when = " in explained
    (last,) = (line for line in explained.splitlines() if " last " in line)
    assert last.endswith("waits for unsure (waiting)")
