"""Choice of the routine that sums arrays of a size: measured once, decided by rank 0, and kept.

Sizes are grouped by powers of 4; those above 16 MiB are in the group of 16 MiB. At the first sum of
a group rank 0 decides by the first of these that applies::

    DNN_ALLREDUCE names a routine            this routine, for all sizes
    DNN_ROUTINES is "fixed"                  `fixed_choice`: the same on all machines
    the machine's folder of choices has it   the fastest, measured with as many ranks and hosts
    else                                     all ranks measure, and rank 0 keeps the result

Routines add in different orders, so with more than two ranks sums have the same bits only where the
choices are the same.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from dnn.backend import Array
from dnn.backend.routines import ROUTINES_VARIABLE, ConvolutionChoices, machine_choices
from dnn.errors import unknown_name

if TYPE_CHECKING:
    from dnn.distributed.allreduce import Steps
    from dnn.distributed.messages import MessageCommunicator

__all__ = ["ALLREDUCE_VARIABLE", "SumChoices", "fixed_choice", "named_routine", "size_class"]

ALLREDUCE_VARIABLE = "DNN_ALLREDUCE"
"""Environment variable that names the routine of all sums."""

_TIMED: Final = "timed in turn"  # in the file's name: results of other methods are not read
_TIMES: Final = 4
# Short sums are repeated more often: something else may run on the machine now and then.
_MOST_TIMES: Final = 40
_ENOUGH_S: Final = 20e-3
# A routine that is slower than the fastest by this factor, after so many times, is timed no more.
_TOO_SLOW: Final = 3.0
_TOO_SLOW_AFTER: Final = 2
_FEW_BYTES: Final = 1 << 14

Routine = Callable[[Array, int], "Steps"]


def named_routine() -> str:
    """Return the value of `ALLREDUCE_VARIABLE`, "" if it is not set."""
    return os.environ.get(ALLREDUCE_VARIABLE, "")


def size_class(size_bytes: int) -> int:
    """Return the smallest power of 4 that is at least a size, within 1 KiB to 16 MiB."""
    bits = (max(size_bytes, 1) - 1).bit_length()
    return 1 << min(max(10, bits + bits % 2), 24)


@cache
def measured_choices() -> ConvolutionChoices:
    """Return the choices measured on this machine, kept in a folder beside compiled kernels."""
    about = f"{platform.node()}, {os.cpu_count()} cores, NumPy {np.__version__}, {_TIMED}"
    name = f"sums-{hashlib.sha256(about.encode()).hexdigest()[:16]}"
    return machine_choices(name, about, of="sum")


def fixed_choice(size_bytes: int, ranks: int, offered: Sequence[str]) -> str:
    """Return the name of a routine by size and number of ranks alone, without measurements."""
    if size_bytes > _FEW_BYTES:
        wanted = ["shared", "two_level", "ring"]
    elif ranks > 8:
        wanted = ["two_level", "doubling"]
    else:
        wanted = ["doubling"]
    return next(name for name in wanted if name in offered)


class SumChoices:
    """Routines of a communicator for each class of sizes, decided together at the first sum.

    Parameters
    ----------
    communicator : MessageCommunicator

    Attributes
    ----------
    names : dict of int to str
        From a class of sizes, in bytes, to the name of the routine last decided on.
    """

    def __init__(self, communicator: MessageCommunicator) -> None:
        self._communicator = communicator
        self.names: dict[int, str] = {}
        self._decided: dict[tuple[int, tuple[str, ...]], str] = {}

    def name_for(self, size_bytes: int, offered: Mapping[str, Routine]) -> str:
        """Return the routine of a sum; all ranks decide together at the first sum of a size class.

        Raises
        ------
        ConfigurationError
            If ``DNN_ALLREDUCE`` on rank 0 names no routine.
        """
        sizes = size_class(size_bytes)
        case = sizes, tuple(offered)  # offered routines depend on the type of elements
        name = self._decided.get(case)
        if name is None:
            name = self._decided[case] = self.names[sizes] = self._decide(sizes, offered)
        return name

    def _decide(self, sizes: int, offered: Mapping[str, Routine]) -> str:
        communicator = self._communicator
        kind = type(communicator).__name__.removesuffix("Communicator").lower()
        key = f"sum-{kind}-{communicator.size}ranks-{_layout(communicator.nodes)}-{sizes}bytes"
        missing = sorted(set(communicator.routine_names) - set(offered))
        key += "".join(f"-without_{each}" for each in missing)
        known = ""
        if communicator.rank == 0:
            said = named_routine()
            if said or os.environ.get(ROUTINES_VARIABLE) == "fixed":
                known = said or fixed_choice(sizes, communicator.size, list(offered))
            else:
                known = measured_choices().find(key, offered) or ""
        name: str = communicator.gather_values(known)[0]
        if not name:
            seconds = self._measured(sizes, offered)
            name = min(seconds, key=lambda each: seconds[each])
            if communicator.rank == 0:
                ms = {each: round(1e3 * taken, 4) for each, taken in seconds.items()}
                name = measured_choices().keep(key, {"routine": name, "ms": ms}, offered)
            name = communicator.gather_values(name)[0]
        if name not in offered:
            raise unknown_name(f"routine of {ALLREDUCE_VARIABLE}", name, offered)
        message = "sums of at most %s bytes over %s ranks: %s"
        logging.getLogger("dnn").info(message, f"{sizes:,}", communicator.size, name)
        return name

    def _measured(self, sizes: int, offered: Mapping[str, Routine]) -> dict[str, float]:
        """Time routines in turn on all ranks; return for each the least time of the slowest rank.

        In turn, so that something else that runs on the machine for a while disturbs all alike.
        """
        communicator = self._communicator
        array = np.zeros(sizes // 4, np.float32)
        slowest: dict[str, list[float]] = {name: [] for name in offered}
        least = dict.fromkeys(offered, math.inf)
        for round_ in range(_MOST_TIMES):
            for name, times in slowest.items():
                if len(times) >= _TOO_SLOW_AFTER and least[name] > _TOO_SLOW * min(least.values()):
                    continue
                communicator.gather_values(None)  # all begin together
                began_s = time.perf_counter()
                communicator.sum(array, routine=name)
                taken_s = time.perf_counter() - began_s
                times.append(max(communicator.gather_values(taken_s)))
                least[name] = min(times)
            if round_ + 1 >= _TIMES and (round_ + 1) * sum(least.values()) > _ENOUGH_S:
                break
        return least


def _layout(nodes: Sequence[int]) -> str:
    """Return how many ranks each host has: ``"2hosts4.4"``, from the largest."""
    counts = sorted((nodes.count(host) for host in set(nodes)), reverse=True)
    return f"{len(counts)}hosts" + ".".join(map(str, counts[:8]))
