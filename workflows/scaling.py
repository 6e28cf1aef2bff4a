"""The times of all runs of scaling.toml as a table, beside what Amdahl's law says."""

from __future__ import annotations

import csv
import json

from pydantic import BaseModel, Field

import diel


class Options(BaseModel):
    """Options of the module."""

    proportion: float = Field(gt=0, le=1, description="How much of the work can be shared.")


def write_table(ctx: diel.Context) -> None:
    """Write a line for each number of processes: the time, the speedup, and the law's."""
    folder, shared = ctx.folder / "times", ctx.options.proportion
    runs = [json.loads(file.read_text()) for file in folder.glob(f"p_{shared}/*.json")]
    times = {run["nproc"]: run["execution_time"] for run in runs}
    with (folder / f"p_{shared}.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["processes", "seconds", "speedup", "law"])
        for count, seconds in sorted(times.items()):
            speedup, law = times[min(times)] / seconds, 1 / (1 - shared + shared / count)
            table.writerow([count, round(seconds, 3), round(speedup, 3), round(law, 3)])
            ctx.log.info("%d processes: %.3f s, %.2f times as fast", count, seconds, speedup)
