"""Turn pydantic's errors into Problems: a path in the file, plain words, a remedy.

Pydantic reports one error for each alternative of a union, and puts the alternative's name into
the location. So each location is walked along the model's own annotations, which tell a key from
an alternative's name and say what would have been accepted there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from diel.errors import PROBLEMS_SHOWN, Problem, limited
from diel.text import did_you_mean, join_path, show, show_key, show_with_type
from diel.workflow.annotations import FieldType, describe, example, item_of

Steps = tuple["str | int", ...]

# Errors that a validator of the model's author raised: their own words are the best.
_RAISED = ("value_error", "assertion_error")


@dataclass
class _Complaint:
    """An error of pydantic, with the field and the place in the file that it is about."""

    error: dict[str, Any]
    field_type: FieldType  # of the value
    steps: Steps = ()  # keys and indices from the model to the value
    table: type[BaseModel] | None = None  # the model of the table that has the key, if any
    # For each union on the way, where it is and which alternative was tried.
    choices: list[tuple[Steps, str]] = field(default_factory=list)
    is_key: bool = False  # whether the key itself is wrong, not the value

    @property
    def kind(self) -> str:
        return str(self.error["type"])

    @property
    def is_raised(self) -> bool:
        """Whether the message comes from the author of the model, not from pydantic."""
        return self.kind in _RAISED or "remedy" in self.error.get("ctx", {})


def problems_from_validation(
    error: ValidationError, model: type[BaseModel], prefix: str
) -> list[Problem]:
    """Turn the errors of a validation into Problems, in words for the author of the file.

    Parameters
    ----------
    error : ValidationError
    model : type[BaseModel]
        The model that was validated.
    prefix : str
        Where the validated table is in the file, such as ``module[2].options``.

    Returns
    -------
    list of Problem
        One for each place that is wrong.

    Notes
    -----
    A validator may give its own remedy: raise ``PydanticCustomError`` with ``remedy`` in its
    context, or a ``ValueError`` that has an attribute ``remedy``. A validator that has tried a
    value on another model raises a ``PydanticCustomError`` with that ``model``, and the
    ``ValidationError`` that it ``caught``, in its context: then the problem is described as for a
    key of that model.
    """
    complaints = [
        _located(dict(detail), model)
        for detail in error.errors(include_url=False)[: PROBLEMS_SHOWN + 1]
    ]
    complaints = _without_misspelt(_settled(complaints))
    return list(limited(_problem(complaint, prefix) for complaint in complaints))


def keys_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a model under the names that a file uses for them."""
    keys = {}
    for name, info in model.model_fields.items():
        alias = info.validation_alias
        keys[alias if isinstance(alias, str) else info.alias or name] = info
    return keys


def _located(error: dict[str, Any], model: type[BaseModel]) -> _Complaint:
    found = _Complaint(error, FieldType(model))
    location: list[str | int] = list(error["loc"])
    container = FieldType(None)
    while location:
        step, field_type = location.pop(0), found.field_type
        if step == "[key]" and not location and container.is_a(Mapping):
            arguments = get_args(container.type)
            found.field_type, found.is_key = FieldType(arguments[0] if arguments else None), True
            continue
        if field_type.branches:
            found.choices.append((found.steps, str(step)))
            if location:
                found.field_type = _alternative(field_type, str(step))
            continue
        container = field_type
        found.table = field_type.model
        found.steps = (*found.steps, step)
        found.field_type = _inside(field_type, step)
    return found


def _inside(field_type: FieldType, step: str | int) -> FieldType:
    if field_type.model is not None:
        key, model = str(step), field_type.model
        info = keys_of(model).get(key) or model.model_fields.get(key)
        if info is None:
            return FieldType(None)
        return FieldType.of(info)
    if field_type.is_list and isinstance(step, int):
        return item_of(field_type, step)
    arguments = get_args(field_type.type)
    return FieldType(arguments[1] if field_type.is_table and len(arguments) == 2 else None)


def _alternative(field_type: FieldType, tag: str) -> FieldType:
    """Find the alternative of a union that pydantic calls by this tag."""
    inner = [FieldType(branch) for branch in field_type.branches]
    for alternative in inner:
        if alternative.model is not None and tag in _literals(alternative.model):
            return alternative
    for alternative in inner:
        if getattr(alternative.origin, "__name__", " ") in tag:
            return alternative
    return FieldType(None)


def _literals(model: type[BaseModel]) -> Iterator[str]:
    for info in model.model_fields.values():
        field_type = FieldType(info.annotation)
        if field_type.origin is Literal:
            yield from (str(value) for value in get_args(field_type.type))


