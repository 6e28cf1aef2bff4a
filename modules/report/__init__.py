"""The report of a sweep: one HTML file that opens anywhere, without a network.

::

    rows ──> RowSelection ──> Picture ──> sections ──────> page ──> live (the file)
             bounded          what is     figures            the page of `diel gui`
             memory           shown         └──> figure ──┴──> Plotly
                                 └──────> importance

A function in `figures` says what a figure shows; `svg` and `plotly` draw it. All but `live` is
pure: no clock, no files.
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
