"""``when`` of a group: a condition that is judged each time before the group begins.

::

    when = "refine and dt < 0.1"            parameters of the file
    when = "value('residual') > 1e-3"       the value of a tuple, which stays where it is
    when = "value(['norm', 2]) > 1"
    when = "outcome('solve') == 'failed'"   of a group that has ended by then

What no tuple and no outcome can change is known when the file is loaded: a part of an expression
that waits for these is an `Unknown`, and so is what is computed from it, unless ``and`` or ``or``
decides without it. Where there is no tuple its value is None: false, as is each comparison of it by
order, and what is computed from it is None again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

from diel.errors import Problem
from diel.expressions import (
    ARITHMETIC,
    Compiled,
    Evaluate,
    ExpressionError,
    Language,
    Logic,
    compile_expression,
)
from diel.frozen import Frozen
from diel.text import as_toml, describe_error, did_you_mean, show, some_of
from diel.workflow.references import dependency_to_add, groups_around, names_in, tables_in

OUTCOMES: Final = ("finished", "failed", "skipped")
"""How a group has ended: with all its copies, with some given up, or without having run."""

Skip: TypeAlias = Literal["", "may be skipped", "will be skipped"]

SKIPS: Final[Mapping[bool | None, Skip]] = {
    True: "",
    False: "will be skipped",
    None: "may be skipped",
}
"""What is known of a group before a run, by what `When.decided` is."""

_VALUE: Final = "value"
_OUTCOME: Final = "outcome"
_WORDS: Final = {"number": "a number", "truth": "true or false", "text": "a text"}
_CONSTANTS: Final = {"true": True, "false": False, "none": None}
_LONGEST_SEEN: Final = 200

Names = Mapping[str, Any]


class Unknown(Frozen):
    """What is known of a value before it is there: its kind, or the texts that it may be."""

    kind: str = ""  # number, truth, text; empty: any of them
    choices: tuple[str, ...] = ()


class When(Frozen):
    """The condition of a group, with the values of the names that it has.

    Attributes
    ----------
    text : str
    known : tuple of (str, value)
    """

    text: str
    known: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, text: str, names: Names) -> When:
        """Return the condition with those of the values that it needs."""
        found = _compiled(text).names
        return cls(text, tuple((name, names[name]) for name in found if name in names))

    @property
    def tags(self) -> list[str | tuple[str | int, ...]]:
        """The tags of the tuples that decide it."""
        return [] if self.decided is not None else self._asked(_VALUE)

    @property
    def groups(self) -> list[str]:
        """The groups whose outcome decides it."""
        return [] if self.decided is not None else self._asked(_OUTCOME)

    def _asked(self, question: str) -> list[Any]:
        return [argument for asked, argument in _compiled(self.text).questions if asked == question]

    @property
    def decided(self) -> bool | None:
        """What it is, whatever tuples and outcomes there are; None if these decide it."""
        found = _truth(_evaluated(_compiled(self.text), dict(self.known)))
        return None if isinstance(found, Unknown) else found

    def judge(self, tuples: Mapping[Any, Any], outcomes: Mapping[str, str]) -> bool:
        """Return whether the group is to run, by the values of tuples and the outcomes of groups.

        An `ExpressionError` if it has no value, as where a tuple is of another type.
        """
        if (decided := self.decided) is not None:
            return decided
        asked: dict[Any, Any] = {(_VALUE, tag): value for tag, value in tuples.items()}
        asked |= {(_OUTCOME, group): outcome for group, outcome in outcomes.items()}
        values = {**_CONSTANTS, **dict(self.known), **asked}
        return _truth(_compiled(self.text).evaluate(values)) is True

    def seen(self, tuples: Mapping[Any, Any], outcomes: Mapping[str, str]) -> dict[str, Any]:
        """Return all values that decide it, by their names in the expression, for the journal."""
        found: dict[str, Any] = dict(self.known)
        found |= {_shown((_VALUE, tag)): value for tag, value in tuples.items()}
        found |= {_shown((_OUTCOME, group)): outcome for group, outcome in outcomes.items()}
        return {name: _brief(value) for name, value in found.items()}

    def describe_failure(self, group: str, error: str, tuples: Mapping[Any, Any]) -> str:
        """Return lines that say of which group the condition is, what is wrong, and its values."""
        seen = ", ".join(f"{name} = {show(value)}" for name, value in self.seen(tuples, {}).items())
        lines = [f"group {group}: {error}", f"when = {as_toml(self.text)}", seen]
        return "\n".join(line for line in lines if line)

    def reason(self) -> str:
        """Return the condition, with the values that are known before a run."""
        seen = ", ".join(f"{name} = {show(value)}" for name, value in self.known)
        return f"when = {as_toml(self.text)}{f': {seen}' if seen else ''}"

    def in_words(self) -> Skip:
        """Return what is known of the group before a run."""
        return SKIPS[self.decided]


@lru_cache(maxsize=4096)
def _compiled(text: str) -> Compiled:
    return compile_expression(text, _CONDITIONS)


def _evaluated(compiled: Compiled, names: Names) -> Any:
    """Evaluate an expression before there are tuples and outcomes."""
    unknown = {_VALUE: Unknown(), _OUTCOME: Unknown("text", OUTCOMES)}
    asked = {each: unknown[each[0]] for each in compiled.questions}
    return compiled.evaluate({**_CONSTANTS, **names, **asked})


# -- the language ---------------------------------------------------------------------------------


def _kind(value: Any) -> str:
    """Return the kind of a value; empty for one that is not known, or None."""
    if isinstance(value, Unknown):
        return value.kind
    kinds = ((bool, "truth"), (int | float, "number"), (str, "text"))
    return next((kind for types, kind in kinds if isinstance(value, types)), "")


def _described(value: Any) -> str:
    return _WORDS[value.kind] if isinstance(value, Unknown) else show(value)


def _constant(value: Any) -> Any:
    if value is not None and type(value) not in (bool, int, float, str):
        raise TypeError
    if isinstance(value, str) and not _can_be_written(value):
        raise TypeError
    if type(value) in (int, float):
        float(value)  # an OverflowError
    return value


def _can_be_written(text: str) -> bool:
    """Whether a text is more than half of a character of UTF-16."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read(name: Any, given: Any) -> Any:
    """Return the value of a name or a question in one of Python's own types."""
    if given is None or isinstance(given, Unknown):
        return given
    with contextlib.suppress(Exception):  # a class of the user's may raise any
        plain = given
        if hasattr(given, "item") and getattr(given, "size", 1) == 1:  # NumPy's numbers
            plain = given.item()
        for kind in (bool, int, float, str):
            if isinstance(plain, kind):
                return kind(plain)
    raise ExpressionError(
        f"{_shown(name)} is of type {type(given).__name__}, "
        "and an expression takes numbers, texts, true and false"
    )


