"""The report of a sweep, as its master keeps it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..report import Evaluation, LiveReport, Sweep
from ..report.live import environment

if TYPE_CHECKING:
    from diel import Context

    from ..search import Search

_STAMP: Final = re.compile(r"-\d{8}-\d{6}(-\d+)?$")


def open_report(ctx: Context, table: Path, search: Search, seed: int) -> LiveReport:
    """Begin the report that stands beside a table of results: ``report.html``.

    Parameters
    ----------
    ctx : Context
    table : Path
        ``results.csv``, or ``results-2.csv``.
    search : Search
    seed : int
        Of the sweep.
    """
    from diel import __version__

    objective = search.objectives[0]
    workflow = ctx.run_dir / "workflow.toml"
    facts = {
        "run": ctx.run_dir.name,
        "seed": str(seed),
        "trainers": str(ctx.copies_of.get(ctx.options.trainer, "")),
        "diel": __version__,
        **environment(),
    }
    return LiveReport(
        table.with_name(table.name.replace("results", "report")).with_suffix(".html"),
        Sweep(
            name=_STAMP.sub("", ctx.run_dir.name),
            objective=objective.text,
            maximise=objective.maximise,
            parameters=search.space.names,
            expected=search.size,
            workflow=workflow.read_text(encoding="utf-8") if workflow.exists() else "",
            command="diel run workflow.toml",
            facts=facts,
            about=f"module {ctx.module} in group {ctx.group}",
        ),
        evaluate=lambda: _evaluation(search),
    )


def _evaluation(search: Search) -> Evaluation | None:
    bias = search.bias.report()
    if bias is None:
        return None
    return Evaluation(
        bias.objective,
        search.objectives[0].maximise,
        bias.naive,
        bias.honest,
        bias.spread,
        bias.trials,
        bias.method,
        warnings=[bias.warning] if bias.warning else [],
    )


def close_report(ctx: Context, report: LiveReport, state: str) -> None:
    """Write a report a last time; what cannot be written is said in the log."""
    report.close(state)
    if report.problem:
        ctx.log.warning("%s", report.problem)
