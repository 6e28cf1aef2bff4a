"""Options of function modules, checked with the model that their file defines."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from support import Finished, diel

Check: TypeAlias = "Callable[[str, str], tuple[list[list[str]], str]]"

# Prints the problems of a workflow file with one module, as (path, message, remedy).
CHECK = """
import json, sys
from diel.errors import WorkflowError
from diel.loading.functions import check_options
from diel.workflow.load import read_draft

try:
    workflow = check_options(read_draft(sys.argv[1] + "/w.toml"))
    print("fine", workflow.modules[0].options)
except WorkflowError as error:
    for one in error.problems:
        print(json.dumps([one.path, one.message, one.remedy]))
print("numpy" in sys.modules, "mpi4py" in sys.modules)
"""
OPTIONS = """
    from pathlib import Path
    from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid", strict=True)
        rate: float
        steps: int = 3

        @model_validator(mode="after")
        def check(self, info: ValidationInfo):
            if self.steps == 100:
                assert (info.context["folder"] / "work.py").is_file()
                assert info.context["modules"]["m"].processes == 2
                assert info.context["module"] is info.context["modules"]["m"]
                raise ValueError("the validator saw its context")
            if self.steps == 200:
                {}["nowhere"]
            return self

    def run(ctx): pass
"""


@pytest.fixture
def check(tmp_path: Path, run_python: Callable[[str], Finished]) -> Check:
    """Return what checks a module's code and options: the problems, and all that was printed."""

    def check(code: str, options: str) -> tuple[list[list[str]], str]:
        (tmp_path / "work.py").write_text(textwrap.dedent(code))
        (tmp_path / "w.toml").write_text(
            '[[module]]\nname = "m"\nfunction = "./work.py:run"\nprocesses = 2\n'
            f'options = {options}\n[[group]]\nname = "g"\nmodules = ["m"]\n'
        )
        finished = run_python(CHECK)
        assert finished.status == 0, finished.output
        lines = finished.stdout.splitlines()
        return [json.loads(line) for line in lines if line.startswith("[")], finished.stdout

    return check


def test_options_that_fit(check: Check) -> None:
    problems, text = check(OPTIONS, "{ rate = 0.5 }")
    assert problems == []
    assert text == "fine {'rate': 0.5}\nFalse False\n"


def test_a_misspelt_option_names_the_one_that_was_meant(check: Check) -> None:
    problems, _ = check(OPTIONS, "{ rate = 0.5, stepps = 4 }")
    assert problems == [["module[0].options.stepps", "unknown key stepps", 'did you mean "steps"?']]


def test_a_wrong_type_and_a_missing_option_are_told_together(check: Check) -> None:
    problems, _ = check(OPTIONS, '{ steps = "four" }')
    places = {path: message for path, message, _ in problems}
    assert places["module[0].options.rate"] == "is missing"
    assert "four" in places["module[0].options.steps"]
    assert len(problems) == 2


def test_a_validator_sees_the_folder_and_the_modules(check: Check) -> None:
    problems, _ = check(OPTIONS, "{ rate = 0.5, steps = 100 }")
    assert problems == [["module[0].options", "the validator saw its context", ""]]


def test_a_validator_with_a_bug_is_a_problem_and_no_traceback(check: Check) -> None:
    ((path, message, _),), _ = check(OPTIONS, "{ rate = 0.5, steps = 200 }")
    assert path == "module[0].options"
    assert "KeyError" in message
    assert "nowhere" in message


MISSING = """
def missing_here(options, module):
    if options.steps == 4:
        return f"{module.name} needs a telescope", "buy one"
    if options.steps == 5:
        return 1 / 0
"""


@pytest.mark.parametrize(
    ("steps", "what", "remedy"),
    [
        (4, "m needs a telescope", "buy one"),
        (5, "ZeroDivisionError in missing_here of ./work.py:run: division by zero", "mend that"),
    ],
)
def test_what_this_machine_lacks_is_said_before_any_rank_works(
    check: Check, tmp_path: Path, steps: int, what: str, remedy: str
) -> None:
    code = textwrap.dedent(OPTIONS) + MISSING
    problems, _ = check(code, f"{{ rate = 0.5, steps = {steps} }}")
    assert problems == []  # of the file
    said = f"on this machine module 'm' could not run: {what} ({remedy}"
    checked = diel("check", "w.toml", cwd=tmp_path)
    assert (checked.status, said in checked.stdout) == (0, True)
    refused = diel("run", "w.toml", cwd=tmp_path)
    assert (refused.status, f"line 1, module[0]: {said}" in refused.stderr) == (2, True)
    assert not (tmp_path / "runs").exists()


def test_a_machine_that_lacks_nothing(check: Check, tmp_path: Path) -> None:
    check(textwrap.dedent(OPTIONS) + MISSING, "{ rate = 0.5 }")
    assert "on this machine" not in diel("check", "w.toml", cwd=tmp_path).output


def test_an_error_at_import_is_a_problem(check: Check) -> None:
    ((path, message, _),), _ = check(OPTIONS + "\n    1 / 0", "{ rate = 0.5 }")
    assert path == "module[0].function"
    assert message == "./work.py:run: ZeroDivisionError at import: division by zero"


def test_a_script_that_exits_at_import_is_a_problem(check: Check) -> None:
    code = OPTIONS + "\n    import sys\n    sys.exit(0)"
    ((path, message, _),), _ = check(code, "{ rate = 0.5 }")
    assert (path, "SystemExit" in message) == ("module[0].function", True)


def test_a_file_without_options_is_not_imported(check: Check) -> None:
    problems, text = check("def run(ctx): pass\n1 / 0", "{ anything = 1 }")
    assert problems == []
    assert text.startswith("fine")


def test_options_that_are_no_model_check_nothing(check: Check) -> None:
    problems, _ = check("class Options: pass\ndef run(ctx): pass", "{ anything = 1 }")
    assert problems == []
