"""Strategies of a sweep: which points to try, and which trials to stop early."""

from .protocol import WAIT, Strategy, Wait

__all__ = ["WAIT", "Strategy", "Wait"]
