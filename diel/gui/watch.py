"""The pages of a run: how it goes on and has ended, from its directory alone; its reports."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

from fastapi import Response
from nicegui import run, ui

from diel.errors import DielError, PageError
from diel.gui.box import BoxPanel
from diel.gui.cards import call_script
from diel.gui.processes import exit_code_of, in_words_of_the_page, last_words, start_command
from diel.gui.security import LOG
from diel.gui.site import (
    MOST_BOXES,
    FailureBox,
    Site,
    address,
    confirmed,
    frame,
    page,
    printable,
    tell,
)
from diel.gui.snapshot import SharedSnapshot, Snapshot, difference
from diel.run.directory import RunDirectory
from diel.run.files import open_regular
from diel.run.history import summarize
from diel.run.log_tail import LogTail, log_names
from diel.run.timeline import Timeline, TimelineSpan, draw_spans
from diel.run.watched_run import WatchedRun
from diel.workflow.drawing import drawing_of_draft
from diel.workflow.load import draft_of_text
from diel.workflow.svg import STYLE, draw_svg

_LOOK_EVERY_S: Final = 0.25
_LOOK_AFTER_END_S: Final = 2.0
"""The same for a run that has ended: it may be resumed."""
_NAMES_EVERY_S: Final = 3.0
_TIMELINE_EVERY_S: Final = 1.0
_LANES: Final = 32
_STEPS: Final = 800
_LARGEST_FILE_BYTES: Final = 2**20
_STRETCHES: Final = {0: "the whole run", 600: "10 minutes", 60: "a minute", 10: "10 seconds"}

_POLICY: Final = (
    "sandbox{}; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)
"""A run's directory may come from somebody else: scripts in its files get no cookie of the page,
and cannot send requests to its server."""
_CONCLUDED: Final = ("finished", "failed", "stopped")

# Pages of the same run share what has been read of it.
_shared: WeakValueDictionary[Path, SharedSnapshot] = WeakValueDictionary()


def add_pages(site: Site) -> None:
    """Add the page that watches a run, and those that show its reports."""

    @page("/run")
    def watch(path: str = "") -> None:
        directory = RunDirectory(site.resolve_run(path))
        with frame(site, site.name_of(directory.path)):
            ui.add_head_html(f"<style>{STYLE}</style>")
            _WatchPage(site, directory)

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


def _shared_snapshot(directory: RunDirectory) -> SharedSnapshot:
    """Return the snapshot of a run that all pages of that run share."""
    found = _shared.get(directory.path)
    if found is None:
        found = _shared[directory.path] = SharedSnapshot(WatchedRun(directory))
    return found


def _graph(directory: RunDirectory) -> str:
    """Return the SVG picture of a run's groups; empty if its workflow file cannot be read."""
    try:
        if directory.workflow.stat().st_size > _LARGEST_FILE_BYTES:
            return ""
        # As if it were the file itself: tables of foreach are beside that.
        with open_regular(directory.workflow) as source:
            text = source.read().decode("utf-8-sig")
        draft = draft_of_text(text, directory.started_with(), given=directory.given())
        if draft.boxes > MOST_BOXES:
            return ""
        return draw_svg(drawing_of_draft(draft), on_page=True)
    except (DielError, OSError, UnicodeDecodeError) as error:
        LOG.info("no graph of %s: %s", directory.path, error)
        return ""


