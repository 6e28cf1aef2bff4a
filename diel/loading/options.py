"""Options of function modules, checked before any rank works.

A file that defines a function module may also define ``class Options(pydantic.BaseModel)``. Then
the options in the workflow file are validated by it, with the same messages as the rest of the
file, and ``ctx.options`` is an instance of it. Its validators find the workflow file's folder in
``info.context["folder"]``. While the file is being checked they also find its modules by name in
``info.context["modules"]``, the places of their functions in ``info.context["locations"]``, and the
names of all modules, those with problems of their own too, in ``info.context["names"]``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from diel.errors import Problem
from diel.loading.functions import find_function, import_code

if TYPE_CHECKING:
    from types import ModuleType

    from pydantic import BaseModel

    from diel.workflow.functions import FunctionLocation
    from diel.workflow.load import Draft
    from diel.workflow.model import Workflow

OPTIONS_CLASS = "Options"


def finish(draft: Draft) -> Workflow:
    """Check the options of every module and return the workflow.

    Imports the files that define ``Options``, and no other code of modules.

    Parameters
    ----------
    draft : Draft
        A workflow file as `diel.workflow.load.read_draft` left it.

    Raises
    ------
    WorkflowError
        With every problem of the file, those of the draft included.
    """
    problems = []
    modules = {module.name: module for _, module in draft.modules}
    given = draft.document.get("module")
    entries = given if isinstance(given, list) else []
    # A module whose entry is wrong is there all the same.
    names = [entry.get("name") for entry in entries if isinstance(entry, dict)]
    for index, module in draft.modules:
        location = draft.locations.get(module.name)
        if location is not None and OPTIONS_CLASS in location.classes:
            where = f"module[{index}]"
            context = {
                "folder": draft.file.parent,
                "modules": modules,
                "names": names,
                "locations": draft.locations,
            }
            problems += _option_problems(location, module.options, context, where)
    return draft.finish(problems)


def parse_options(
    code: ModuleType, location: FunctionLocation, options: dict[str, Any], folder: Path
) -> Any:
    """Return ``ctx.options``: an instance of the file's ``Options``, or the plain dictionary."""
    model = _options_model(code, location)
    if model is None:
        return options
    return model.model_validate(options, context={"folder": folder})


def _options_model(code: ModuleType, location: FunctionLocation) -> type[BaseModel] | None:
    if OPTIONS_CLASS not in location.classes:
        return None
    from pydantic import BaseModel

    model = getattr(code, OPTIONS_CLASS, None)
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None


def _option_problems(
    location: FunctionLocation, options: dict[str, Any], context: dict[str, Any], where: str
) -> list[Problem]:
    from pydantic import ValidationError

    from diel.workflow.problems import problems_from_validation

    try:
        code = import_code(location, context["folder"])
        find_function(location, code)
    except (Exception, SystemExit) as error:  # a user's code can raise anything at import
        message = f"{location.spec}: {type(error).__name__} at import: {error}"
        remedy = "a file that defines Options is imported to check them, also without MPI"
        return [Problem(f"{where}.function", message, remedy)]
    model = _options_model(code, location)
    if model is None:
        return []
    try:
        model.model_validate(options, context=context)
    except ValidationError as error:
        return problems_from_validation(error, model, f"{where}.options")
    except Exception as error:  # so can a validator of theirs
        message = f"{type(error).__name__} in {OPTIONS_CLASS} of {location.spec}: {error}"
        return [Problem(f"{where}.options", message)]
    return []
