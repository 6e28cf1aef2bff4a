"""`Frozen`: immutable records like frozen dataclasses, but without their time at import.

`dataclass` writes and compiles methods for each class, half a millisecond each, and every rank of a
run imports dozens of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

if TYPE_CHECKING:
    from typing_extensions import Self
    from typing_extensions import dataclass_transform as dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[Any], Any]:
        """Tell type checkers that subclasses are dataclasses."""
        return lambda kind: kind


@dataclass_transform(frozen_default=True)
class Frozen:
    """Base of immutable records: the annotations of a class are its fields, with their defaults.

    A default is shared by all instances, so it must be a value that is never changed.
    """

    _fields: ClassVar[tuple[str, ...]] = ()
    _names: ClassVar[frozenset[str]] = frozenset()
    _required: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._fields = tuple(
            dict.fromkeys(
                name
                for kind in reversed(cls.__mro__[:-1])
                for name, annotation in kind.__annotations__.items()
                if "ClassVar" not in str(annotation)
            )
        )
        cls._names = frozenset(cls._fields)
        cls._required = frozenset(name for name in cls._fields if not hasattr(cls, name))

    def __init__(self, *positional: Any, **named: Any) -> None:
        fields = self._fields
        given = len(positional) + len(named)
        is_known = not named or named.keys() <= self._names
        for name, value in zip(fields, positional, strict=False):
            named[name] = value
        is_whole = given == len(fields) or self._required <= named.keys()
        if len(named) != given or not is_known or not is_whole:
            by_name = list(named)[: given - len(positional)]
            raise TypeError(
                f"{type(self).__name__} has {', '.join(fields) or 'no fields'}; got "
                f"{len(positional)} by place and {', '.join(by_name) or 'none'} by name"
            )
        object.__setattr__(self, "__dict__", named)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values of some fields."""
        return type(self)(**{**self.as_dict(), **changes})

    def as_dict(self) -> dict[str, Any]:
        """Return the values of all fields by name."""
        return {name: getattr(self, name) for name in self._fields}

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._fields)

    def __hash__(self) -> int:
        return hash((type(self), *self.as_dict().values()))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"cannot assign to {name!r}: a {type(self).__name__} never changes")

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items())
        return f"{type(self).__name__}({values})"
