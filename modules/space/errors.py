"""What can be wrong with a space."""

from __future__ import annotations


class SpaceError(ValueError):
    """A search space is malformed or empty.

    Attributes
    ----------
    parameter : str or None
        Whose entry is wrong; None if it is the space as a whole.
    reason : str
        What is wrong with it, without the parameter's name.
    """

    def __init__(self, reason: str, parameter: str | None = None) -> None:
        super().__init__(reason, parameter)
        self.reason = reason
        self.parameter = parameter

    def __str__(self) -> str:
        return f"{self.parameter}: {self.reason}" if self.parameter else self.reason
