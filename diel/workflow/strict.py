"""What all tables of a workflow file have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictTable(BaseModel):
    """A table of a workflow file: it cannot be changed and knows every key it takes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
