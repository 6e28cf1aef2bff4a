"""Which routines the networks of a run are computed with: measured once, the same on every rank."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from diel import open_regular, part_of

from .compute import Compute

if TYPE_CHECKING:
    from diel import Context
    from dnn import RoutineTable

_ROUTINES_FILE: Final = "routines.json"
_CONVOLUTIONS_FOLDER: Final = "routines"


@contextmanager
def routines_of_run(
    ctx: Context,
    rank: int = 0,
    ranks: int = 1,
    compute: Compute | None = None,
    *,
    measured: bool = True,
) -> Iterator[RoutineTable]:
    """Return a context with the table of routines of a run, the same on every rank.

    The first rank measures them, or finds ``routines.json`` in the run directory; the others wait
    for it in the tuple space. A run that is resumed finds the same file, so that a choice never
    changes a result. The tuple is claimed meanwhile: a copy that is started again finds it again.
    Convolutions are measured when they are met, and the first rank that meets a shape writes its
    choice, for all ranks, to the folder ``routines``.

    Parameters
    ----------
    rank, ranks : int
        Rank of this process within its copy, and how many ranks the copy has.
    compute : Compute, optional
        The device to measure; the CPU, if left out.
    measured : bool
        Measure sums and products; if not, they are always done in the same way.
    """
    from dnn import RoutineTable

    folder = ctx.run_dir.absolute() / _CONVOLUTIONS_FOLDER
    if not measured:
        yield RoutineTable({}).kept_in(folder)
        return
    base = (ctx.group, ctx.module, "routines")
    if rank or ctx.copy_index:
        with ctx.tuples.claim((*base, ctx.copy_index, rank)) as claim:
            yield RoutineTable.from_json(claim.value).kept_in(folder)
        return
    file = ctx.run_dir / _ROUTINES_FILE
    if not file.exists():
        own_file = part_of(file)
        table = (compute or Compute()).measure_routines()
        try:
            with own_file.open("x", encoding="utf-8") as made:
                made.write(table.to_json())
            os.link(own_file, file)  # unlike a rename it leaves the table of another group alone
        except FileExistsError:
            pass
        finally:
            own_file.unlink(missing_ok=True)
    with open_regular(file) as found:
        text = found.read().decode(errors="replace")
    for copy in range(ctx.copies_of[ctx.module]):
        for copy_rank in range(ranks):
            if copy or copy_rank:
                ctx.tuples.tput((*base, copy, copy_rank), text)
    yield RoutineTable.from_json(text).kept_in(folder)
