"""Which routines compute, measured once for a run.

The first rank that trains measures them, or finds ``routines.json`` in the run directory; the
others wait for it in the tuple space. A run that is resumed finds the same file, so that a choice
never changes a result.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diel import Context
    from dnn import RoutineTable

__all__ = ["FILE_NAME", "routines_of_run"]

FILE_NAME = "routines.json"


@contextmanager
def routines_of_run(ctx: Context, rank: int = 0, ranks: int = 1) -> Iterator[RoutineTable]:
    """Have the table of routines of a run, the same one on every rank, for what is done with it.

    It is claimed for as long as that lasts: a copy that is started again finds it again.

    Parameters
    ----------
    ctx : Context
    rank, ranks : int
        Of this process within its copy, and how many there are.
    """
    from dnn import RoutineTable, ops_for

    base = (ctx.group, ctx.module, "routines")
    if rank or ctx.copy_index:
        with ctx.tuples.claim((*base, ctx.copy_index, rank)) as claim:
            yield RoutineTable.from_json(claim.value)
        return
    file = ctx.run_dir / FILE_NAME
    if not file.exists():
        mine = file.with_name(f"{FILE_NAME}.{os.getpid()}-{ctx.group}-{ctx.module}")
        mine.write_text(RoutineTable.measure(ops_for("cpu")).to_json(), encoding="utf-8")
        try:
            os.link(mine, file)  # unlike a rename it leaves the table of another group alone
        except FileExistsError:
            pass
        finally:
            mine.unlink()
    text = file.read_text(encoding="utf-8")
    for copy in range(ctx.copies_of[ctx.module]):
        for other in range(ranks):
            if copy or other:
                ctx.tuples.tput((*base, copy, other), text)
    yield RoutineTable.from_json(text)