class _WatchPage:
    """The page of a run in one browser."""

    def __init__(self, site: Site, directory: RunDirectory) -> None:
        self._site = site
        self._directory = directory
        self._snapshots = _shared_snapshot(directory)
        self._watched = self._snapshots.watched
        self._is_drawn = False
        self._file: tuple[str, Path | None] = "", None
        self._timeline = Timeline(directory)
        self._shown: Snapshot = {}
        self._sent_timeline = ""
        self._problem = ""
        self._resuming: int | None = None  # the process that resumes the run
        self._has_gone_on = False  # since then
        self._log: LogTail | None = None
        self._first_log: str | None = None
        self._first_lane = 0
        self._next_look_s = 0.0
        self._next_names_s = 0.0
        self._next_timeline_s = 0.0
        self._build()
        ui.timer(_LOOK_EVERY_S, self._tick)

    # -- building -----------------------------------------------------------------------------

    def _build(self) -> None:
        with ui.element("div").classes("diel-summary"):
            _part("state", "span").classes("diel-badge")
            _part("facts", "span").classes("diel-facts")
            self._file_link = ui.link("workflow file", "")
            self._file_link.set_visibility(False)
            record = self._site.name_of(self._directory.workflow)
            ui.link("as it was run", address("/compose", file=record))
            ui.link("sweep", address("/sweep", path=self._site.name_of(self._directory.path)))
            self._stop = ui.button("Stop", icon="stop", on_click=self._ask_to_stop)
            self._resume = ui.button("Resume", icon="play_arrow", on_click=self._start_again)
            for button in (self._stop, self._resume):
                button.props("flat dense no-caps").set_visibility(False)
        self._failure = FailureBox()
        _part("alerts").props('role="alert"')
        with ui.element("div").classes("diel-columns"):
            with _panel("Groups"):
                _part("picture").classes("diel-picture")
                _part("groups", "ul").classes("diel-groups")
                BoxPanel(self._site, self._watched, self._open_log)
            with ui.element("div"):
                with _panel("Progress"):
                    _part("bars").classes("diel-bars")
                    _part("servers")
                    _part("messages").classes("diel-messages").props(
                        'role="log" tabindex="0" aria-label="messages"'
                    )
                with _panel("What waits, and why"):
                    _part("reasons").classes("diel-messages").props(
                        'role="group" tabindex="0" aria-label="reasons"'
                    )
        with _panel("Copies that run"):
            _part("copies")
        with _panel("Ranks"):
            _part("ranks")
        with _panel("Timeline"):
            self._build_timeline()
        with _panel("Logs"):
            self._names = ui.select([], label="log file", on_change=self._choose_log)
            self._names.props("dense outlined use-input input-debounce=0 options-dense").classes(
                "diel-log-choice"
            )
            _part("log", "pre").classes("diel-log").props(
                'role="log" aria-live="off" tabindex="0" aria-label="log"'
            )
        with _panel("Where the time went"):
            _part("times").classes("diel-scrolls").props(
                'role="group" tabindex="0" aria-label="times"'
            )

    def _build_timeline(self) -> None:
        with ui.element("div").classes("diel-table-bar"):
            self._stretch = ui.select(_STRETCHES, value=0, on_change=self._draw_now)
            self._stretch.props('dense outlined options-dense aria-label="how much of it"')
            self._pager = ui.element("span").classes("diel-pager")
            with self._pager:
                ui.button("Earlier ranks", on_click=lambda: self._turn(-_LANES))
                ui.button("Later ranks", on_click=lambda: self._turn(_LANES))
            for button in self._pager:
                button.props("flat dense no-caps")
            self._pager.set_visibility(False)
            for kind, words in (
                ("module", "a copy runs"),
                ("wait", "waits"),
                ("transfer", "transfers"),
                ("tuples", "calls of the tuple space"),
            ):
                ui.label(words).classes(f"diel-key diel-key-{kind}")
        with _part("timeline").classes("diel-timeline"):
            ui.element("canvas").props('role="img" aria-label="what each rank did and when"')

    # -- updating -----------------------------------------------------------------------------

    async def _tick(self) -> None:
        if not self._is_drawn:
            self._is_drawn = True
            call_script("diel.watch.picture", await run.io_bound(_graph, self._directory) or "")
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            has_ended = self._watched.has_ended and bool(self._shown)
            self._next_look_s = now_s + (_LOOK_AFTER_END_S if has_ended else _LOOK_EVERY_S)
            changed = await run.io_bound(self._look)
            if changed:
                self._show(changed)
            self._has_gone_on |= self._watched.state == "running"
            self._tell_of_resuming()
        if now_s >= self._next_names_s:
            self._next_names_s = now_s + _NAMES_EVERY_S
            names = await run.io_bound(self._log_names)
            if names and list(names) != list(self._names.options):
                # The launcher's log is there first and mostly empty: another one is preferred.
                value = self._names.value
                if value in (None, "launcher.log") and value == self._first_log:
                    value = next((name for name in names if name != "launcher.log"), "launcher.log")
                    self._first_log = value
                self._names.set_options(names, value=value)
        if self._log is not None:
            await self._follow_log()
        is_due = now_s >= self._next_timeline_s
        if is_due and not (self._watched.has_ended and self._sent_timeline):  # else it is final
            self._next_timeline_s = now_s + _TIMELINE_EVERY_S
            await self._draw_timeline()

    def _look(self) -> Snapshot:
        """Read the run's directory; return what has changed for this page."""
        try:
            if self._problem:
                raise PageError(self._problem)
            found = self._snapshots.look()
        except DielError as error:
            found = {**self._shown, "alerts": [str(error)]}
        if found is self._shown:
            return {}
        changed = difference(self._shown, found)
        self._shown = found
        written = self._watched.view.file
        if written != self._file[0]:
            self._file = written, self._site.workflow_of(written)
        return changed

    def _log_names(self) -> dict[str, str]:
        """Return log files and the names to show for them; none if a link leads outside."""
        try:
            self._site.check_links(self._directory.path)
        except PageError as error:
            self._problem = str(error)
            return {}
        self._problem = ""
        return {name: printable(name) for name in log_names(self._directory.logs)}

    def _show(self, changed: Snapshot) -> None:
        call_script("diel.watch.apply", time.time(), changed)
        state = self._watched.state
        self._pager.set_visibility(self._watched.view.ranks > _LANES)
        self._stop.set_visibility(state == "running")
        self._resume.set_visibility(state in ("failed", "stopped", "killed"))
        file = self._file[1]
        if file is not None:
            self._file_link.props["href"] = address("/compose", file=self._site.name_of(file))
        self._file_link.set_visibility(file is not None)

    # -- logs ---------------------------------------------------------------------------------

    async def _open_log(self, name: str) -> None:
        """Show a log in the panel of logs, and move there."""
        if name not in self._names.options:
            self._names.set_options(await run.io_bound(self._log_names) or {})
        self._names.value = name
        call_script("diel.watch.showLog")

    async def _choose_log(self) -> None:
        name = self._names.value
        if name not in self._names.options:
            return
        self._log = LogTail(self._directory.logs / name)
        call_script("diel.watch.log", "", False)
        await self._follow_log()

    async def _follow_log(self) -> None:
        log = self._log
        if log is None or self._problem:
            return
        try:
            found = await run.io_bound(log.new_text)
        except OSError as error:
            self._log = None
            found = f"{log.path.name} cannot be read: {error.strerror or error}", False
        if found is not None and (found[0] or not found[1]) and found != ("", False):
            call_script("diel.watch.log", *found)

    # -- the timeline -------------------------------------------------------------------------

    async def _turn(self, by: int) -> None:
        last = max(0, (self._watched.view.ranks - 1) // _LANES * _LANES)
        self._first_lane = min(last, max(0, self._first_lane + by))
        await self._draw_now()

    async def _draw_now(self) -> None:
        self._sent_timeline = ""
        await self._draw_timeline()

    async def _draw_timeline(self) -> None:
        picture = await run.io_bound(self._timeline_picture)
        text = json.dumps(picture)
        if picture and text != self._sent_timeline:
            self._sent_timeline = text
            call_script("diel.watch.timeline", picture)

    def _timeline_picture(self) -> dict[str, Any] | None:
        end_s = self._watched.latest_s()
        with self._watched.unchanged() as view:
            origin_s, ranks = view.started_s, view.ranks
            now = [
                (rank, TimelineSpan("module", copy.name, copy.started_s, end_s))
                for copy in view.running.values()
                for rank in copy.ranks
            ]
            now += [
                (wait.rank, TimelineSpan("wait", f"wait: {wait.what}", wait.since_s, end_s))
                for wait in self._watched.status.waiting
            ]
        if not origin_s:
            return None
        stretch_s = self._stretch.value
        start_s = max(origin_s, end_s - stretch_s) if stretch_s else origin_s
        shown = range(self._first_lane, min(ranks, self._first_lane + _LANES))
        self._timeline.look(shown)
        lanes = []
        for rank in shown:
            spans = [*self._timeline.spans(rank), *(span for on, span in now if on == rank)]
            lanes.append([rank, draw_spans(spans, start_s, end_s, _STEPS)])
        return {
            "ranks": lanes,
            "start_s": start_s,
            "end_s": end_s,
            "origin_s": origin_s,
            "steps": _STEPS,
        }

    # -- stop and resume ----------------------------------------------------------------------

    async def _ask_to_stop(self) -> None:
        words = "Stop this run? It ends within seconds, and can be resumed later."
        if not await confirmed(words, "Stop the run", "Let it go on"):
            return
        try:
            self._directory.request_stop("stopped from the page")
        except OSError as error:
            tell(PageError(f"the run cannot be asked to stop: {error.strerror or error}"))
        self._next_look_s = 0.0

    async def _start_again(self) -> None:
        try:
            self._resuming = await run.io_bound(self._resume_run)
        except DielError as error:
            tell(error)
            return
        self._failure.hide()
        self._has_gone_on = False
        ui.notify("resuming: the log resume.log says what its command prints")
        self._next_look_s = 0.0

    def _resume_run(self) -> int | None:
        self._directory.refuse_links()
        place = str(self._directory.path)
        return start_command(["run", "--resume", place], self._site.folder, self._resume_log)

    @property
    def _resume_log(self) -> Path:
        return self._directory.logs / "resume.log"

    def _tell_of_resuming(self) -> None:
        """Say why the command that resumes the run has ended, if it was before the run went on."""
        code = None if self._resuming is None else exit_code_of(self._resuming)
        if code is None:
            return
        self._resuming = None
        if code and self._watched.state != "running" and not self._has_gone_on:
            words = in_words_of_the_page(last_words(self._resume_log))
            self._failure.show("The run has not been resumed", words or f"exit code {code}")


def _part(name: str, kind: str = "div") -> ui.element:
    """Return an element that `page.js` finds by its name and fills."""
    return ui.element(kind).props(f'data-part="{name}"')


def _panel(title: str) -> ui.element:
    panel = ui.element("section").classes("diel-panel")
    with panel:
        ui.label(title).classes("diel-heading").props('role="heading" aria-level="2"')
    return panel