def _shown(name: Any) -> str:
    if isinstance(name, str):
        return name
    question, argument = name
    return f"{question}({list(argument) if isinstance(argument, tuple) else argument!r})"


def _brief(value: Any) -> Any:
    try:
        value = _read("", value)
    except ExpressionError:
        return f"a {type(value).__name__}"
    is_long = isinstance(value, str) and len(value) > _LONGEST_SEEN
    return f"{value[:_LONGEST_SEEN]}..." if is_long else value


def _lifted(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Return an operator that checks what it is given, and knows of what is not there."""

    def applied(*operands: Any) -> Any:
        kinds = {_kind(operand) for operand in operands} - {""}
        if what == "arithmetic" and "text" in kinds:
            text = next(operand for operand in operands if _kind(operand) == "text")
            raise ExpressionError(f"{_described(text)} is no number, and is computed with")
        if what != "arithmetic":
            _check_compared(operands, kinds)
        if any(operand is None for operand in operands) and what != "equality":
            return None if what == "arithmetic" else False
        if any(isinstance(operand, Unknown) for operand in operands):
            return Unknown("number" if what == "arithmetic" else "truth")
        try:
            return function(*operands)
        except (ArithmeticError, ValueError) as error:
            raise ExpressionError(f"it has no value: {describe_error(error)}") from None

    return applied


def _check_compared(operands: Sequence[Any], kinds: set[str]) -> None:
    if "text" in kinds and len(kinds) > 1:
        left, right = map(_described, operands)
        raise ExpressionError(f"{left} is compared with {right}, and they are of different types")
    for unknown in operands:
        for other in operands:
            choices = unknown.choices if isinstance(unknown, Unknown) else ()
            if choices and isinstance(other, str) and other not in choices:
                near = did_you_mean(other, choices)
                hint = f'did you mean "{near}"?' if near else f"there are {', '.join(choices)}"
                raise ExpressionError(f'"{other}" is no outcome of a group', hint)


def _truth(value: Any) -> Any:
    """Return True or False, or an Unknown; what is not there is false."""
    if value is None or isinstance(value, bool):
        return bool(value)
    if _kind(value) not in ("truth", ""):
        raise ExpressionError(
            f"{_described(value)} is neither true nor false", "compare it, as in cells > 64"
        )
    return Unknown("truth")


def _all_are(wanted: bool) -> Callable[[Sequence[Evaluate]], Evaluate]:
    def combined(parts: Sequence[Evaluate]) -> Evaluate:
        def value(values: Mapping[Any, Any]) -> Any:
            found: Any = wanted
            for part in parts:
                given = _truth(part(values))
                if isinstance(given, Unknown):
                    found = given
                elif given is not wanted:
                    return given
            return found

        return value

    return combined


def _negated(value: Any) -> Any:
    truth = _truth(value)
    return truth if isinstance(truth, Unknown) else not truth


def _chosen(test: Evaluate, then: Evaluate, otherwise: Evaluate) -> Evaluate:
    def value(values: Mapping[Any, Any]) -> Any:
        truth = _truth(test(values))
        if not isinstance(truth, Unknown):
            return then(values) if truth else otherwise(values)
        kinds = {_kind(then(values)), _kind(otherwise(values))}
        return Unknown(kinds.pop() if len(kinds) == 1 else "")

    return value


def _tag(argument: Any) -> str | tuple[str | int, ...]:
    fields = (argument,) if isinstance(argument, str) else argument
    are_fields = isinstance(fields, list | tuple) and all(
        type(field) is int or (type(field) is str and field and _can_be_written(field))
        for field in fields
    )
    if not are_fields or not fields:
        raise ExpressionError(
            f"{argument!r} is no tag: a tag is a text, or a list of texts and whole numbers",
            "write value('residual') or value(['residual', 3])",
        )
    return argument if isinstance(argument, str) else tuple(fields)


def _group_name(argument: Any) -> str:
    if not isinstance(argument, str):
        raise TypeError
    return argument


_CONDITIONS: Final = Language(
    allowed=f"{ARITHMETIC}, and, or, not, texts, true, false, value('tag') and outcome('group')",
    constant=_constant,
    read=_read,
    lifted=_lifted,
    logic=Logic(_all_are(True), _all_are(False), _negated, _chosen),
    questions={_VALUE: _tag, _OUTCOME: _group_name},
)


# -- checks of a file -----------------------------------------------------------------------------


def check_whens(
    document: Mapping[str, Any], names_of: Callable[[str], Names], *, all_known: bool
) -> Iterator[Problem]:
    """Find what is wrong with the conditions of the groups of a document.

    Parameters
    ----------
    document : mapping
        As TOML reads it.
    names_of : callable
        From the name of a group to the names that its condition may have, with their values.
    all_known : bool
        Whether the document names all groups; if not, an unknown one may be there.
    """
    groups: dict[str, dict[str, Any]] = {}
    for _, entry in tables_in(document, "group"):
        groups.setdefault(str(entry.get("name")), entry)
    order = _Order(groups)
    for index, entry in tables_in(document, "group"):
        text = entry.get("when")
        if not isinstance(text, str):
            continue  # its model says so
        name = str(entry.get("name"))
        try:
            compiled = _compiled(text)
            _check_names(compiled, names_of(name))
            for _, asked in (each for each in compiled.questions if each[0] == _OUTCOME):
                order.check(name, asked, all_known=all_known)
            _check_types(compiled, names_of(name))
        except ExpressionError as error:
            yield Problem(f"group[{index}].when", str(error), error.remedy)


def _check_names(compiled: Compiled, known: Names) -> None:
    for name in compiled.names:
        if name not in known and name not in _CONSTANTS:
            near = did_you_mean(name, known)
            hint = f'did you mean "{near}"?' if near else "the file has no [parameters]"
            if near and not near.isidentifier():
                hint = f'write "${{{near}}}": with a "-" in it, it is a difference'
            elif not near and known:
                hint = f"there are {some_of(known)}; a text stands in quotation marks"
            raise ExpressionError(f"there is no parameter {name!r}", hint)
        if isinstance(known.get(name), list):
            raise ExpressionError(f"{name} is a list, and an expression takes none")


def _check_types(compiled: Compiled, known: Names) -> None:
    """Evaluate with values of which only the kind is known, so that each part counts, and then."""
    kinds = {name: Unknown(_kind(known[name])) for name in compiled.names if name in known}
    _truth(_evaluated(compiled, kinds))
    _truth(_evaluated(compiled, known))


class _Order:
    """Which groups of a document have ended before another one begins."""

    def __init__(self, groups: Mapping[str, Mapping[str, Any]]) -> None:
        self._groups = groups
        self._parents = {
            child: name for name, entry in groups.items() for _, child in names_in(entry, "groups")
        }

    def check(self, name: str, asked: str, *, all_known: bool) -> None:
        """Raise an `ExpressionError` unless a group has ended when another is judged."""
        if asked not in self._groups:
            if all_known:
                near = did_you_mean(asked, [other for other in self._groups if other != name])
                hint = f'did you mean "{near}"?' if near else f"there are {some_of(self._groups)}"
                raise ExpressionError(f'there is no group "{asked}"', hint)
        elif asked == name:
            raise ExpressionError(
                f'the outcome of "{name}" is not known before it runs', "ask for another group's"
            )
        elif not set(groups_around(asked, self._parents)) & self._earlier(name):
            path, asked_path = (groups_around(each, self._parents) for each in (name, asked))
            comes_later = bool(set(path) & self._earlier(asked))
            raise ExpressionError(
                f'the outcome of group "{asked}" may not be known yet when "{name}" is judged',
                "that one comes later" if comes_later else dependency_to_add(path, asked_path),
            )

    def _earlier(self, name: str) -> set[str]:
        """Return the groups that a group, or one around it, depends on, directly or not."""
        found: set[str] = set()
        left = groups_around(name, self._parents)
        while left:
            for _, needed in names_in(self._groups.get(left.pop(), {}), "depends"):
                if needed not in found:
                    found.add(needed)
                    left.append(needed)
        return found
