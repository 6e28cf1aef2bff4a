"""Radioactive decay by steps: how far from the exact value it ends."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, Field

import diel


class Options(BaseModel):
    """Options of the module."""

    dt: float = Field(gt=0, description="Length of a step, in half-lives.")
    method: Literal["euler", "midpoint"] = Field(default="euler", description="How it is done.")
    until: float = Field(default=3.0, gt=0, description="Where to end, in half-lives.")


def run(ctx: diel.Context) -> float:
    """Return the error of what is left at the end, of 1 at the beginning."""
    options, left = ctx.options, 1.0
    rate = math.log(2)
    steps = round(options.until / options.dt)
    for _ in range(steps):
        half = left - 0.5 * options.dt * rate * left if options.method == "midpoint" else left
        left -= options.dt * rate * half
    (ctx.run_dir / f"left.{ctx.copy_index}.txt").write_text(f"{left}\n")
    error = left - 0.5 ** (steps * options.dt)
    ctx.log.info("%d steps of %g: an error of %.2g", steps, options.dt, error)
    return error
