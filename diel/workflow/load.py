"""Read and check a workflow file: return a Workflow, or all its problems at once.

::

    read_draft(file)                a Draft: the tables that are valid, and the problems
      1. the file                   there, readable, UTF-8, TOML
      2. parameters                 settings of the command line, ${name} replaced by values
                                    groups with foreach expanded, one for each element
      3. tables and their shapes    [workflow], [tuple_space], [[module]], [[group]], [[boundary]]
      4. each entry by itself       its model, its function or its program
      5. entries together           names, references, cycles
    Draft.finish(extra_problems)    the Workflow, or one WorkflowError with all problems

A problem that only follows from another one is not reported: an entry that failed still counts
as known by its name.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from diel.errors import PROBLEMS_SHOWN, Problem, WorkflowError, limited, more_below
from diel.text import did_you_mean, join_path, show_key, show_with_type
from diel.workflow.boundary import Boundary, check_boundaries
from diel.workflow.elements import NO_EXPANSION, Element, Expansion
from diel.workflow.fields import NOTHING_TO_RUN, ONE_OF
from diel.workflow.foreach import check_no_elements, expand, has_arrays
from diel.workflow.functions import FunctionLocation, FunctionNotFound, locate
from diel.workflow.libraries import locate_library
from diel.workflow.model import (
    Group,
    Module,
    TupleSpace,
    Workflow,
    WorkflowTable,
    folder_name,
)
from diel.workflow.outputs import check_outputs, missing_inputs
from diel.workflow.parameters import TABLE as PARAMETERS
from diel.workflow.parameters import Parameter, fill, read_parameters
from diel.workflow.problems import problems_from_validation
from diel.workflow.programs import check_programs
from diel.workflow.references import check_references, tables_in
from diel.workflow.resources import check_resources
from diel.workflow.source import Place, SourceProblem, parse_document, read_source
from diel.workflow.when import check_whens

TABLES = ("workflow", "parameters", "tuple_space", "module", "group", "boundary")

_ENTRY: Final = re.compile(r"(module|group)\[(\d+)\]")
_Table = TypeVar("_Table", Module, Group, Boundary)
AnyTable = TypeVar("AnyTable", WorkflowTable, TupleSpace)


@dataclass
class Draft:
    """A workflow file that was read: the tables that are valid, and all problems.

    Attributes
    ----------
    file : Path
        Absolute.
    shown_as : str
        The file as the user named it.
    modules, groups : list of (int, Module) and (int, Group)
        The entries that are valid, each with its index in the document.
    problems : list of Problem
    locations : dict from module name to FunctionLocation
    settings : WorkflowTable
    tuple_space : TupleSpace
    boundaries : list of (int, Boundary)
        As `modules`.
    source : str
        The text of the file.
    document : dict
        The file as TOML reads it, with the values of parameters and the elements of groups with
        ``foreach``; empty if it cannot be read.
    expansion : Expansion
        Of these groups.
    lines : dict from Place to int
        The line of each of its keys.
    run_dir : Path or None
        The run directory of a run that is resumed with this file; None for a new run.
    given : tuple of str
        Settings of the command line, each ``KEY=VALUE``.
    parameters : dict of str to Parameter
        Those of the file.
    values : dict of str to value
        The values of parameters.
    """

    file: Path
    shown_as: str
    modules: list[tuple[int, Module]] = field(default_factory=list)
    groups: list[tuple[int, Group]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    locations: dict[str, FunctionLocation] = field(default_factory=dict)
    settings: WorkflowTable = field(default_factory=WorkflowTable)
    tuple_space: TupleSpace = field(default_factory=TupleSpace)
    boundaries: list[tuple[int, Boundary]] = field(default_factory=list)
    source: str = field(default="", repr=False)
    document: dict[str, Any] = field(default_factory=dict, repr=False)
    expansion: Expansion = NO_EXPANSION
    lines: dict[Place, int] = field(default_factory=dict, repr=False)
    run_dir: Path | None = None
    given: tuple[str, ...] = ()
    parameters: dict[str, Parameter] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def in_order(self, extra_problems: Iterable[Problem] = ()) -> list[Problem]:
        """Return all problems, extra ones included, with their lines, in the order of the file."""
        problems = [*self.problems, *extra_problems]
        if self.expansion.arrays:
            problems = self._in_file(problems)
        return _in_order(problems, self.lines)

    def _in_file(self, problems: Iterable[Problem]) -> list[Problem]:
        """Return problems at their places in the file; what several elements have is said once."""
        found: dict[Problem, list[Element]] = {}
        for problem in problems:
            entry = _ENTRY.match(problem.path)
            if entry is None:
                found.setdefault(problem, [])
                continue
            kind, number = entry[1], int(entry[2])
            index = self.expansion.origins.get((kind, number), number)
            entry_at = self.document[kind][number]
            name = str(entry_at.get("name") if isinstance(entry_at, dict) else "")
            element = self.expansion.elements.get((kind, name))
            said = replace(problem, path=f"{kind}[{index}]{problem.path[entry.end() :]}")
            if element is not None:
                template = self.expansion.templates[kind, name]
                said = replace(said, message=problem.message.replace(f'"{name}"', f'"{template}"'))
            found.setdefault(said, []).extend([] if element is None else [element])
        return [self._of_elements(*each) for each in found.items()]

    def _of_elements(self, problem: Problem, elements: Sequence[Element]) -> Problem:
        """Return a problem with the first of the elements that have it, where not all have."""
        if not elements or len(elements) == len(self.expansion.array_of(elements[0]).elements):
            return problem
        more = f" and {len(elements) - 1} more elements" if elements[1:] else ""
        first = f"{elements[0].name}, where {elements[0].in_words}{more}"
        return replace(problem, message=f"{problem.message} (in {first})")

    @property
    def boxes(self) -> int:
        """How many modules and groups the file has, elements not counted."""
        expanded = {*self.expansion.origins.items()}
        if not expanded:
            return sum(len(tables_in(self.document, kind)) for kind in ("module", "group"))
        return len({(kind, index) for (kind, _), index in expanded})

    def missing_inputs(self, workflow: Workflow) -> list[Problem]:
        """Return which inputs are not there and made by no module, of this workflow or a part."""
        names = {module.name for module in workflow.modules}
        modules = [each for each in self.modules if each[1].name in names]
        return list(missing_inputs(modules, self.file.parent, self.expansion))

    def finish(self, extra_problems: Iterable[Problem] = ()) -> Workflow:
        """Return the workflow, or raise all problems.

        Parameters
        ----------
        extra_problems : iterable of Problem
            Problems that other checks found in the draft.

        Raises
        ------
        WorkflowError
            With all problems, each with its line, in the order of the file.
        """
        problems = self.in_order(extra_problems)
        if problems:
            raise WorkflowError(self.shown_as, problems)
        return Workflow(
            name=self.settings.name or folder_name(self.file.stem),
            modules=tuple(module for _, module in self.modules),
            groups=tuple(group for _, group in self.groups),
            tuple_space=self.tuple_space,
            boundaries=tuple(boundary for _, boundary in self.boundaries),
            settings=self.settings,
            file=self.file,
            parameters=self.parameters,
            values=self.values,
            expansion=self.expansion,
        )


def load_workflow(file: str | os.PathLike[str], given: Sequence[str] = ()) -> Workflow:
    """Read and check a workflow file.

    Parameters
    ----------
    file : path
    given : sequence of str, optional
        Settings ``KEY=VALUE``, as ``diel run --set`` takes them.

    Raises
    ------
    WorkflowError
        With all problems of the file.
    """
    return read_draft(file, given=given).finish()


def read_draft(
    file: str | os.PathLike[str],
    provided: Mapping[str, FunctionLocation] | None = None,
    given: Sequence[str] = (),
) -> Draft:
    """Read a workflow file and find all its problems; never raise because of the file.

    Parameters
    ----------
    file : path
    provided : mapping of str to FunctionLocation, optional
        Functions that the calling program adds, by module: these modules name none in the file.
    given : sequence of str, optional
        Settings ``KEY=VALUE``, as ``diel run --set`` takes them.
    """
    shown_as = os.fspath(file)
    path = Path(os.path.abspath(shown_as))  # keeps links, drops ".."
    try:
        text = read_source(path)
    except SourceProblem as error:
        return Draft(file=path, shown_as=shown_as, problems=[error.problem])
    return draft_of_text(text, path, shown_as=shown_as, provided=provided, given=given)


def draft_of_text(
    text: str,
    file: Path,
    *,
    shown_as: str | None = None,
    provided: Mapping[str, FunctionLocation] | None = None,
    given: Sequence[str] = (),
) -> Draft:
    """Find all problems of a text, as if it were the text of a file.

    Parameters
    ----------
    text : str
    file : Path
        Absolute. Nothing is read from it; what the text names is looked for in its folder.
    shown_as : str, optional
        The file as messages call it.
    provided, given : optional
        As for `read_draft`.
    """
    draft = Draft(file=file, shown_as=shown_as or os.fspath(file), source=text, given=(*given,))
    try:
        draft.document, draft.lines = parse_document(text)
    except SourceProblem as error:
        draft.problems.append(error.problem)
    else:
        draft.parameters, draft.values, problems = read_parameters(draft.document, given)
        draft.problems += problems
        _provide(draft, provided or {})
        if not problems:  # which may be the cause of any other
            problems = _fill_in(draft)
            draft.problems += problems
        if not problems:
            _read_tables(draft)
        if provided is not None:
            _point_to_the_program(draft)
    return draft


def _fill_in(draft: Draft) -> list[Problem]:
    """Put the values of parameters and the elements of groups into the document."""
    document, fills = draft.document, PARAMETERS in draft.document
    problems: list[Problem] = []
    if has_arrays(document):
        wrong = check_references(document, _misspelt_tables(document))
        if wrong:  # it is not known which modules are repeated
            return wrong
        draft.expansion, problems = expand(document, draft.values, draft.file.parent, fills=fills)
        for (kind, name), template in draft.expansion.templates.items():
            if kind == "module" and template in draft.locations:
                draft.locations[name] = draft.locations[template]
        return problems
    problems += check_no_elements(document)
    for key, value in document.items() if fills else ():
        if key != PARAMETERS:
            document[key] = fill(value, [key], draft.values, problems)
    return problems


def _point_to_the_program(draft: Draft) -> None:
    """Add to the remedy of modules that run nothing that the calling program can add a function."""
    nothing = NOTHING_TO_RUN["module"]
    remedy = f"add its function in the program that runs this file, or {nothing.remedy}"
    draft.problems = [
        Problem(problem.path, problem.message, remedy)
        if problem.message == nothing.message
        else problem
        for problem in draft.problems
    ]


def _provide(draft: Draft, provided: Mapping[str, FunctionLocation]) -> None:
    """Give modules the functions that the calling program adds to them."""
    entries: dict[Any, tuple[int, dict[str, Any]]] = {
        entry["name"]: (index, entry)
        for index, entry in tables_in(draft.document, "module")
        if isinstance(entry.get("name"), str)
    }
    for name, location in provided.items():
        if name not in entries:
            near = did_you_mean(name, entries)
            draft.problems.append(
                Problem(
                    "module",
                    f'a function was added for the module "{name}", which is not in the file',
                    f'did you mean "{near}"?' if near else f'add [[module]] with name = "{name}"',
                )
            )
            continue
        index, entry = entries[name]
        given = [key for key in ONE_OF["module"] if key in entry]
        if given:
            draft.problems.append(
                Problem(
                    f"module[{index}].{given[0]}",
                    f'the program that runs this file has added a function for "{name}" already',
                    f"leave out {given[0]} here, or do not add the function there",
                )
            )
        entry["function"] = location.spec  # as if the file said so
        draft.locations[name] = location


def _read_tables(draft: Draft) -> None:
    document, problems = draft.document, draft.problems
    problems += limited(_unknown_tables(document))
    draft.settings = _read_table(draft, "workflow", draft.settings)
    draft.tuple_space = _read_table(draft, "tuple_space", draft.tuple_space)
    problems += _check_replicas(draft.tuple_space, draft.settings)
    draft.modules = _read_entries(draft, "module", Module)
    draft.groups = _read_entries(draft, "group", Group)
    draft.boundaries = _read_entries(draft, "boundary", Boundary)
    for index, entry in tables_in(document, "module"):
        if len(problems) > PROBLEMS_SHOWN:
            problems.append(more_below(f"module[{index}]"))
            break
        _check_what_runs(draft, index, entry)
    for index, entry in tables_in(document, "group"):
        if "modules" not in entry and "groups" not in entry and len(problems) <= PROBLEMS_SHOWN:
            _check_nothing_to_run(draft, Group, "group", index, entry)
    unsure = _misspelt_tables(document)
    problems.extend(check_references(document, unsure))
    named = all(isinstance(entry.get("name"), str) for _, entry in tables_in(document, "group"))
    all_known = named and "group" not in unsure
    values = draft.values
    whens = check_whens(
        document,
        lambda group: {**values, **draft.expansion.values_of("group", group)},
        all_known=all_known,
    )
    problems += limited(whens)
    problems.extend(check_resources(document))
    modules = {module.name: module for _, module in draft.modules}
    if not problems:  # which would have followed from another
        groups = [group for _, group in draft.groups]
        problems += limited(
            check_outputs(draft.modules, groups, draft.file.parent, draft.expansion)
        )
    problems.extend(check_boundaries(draft.boundaries, document, modules, unsure))


def _unknown_tables(document: dict[str, Any]) -> Iterator[Problem]:
    for key in document:
        if key not in TABLES:
            near = did_you_mean(key, TABLES)
            hint = f'did you mean "{near}"?' if near else f"known tables: {', '.join(TABLES)}"
            yield Problem(join_path("", [key]), f"unknown table {show_key(key)}", hint)


def _check_replicas(tuple_space: TupleSpace, settings: WorkflowTable) -> list[Problem]:
    """Find what keeps tuple servers from having twins."""
    problems = []
    if tuple_space.replicas and tuple_space.servers < 2:
        message = "a tuple server alone cannot have a twin"
        problems.append(Problem("tuple_space.replicas", message, "let servers be 2 at least"))
    if tuple_space.replicas and settings.on_rank_loss != "continue":
        message = "a twin is of no use where the run ends when a rank dies"
        remedy = 'let on_rank_loss be "continue" in [workflow]'
        problems.append(Problem("tuple_space.replicas", message, remedy))
    return problems


def _misspelt_tables(document: dict[str, Any]) -> set[str]:
    """Return the tables whose entries are not all known: misspelt, or not lists of tables."""
    unknown = (key for key in document if key not in TABLES)
    near = {did_you_mean(key, TABLES) for key in islice(unknown, PROBLEMS_SHOWN)}
    shapeless = {
        key
        for key in ("module", "group")
        if key in document and len(tables_in(document, key)) < _length(document[key])
    }
    return {key for key in near if key} | shapeless


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 1


def _read_table(draft: Draft, key: str, default: AnyTable) -> AnyTable:
    """Return a table such as ``[workflow]``, or the default where it is wrong or absent."""
    if key not in draft.document:
        return default
    table = draft.document[key]
    if isinstance(table, list):
        problem = Problem(key, "expected one table, got a list of them", f"write [{key}], once")
        draft.problems.append(problem)
        return default
    model = type(default)
    try:
        return model.model_validate(table)
    except ValidationError as error:
        draft.problems += problems_from_validation(error, model, key)
        return default


def _read_entries(draft: Draft, key: str, model: type[_Table]) -> list[tuple[int, _Table]]:
    value = draft.document.get(key, [])
    if not isinstance(value, list):
        kind = "a single table" if isinstance(value, dict) else show_with_type(value)
        draft.problems.append(
            Problem(key, f"expected a list of tables, got {kind}", _list_hint(key, value))
        )
        return []
    valid = []

    def wrong() -> Iterator[Problem]:
        for index, entry in enumerate(value):
            try:
                valid.append((index, model.model_validate(entry)))
            except ValidationError as error:
                yield from problems_from_validation(error, model, f"{key}[{index}]")

    draft.problems += limited(wrong())
    return valid


def _list_hint(key: str, value: Any) -> str:
    if (
        isinstance(value, dict)
        and value
        and all(isinstance(entry, dict) for entry in value.values())
    ):
        name = next(iter(value))
        return f'write [[{key}]] with name = "{name}", instead of [{key}.{show_key(name)}]'
    if isinstance(value, dict):
        return f"write [[{key}]] instead of [{key}]"
    return f"write [[{key}]], and the {key}'s keys below it"


def _check_what_runs(draft: Draft, index: int, entry: dict[str, Any]) -> None:
    """Check a module's function or program, even if its other keys are wrong."""
    path = f"module[{index}]"
    if all(entry.get(key) is None for key in ONE_OF["module"]):
        _check_nothing_to_run(draft, Module, "module", index, entry)
    name = entry.get("name")
    is_provided = isinstance(name, str) and name in draft.locations
    for key, find in (("function", locate), ("library", locate_library)):
        spec = entry.get(key)
        if not isinstance(spec, str) or is_provided:
            continue
        try:
            location = find(spec, draft.file.parent)
        except FunctionNotFound as error:
            draft.problems.append(Problem(f"{path}.{key}", error.message, error.remedy))
        else:
            if isinstance(name, str):
                draft.locations.setdefault(name, location)
    draft.problems += check_programs(entry, path, draft.file.parent)


