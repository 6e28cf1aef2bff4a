"""The master of a sweep: has the points of a space tried by trainers, and ranks them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from diel.errors import ModuleFailed

from .options import SweepOptions
from .search import Search
from .sweep.conducting import Plan, conduct
from .sweep.messages import Tags

if TYPE_CHECKING:
    from diel import Context

    from .sweep.preview import Preview


class Options(SweepOptions):
    """What the workflow file says of a sweep."""

    retries: int = Field(0, ge=0, description="how often a trial that failed is tried again")


def run(ctx: Context) -> dict[str, Any]:
    """Have trials tried until the sweep is over; return the row of the best one."""
    options: Options = ctx.options
    if options.trainer not in ctx.copies_of:
        raise ModuleFailed(
            f"module {options.trainer!r}, which is to try the points, is not in the group of the "
            f"master: add it to the modules of group {ctx.group!r}"
        )
    plan = Plan(
        Search(options, ctx.folder),
        seed=options.seed,
        retries=options.retries,
        about=options.model_dump(mode="json"),
    )
    return conduct(ctx, Tags(ctx.group, options.trainer), plan, ctx.copies_of[options.trainer])


# What `diel sweep` looks for in the code of a workflow file's modules.


def preview_sweep(options: Options, folder: Path) -> Preview:
    """Return what a sweep will do, without doing it."""
    from .sweep.preview import preview

    return preview(options, folder)


def export_sweep(run_dir: Path, formats: list[str], folder: Path) -> list[Path]:
    """Write what the sweeps of a run have recorded in other formats; return the files.

    Raises
    ------
    ValueError
        If a format is unknown, or what it needs is not installed.
    """
    from .sweep.export import export

    ledgers = sorted((run_dir / "sweeps").glob("*/trials.jsonl"))
    return [file for ledger in ledgers for file in export(ledger, formats, folder)]


def check_export(formats: list[str]) -> None:
    """Find out, before a sweep is run, whether it can be exported so.

    Raises
    ------
    ValueError
        As `export_sweep`.
    """
    from .sweep.export import check_formats

    check_formats(formats)
