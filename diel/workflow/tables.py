"""The tables of a workflow file and the model behind each, for whoever documents them all."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel

from diel.workflow.load import TABLES
from diel.workflow.model import Workflow, WorkflowTable
from diel.workflow.wording import Spot, item_of


@dataclass(frozen=True)
class Table:
    """One table of a workflow file.

    Attributes
    ----------
    key : str
        What it is called in the file.
    model : type of BaseModel
    is_list : bool
        Whether it may stand there more than once: ``[[key]]``.
    is_required : bool
        Whether a file without it is incomplete.
    """

    key: str
    model: type[BaseModel]
    is_list: bool
    is_required: bool

    @property
    def header(self) -> str:
        """The line that begins it in a file."""
        return f"[[{self.key}]]" if self.is_list else f"[{self.key}]"


def tables() -> list[Table]:
    """Return every table in the order in which a file commonly has them.

    Notes
    -----
    ``[[group]]`` fills ``Workflow.groups``, ``[[boundary]]`` ``Workflow.boundaries``: the models
    are found there, so that a new table has to be named in one place only.
    """
    return [_table(key) for key in TABLES]


def _table(key: str) -> Table:
    if key == "workflow":
        return Table(key, WorkflowTable, is_list=False, is_required=False)
    for field in (key, f"{key}s", f"{key[:-1]}ies"):
        info = Workflow.model_fields.get(field)
        if info is None:
            continue
        spot = Spot(info.annotation, tuple(info.metadata))
        model = item_of(spot, 0).model if spot.is_list else spot.model
        if model is not None:
            return Table(key, model, spot.is_list, info.is_required())
    raise LookupError(f"no field of Workflow holds [[{key}]]")  # a test looks at every table
