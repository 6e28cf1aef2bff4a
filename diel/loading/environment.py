"""BLAS and OpenMP threads of a module on a rank: set by environment, limited, and verified.

The number of threads comes from the workflow file and never from the number of ranks: one and two
BLAS threads give different bits. It is set before NumPy is imported, and verified afterwards.
"""

from __future__ import annotations

import os
import sys
from typing import Any

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


def thread_environment(threads: int) -> dict[str, str]:
    """Return the environment variables that limit a process to so many threads."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def set_thread_environment(threads: int) -> None:
    """Set the environment variables that limit the threads of libraries yet to be loaded."""
    for name, number in thread_environment(threads).items():
        if os.environ.get(name) != number:
            os.environ[name] = number


class ThreadLimiter:
    """Limits the thread pools of this process to the number that its present module asks for."""

    def __init__(self) -> None:
        self._controller: Any = None
        self._first: Any = None  # knows how many threads there were before
        self._modules_seen = 0
        self._verified = 0  # all pools were found to have so many threads

    def apply(self, threads: int) -> None:
        """Limit the threads of every loaded pool, and of libraries that are loaded later."""
        set_thread_environment(threads)
        verified, self._verified = self._verified, 0  # until `exceeding` has looked again
        if verified == threads and len(sys.modules) == self._modules_seen:
            return
        if any(pool["num_threads"] != threads for pool in self._pools()):
            limited = self._controller.limit(limits=threads)
            self._first = self._first or limited

    def close(self) -> None:
        """Give the pools the threads that they had before."""
        if self._first is not None:
            self._first.restore_original_limits()

    def exceeding(self, threads: int) -> list[str]:
        """Return a description of each pool that has more threads than the limit."""
        pools = self._pools()
        is_right = all(pool["num_threads"] == threads for pool in pools)
        self._verified = threads if is_right else 0
        return [
            f"{pool['internal_api']} has {pool['num_threads']} threads, not {threads}: "
            f"{pool['filepath']}"
            for pool in pools
            if pool["num_threads"] > threads
        ]

    def _pools(self) -> list[dict[str, Any]]:
        # Looking through all loaded libraries takes milliseconds: only after new imports.
        if self._controller is None or len(sys.modules) != self._modules_seen:
            from threadpoolctl import ThreadpoolController

            self._controller = ThreadpoolController()
            self._modules_seen = len(sys.modules)
        pools: list[dict[str, Any]] = self._controller.info()
        return pools
