"""Serve the reports of a run: HTML files in its directory."""

from __future__ import annotations

import time
from typing import Final

from fastapi import Response

from diel.errors import PageError
from diel.gui.site import Site, page
from diel.run.directory import RunDirectory
from diel.run.files import open_regular
from diel.run.history import summarize

_POLICY: Final = (
    "sandbox{}; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)
"""A run's directory may come from somebody else: scripts in its files get no cookie of the page,
and cannot send requests to its server."""
_CONCLUDED: Final = ("finished", "failed", "stopped")


def add_pages(site: Site) -> None:
    """Add the page that shows a report."""

    @page("/report")
    def report(path: str = "", file: str = "report.html") -> Response:
        directory = RunDirectory(site.resolve_run(path))
        reports = {each.name: each for each in directory.reports()}
        if file not in reports:
            there = ", ".join(reports) or "none so far: the first trials make one"
            raise PageError(f"{site.name_of(directory.path)} has no such report; there is {there}")
        # While a report is still being written, its script reloads it, which the policy forbids.
        is_concluded = summarize(directory.path, time.time()).state in _CONCLUDED
        policy = _POLICY.format(" allow-scripts" if is_concluded else "")
        with open_regular(reports[file]) as opened:
            return Response(
                opened.read(),
                media_type="text/html; charset=utf-8",
                headers={"content-security-policy": policy, "cache-control": "no-store"},
            )
