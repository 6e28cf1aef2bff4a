"""The master of a sweep: has the points of a space tried by trainers, and ranks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from .options import SweepOptions
from .search import Search
from .sweep.conducting import Plan, conduct

if TYPE_CHECKING:
    from diel import Context


class Options(SweepOptions):
    """What the workflow file says of a sweep."""

    retries: int = Field(0, ge=0, description="how often a trial that failed is tried again")


def run(ctx: Context) -> dict[str, Any]:
    """Have trials tried until the sweep is over; return the row of the best one."""
    options: Options = ctx.options
    if options.trainer not in ctx.copies_of:
        raise ValueError(f"module {options.trainer!r} is not in group {ctx.group!r}")
    plan = Plan(
        Search(options, ctx.folder),
        seed=options.seed,
        retries=options.retries,
        about=options.model_dump(mode="json"),
    )
    return conduct(ctx, (ctx.group, options.trainer), plan, ctx.copies_of[options.trainer])