def _settled(complaints: list[_Complaint]) -> list[_Complaint]:
    """Keep, of the complaints about a union, those that help the author of the file.

    If the value has the shape of an alternative, these are the complaints about what is inside it;
    otherwise there is one complaint for the union as a whole.
    """
    sites = {site for complaint in complaints for site, _ in complaint.choices}
    for site in sorted(sites, key=len):
        tried: dict[str, list[_Complaint]] = {}
        for complaint in complaints:
            tag = next((tag for at, tag in complaint.choices if at == site), None)
            if tag is not None:
                tried.setdefault(tag, []).append(complaint)
        if not tried:
            continue
        kept = _best_alternative(list(tried.values()), site)
        dropped = [
            complaint for branch in tried.values() for complaint in branch if complaint not in kept
        ]
        complaints = [
            complaint
            for complaint in complaints
            if not any(complaint is other for other in dropped)
        ]
    return complaints


def _best_alternative(tried: Sequence[list[_Complaint]], site: Steps) -> list[_Complaint]:
    inside = [
        branch for branch in tried if any(len(complaint.steps) > len(site) for complaint in branch)
    ]
    if inside:
        return min(inside, key=len)
    raised = [branch for branch in tried if all(complaint.is_raised for complaint in branch)]
    return raised[0] if raised else tried[0][:1]


def _without_misspelt(complaints: list[_Complaint]) -> list[_Complaint]:
    """Drop "is missing" for a key that is there, only misspelt."""
    meant = {
        (*complaint.steps[:-1], near)
        for complaint in complaints
        if complaint.kind == "extra_forbidden" and (near := _near_key(complaint))
    }
    return [
        complaint
        for complaint in complaints
        if complaint.kind != "missing" or complaint.steps not in meant
    ]


def _near_key(complaint: _Complaint) -> str | None:
    keys = keys_of(complaint.table) if complaint.table else {}
    return did_you_mean(str(complaint.steps[-1]), keys)


def _problem(complaint: _Complaint, prefix: str) -> Problem:
    path = join_path(prefix, complaint.steps)
    if complaint.kind == "extra_forbidden":
        return Problem(path, f"unknown key {show_key(complaint.steps[-1])}", _key_remedy(complaint))
    if complaint.kind == "missing":
        return Problem(path, "is missing", _assignment(complaint, "add"))
    if complaint.is_raised:
        return Problem(path, *_raised(complaint.error))
    context = complaint.error.get("ctx", {})
    if "caught" in context:
        inner = problems_from_validation(context["caught"], context["model"], "")[0]
        return Problem(path, inner.message, inner.remedy)
    given = complaint.error["input"]
    if complaint.kind in ("union_tag_invalid", "union_tag_not_found"):
        return Problem(path, *_wrong_tag(complaint.error["ctx"]))
    expected = describe(complaint.field_type)
    if expected is None:
        text = str(complaint.error["msg"])
        return Problem(path, f"{text[:1].lower()}{text[1:]}, got {show_with_type(given)}")
    if complaint.is_key:
        return Problem(path, f"expected {expected} as a key, got {show_with_type(given)}")
    message = f"expected {expected}, got {show_with_type(given)}"
    return Problem(path, message, _assignment(complaint, "for example"))


def _wrong_tag(context: dict[str, str]) -> tuple[str, str]:
    key = context["discriminator"].strip("'()")
    if "tag" not in context:
        return f"{key} is missing", f"it says which kind of table this is: add {key} = ..."
    expected = context["expected_tags"].replace("'", '"')
    return f"{key} is {show(context['tag'])}, expected {expected}", ""


def _key_remedy(complaint: _Complaint) -> str:
    near = _near_key(complaint)
    if near:
        return f'did you mean "{near}"?'
    keys = keys_of(complaint.table) if complaint.table else {}
    return f"known keys: {', '.join(keys)}" if keys else "remove it"


def _raised(error: dict[str, Any]) -> tuple[str, str]:
    context = error.get("ctx", {})
    cause = context.get("error")
    if cause is None:
        return str(error["msg"]), str(context.get("remedy", ""))
    words = str(cause) or str(error["msg"]).partition(", ")[2] or "is not accepted"
    return words, str(getattr(cause, "remedy", ""))


def _assignment(complaint: _Complaint, verb: str) -> str:
    given = None if complaint.kind == "missing" else complaint.error["input"]
    value = example(complaint.field_type, given)
    key = complaint.steps[-1] if complaint.steps else 0
    if value is None:
        return f"{verb} {show_key(key)}" if verb == "add" else ""
    return f"{verb} {value}" if isinstance(key, int) else f"{verb} {show_key(key)} = {value}"