def _check_nothing_to_run(
    draft: Draft, model: type[Module | Group], key: str, index: int, entry: dict[str, Any]
) -> None:
    """Report an entry that runs nothing where its model could not, because other keys are wrong."""
    path = f"{key}[{index}]"
    is_valid_otherwise = any(problem.path == path for problem in draft.problems)
    is_misspelt = any(
        did_you_mean(name, model.model_fields) in ONE_OF[key]
        for name in entry
        if name not in model.model_fields
    )
    if not is_valid_otherwise and not is_misspelt:
        problem = NOTHING_TO_RUN[key]
        draft.problems.append(Problem(path, problem.message, problem.remedy))


def _in_order(problems: Iterable[Problem], lines: Mapping[Place, int]) -> list[Problem]:
    """Return problems with their lines, in the order of the file; without a line they come last."""
    numbers = {place: number for number, place in enumerate(lines)}

    def put(problem: Problem) -> tuple[tuple[int, int], Problem]:
        place = place_of(problem.path)
        # A missing key belongs to the table that it is missing in.
        known = next((n for n in range(len(place), 0, -1) if place[:n] in lines), 0)
        if not known:
            return (len(lines), 0), problem
        order = numbers[place[:known]], len(place) - known
        return order, replace(problem, line=lines[place[:known]])

    return [problem for _, problem in sorted(map(put, problems), key=lambda pair: pair[0])]


def place_of(path: str) -> Place:
    """Return the keys and indices of a path such as ``module[2].options``."""
    steps = re.findall(r'\[(\d+)\]|([A-Za-z0-9_-]+)|("(?:[^"\\]|\\.)*")', path)
    return tuple(
        int(index) if index else bare or json.loads(quoted) for index, bare, quoted in steps
    )
