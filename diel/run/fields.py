"""Fields of the records in a file of JSON lines: their kinds of values, checks and conversions.

The records of a journal are defined in `records`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NamedTuple, TypeAlias

from diel.frozen import Frozen, dataclass_transform
from diel.run.json_values import DamagedRecord, is_integer, is_number

if TYPE_CHECKING:
    from typing_extensions import Self

LATEST_S: Final = 1e11  # functions for dates take no later times


class Kind(NamedTuple):
    """A kind of value that a field may hold: how it is checked, and converted from JSON.

    Attributes
    ----------
    words : str
        Its name in messages.
    fits : callable
        Whether a value in JSON's own types is of this kind.
    convert : callable or None
        From such a value to the field's; None if they are the same.
    parts : bool
        Whether the field's value is a list of instances, each a table in the file.
    """

    words: str
    fits: Callable[[Any], bool]
    convert: Callable[[Any], Any] | None = None
    parts: bool = False


class Column(NamedTuple):
    """A field of a record, as the journal has it.

    Attributes
    ----------
    kind : Kind
    is_required : bool
    make_default : callable
        Returns the value of the field where it is missing, if it is not required.
    is_sparse : bool
        Whether the field is not written where it has its default.
    """

    kind: Kind
    is_required: bool
    make_default: Callable[[], Any] = lambda: None
    is_sparse: bool = False


def complete(table: dict[str, Any], layout: Mapping[str, Column], name: str) -> None:
    """Check and convert the fields of a table and add defaults, or raise DamagedRecord."""
    for key, (kind, is_required, make_default, _) in layout.items():
        if key not in table:
            if is_required:
                raise DamagedRecord(f"{name} has no {key}")
            table[key] = make_default()
        elif not kind.fits(table[key]):
            raise DamagedRecord(f"{name}: {key} is not {kind.words}")
        elif kind.convert is not None:
            table[key] = kind.convert(table[key])


class Default(NamedTuple):
    """The default of a field that is more than a plain value, as `field` returns it."""

    make: Callable[[], Any]
    is_sparse: bool


def field(
    *,
    default: Any = None,
    default_factory: Callable[[], Any] | None = None,
    is_sparse: bool = False,
) -> Any:
    """Return the default of a field, and whether the field is not written where it has that."""
    return Default(default_factory or partial(_same, default), is_sparse)


def layout_of(kind: type) -> dict[str, Column]:
    """Return the fields of a class by name, from those of its annotations that have a `Kind`."""
    layout = {}
    for base in reversed(kind.__mro__[:-1]):
        for name, annotation in base.__annotations__.items():
            if not hasattr(annotation, "__metadata__"):
                continue
            default = base.__dict__.get(name)
            if not isinstance(default, Default):
                default = Default(partial(_same, default), False)
            is_required = name not in base.__dict__
            (value_kind, *_) = annotation.__metadata__
            layout[name] = Column(value_kind, is_required, *default)
    return layout


def _same(value: Any) -> Any:
    return value


def or_none(kind: Kind) -> Kind:
    """Return the kind of a value that may also be null."""
    convert = kind.convert
    return Kind(
        f"{kind.words} or null",
        lambda value: value is None or kind.fits(value),
        convert and (lambda value: None if value is None else convert(value)),
    )


def list_of(kind: Kind, words: str) -> Kind:
    """Return the kind of a list of values of a kind."""
    fits = kind.fits
    return Kind(words, lambda value: type(value) is list and all(map(fits, value)))


def table_of(kind: Kind, words: str) -> Kind:
    """Return the kind of a table with any keys and values of a kind."""
    fits = kind.fits
    return Kind(words, lambda value: type(value) is dict and all(map(fits, value.values())))


def table_like(part: type) -> Kind:
    """Return the kind of a table that becomes an instance of a class with annotated fields."""
    layout = layout_of(part)

    def fits(table: Any) -> bool:
        return type(table) is dict and all(
            column.kind.fits(table[name]) if name in table else not column.is_required
            for name, column in layout.items()
        )

    def convert(table: dict[str, Any]) -> Any:
        return part(**{name: table[name] for name in layout if name in table})

    return Kind(f"a table like {part.__name__}", fits, convert)


def list_of_tables(part: type, words: str) -> Kind:
    """Return the kind of a list of tables, each of which becomes an instance of a class."""
    fits, convert = table_like(part)[1:3]
    assert convert is not None
    return Kind(
        words,
        lambda value: type(value) is list and all(map(fits, value)),
        lambda value: list(map(convert, value)),
        True,
    )


ANY: Final = Kind("a value", lambda value: True)
TEXT: Final = Kind("text", lambda value: type(value) is str)
TRUTH: Final = Kind("true or false", lambda value: type(value) is bool)
COUNT: Final = Kind("a whole number from 0", lambda value: is_integer(value, 0))
INTEGER: Final = Kind("a whole number", is_integer)
NUMBER: Final = Kind("a number", is_number)
SECONDS: Final = Kind("a number of seconds", lambda value: is_number(value, 0, LATEST_S))
FILE_NAME: Final = Kind(
    "the name of a file",
    lambda value: (
        type(value) is str and value not in ("", ".", "..") and not {"/", "\0"}.intersection(value)
    ),
)
ROW: Final = Kind("a table", lambda value: type(value) is dict)
TEXTS: Final = list_of(TEXT, "a list of text")
COUNTS: Final = list_of(COUNT, "a list of whole numbers")

Text: TypeAlias = Annotated[str, TEXT]
Texts: TypeAlias = Annotated[Sequence[str], TEXTS]
Count: TypeAlias = Annotated[int, COUNT]
Counts: TypeAlias = Annotated[Sequence[int], COUNTS]
Seconds: TypeAlias = Annotated[float, NUMBER]
Row: TypeAlias = Annotated[dict[str, Any], ROW]

EVENTS: Final[dict[str, type[Record]]] = {}
"""The class of each event, by its name in the journal."""


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class Record(Frozen):
    """An event of a run, as the journal has it; each subclass is a type of event.

    Attributes
    ----------
    time_s : float
        When it was written, in seconds since 1970; 0 before that.
    layout : mapping of str to Column
        Its other fields, as they are written to the journal.
    """

    time_s: float = 0.0
    layout: ClassVar[Mapping[str, Column]] = {}
    _defaults: ClassVar[Sequence[tuple[str, Callable[[], Any]]]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.layout = layout_of(cls)
        cls._defaults = tuple(
            (name, column.make_default)
            for name, column in cls.layout.items()
            if not column.is_required
        )
        if not cls.__name__.startswith("_"):
            EVENTS[cls.__name__] = cls

    def __init__(self, *, time_s: float = 0.0, **values: Any) -> None:
        for name, make_default in self._defaults:
            if name not in values:
                values[name] = make_default()
        super().__init__(time_s=time_s, **values)

    def at(self, time_s: float) -> Self:
        """Return a copy of the record with the time at which it was written."""
        record = object.__new__(type(self))
        record.__dict__.update(self.__dict__, time_s=time_s)
        return record

    def __eq__(self, other: object) -> bool:
        """Whether both records are of the same class and have equal fields, at whatever times."""
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.layout)

    __hash__ = None  # type: ignore[assignment]


def encoded(record: Record, time_s: float) -> dict[str, Any]:
    """Return a record as the table of a line of the journal."""
    table: dict[str, Any] = {"time_s": time_s, "event": type(record).__name__}
    for name, column in record.layout.items():
        value = getattr(record, name)
        if column.is_sparse and value == column.make_default():
            continue
        table[name] = [part.as_dict() for part in value] if column.kind.parts else value
    return table
