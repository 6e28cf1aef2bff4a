"""The report of a sweep: one HTML file that opens anywhere, without a network.

::

    rows ──> gather ──> picture ──> sections, tables ──> page ──> live (the file)
             bounded    what is     HTML and SVG
             memory     shown
                          └──────> importance

`plot` and `markup` write axes and scales as SVG, text and values as HTML. All but `live` is pure:
no clock, no files.
"""

from .live import LiveReport, conclude_report, write_report
from .sweep import Moment, RankAccount, Sweep

__all__ = [
    "LiveReport",
    "Moment",
    "RankAccount",
    "Sweep",
    "conclude_report",
    "write_report",
]
