"""What a workflow file says of the evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from .splits import Fold, NestedFold, holdout, k_fold, nested_folds

if TYPE_CHECKING:
    import numpy.typing as npt

_ONLY = {
    "fraction": ("holdout",),
    "folds": ("k_fold", "nested"),
    "inner_folds": ("nested",),
    "repeats": ("k_fold", "nested"),
}


class Evaluation(BaseModel):
    """Which rows a trial trains on, and which it is scored on."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    method: Literal["holdout", "k_fold", "nested"] = "holdout"
    fraction: float = Field(0.2, gt=0, lt=1, description="rows to score; holdout only")
    folds: int = Field(5, ge=2, description="for nested: the outer ones, which score the choice")
    inner_folds: int = Field(4, ge=2, description="in which nested makes its choice")
    repeats: int = Field(1, ge=1, description="of all folds, with another shuffle")
    stratified: bool = Field(True, description="whether each class has its share in every fold")
    seed: int = Field(0, ge=0, description="of the splits; the same for every trial")

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, table: Any) -> Any:
        if isinstance(table, dict):
            method = table.get("method", "holdout")
            for key, methods in _ONLY.items():
                if key in table and isinstance(method, str) and method not in methods:
                    raise PydanticCustomError(
                        "key_of_another_method",
                        "{key} belongs to {methods}, not to method = {method}",
                        {
                            "key": key,
                            "methods": " and ".join(methods),
                            "method": f'"{method}"',
                            "remedy": f'remove it, or write method = "{methods[0]}"',
                        },
                    )
        return table

    def split(self, y: npt.ArrayLike) -> list[Fold]:
        """Return the splits of some rows, `NestedFold` for nested ones.

        Parameters
        ----------
        y : array of int, shape (n,)
            Classes.

        Raises
        ------
        EvaluationError
            If there are too few rows.
        """
        if self.method == "holdout":
            return [holdout(y, self.fraction, self.seed, self.stratified)]
        if self.method == "k_fold":
            return k_fold(y, self.folds, self.seed, self.repeats, self.stratified)
        nested: list[NestedFold] = nested_folds(
            y, self.folds, self.inner_folds, self.seed, self.repeats, self.stratified
        )
        return list(nested)

    @property
    def trainings(self) -> int:
        """How many models a trial trains."""
        if self.method == "holdout":
            return 1
        if self.method == "k_fold":
            return self.folds * self.repeats
        return self.folds * self.repeats * (self.inner_folds + 1)
