"""The report of a sweep: one HTML file that opens anywhere, without a network.

::

    rows ──> RowSelection ──> SweepView ──────────────────> page ──> live (the file)
             bounded          what is  └─> figures          the page of `diel gui`
             memory           shown          └──> figure ──┴──> Plotly
                                 └──────> importance

A function in `figures` says what a figure shows; `svg` and `plotly` draw it. All but `live` is
pure: no clock, no files.
"""

from .data import Moment, RankAccount, Sweep
from .live import LiveReport, conclude_report, write_report

__all__ = [
    "LiveReport",
    "Moment",
    "RankAccount",
    "Sweep",
    "conclude_report",
    "write_report",
]
