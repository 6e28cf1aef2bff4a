"""Where arrays live and what computes on them.

The plan compiler asks an `Ops` for functions once; replaying a plan never comes back here.
"""

from dnn.backend.ops import ALIGNMENT_BYTES, Array, Chain, Ops, empty, ops_for
from dnn.backend.routines import RoutineTable

__all__ = ["ALIGNMENT_BYTES", "Array", "Chain", "Ops", "RoutineTable", "empty", "ops_for"]
