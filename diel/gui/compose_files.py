"""The toolbar of the page that composes: open, save and download files, keep unsaved edits."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nicegui import Client, run, ui

from diel.errors import EditRefused, PageError
from diel.frozen import Frozen
from diel.gui.site import (
    Site,
    address,
    answer_to,
    asked,
    button,
    confirmed,
    errors_shown,
    menu_entry,
    menu_line,
    tell,
)
from diel.run.files import replacing
from diel.workflow.document import Document
from diel.workflow.examples import Example, copy_example, list_examples
from diel.workflow.source import SourceProblem, read_source

NEW_FILE: Final = "untitled.toml"
NEW_SWEEP: Final = "sweep"
"""The value of ``new`` in the address of a page that begins with a sweep."""
_OTHERS_EVERY_S: Final = 1.0


class Draft(Frozen):
    """A text that a page has not saved, and the id of that page."""

    page: str
    text: str


class Drafts:
    """Texts that pages have not saved, by file and page, as long as the server runs.

    A page that has lost its connection is built anew, and can take its text back; two pages with
    the same file have a text each.
    """

    def __init__(self, most: int = 50) -> None:
        self._most = most
        self._texts: dict[tuple[Path, str], str] = {}
        self._given_up: dict[tuple[Path, str], str] = {}

    def of_others(self, file: Path, page: str) -> Draft | None:
        """Return the latest text of a file that another page has not saved; None without any."""
        for (other_file, other_page), text in reversed(self._texts.items()):
            if other_file == file and other_page != page:
                return Draft(other_page, text)
        return None

    def keep(self, file: Path, page: str, text: str) -> None:
        """Keep a text; if there are too many, drop those that have not changed for longest.

        A page that is left lives on for a while: what was given up of it stays so.
        """
        if text in (self._texts.get((file, page)), self._given_up.get((file, page))):
            return
        self.drop(file, page)
        self._texts[file, page] = text
        while len(self._texts) > self._most:
            del self._texts[next(iter(self._texts))]

    def drop(self, file: Path, page: str) -> None:
        """Drop a text that was saved."""
        self._texts.pop((file, page), None)
        self._given_up.pop((file, page), None)

    def give_up(self, file: Path, page: str) -> None:
        """Drop the text of another page, which was taken back or is not wanted."""
        text = self._texts.pop((file, page), None)
        if text is not None:
            self._given_up[file, page] = text
            while len(self._given_up) > self._most:
                del self._given_up[next(iter(self._given_up))]


_drafts: Final = Drafts()
_GONE: Final = "This was edited on a page that has not saved it."
_OPEN: Final = "This is edited on another page too, which has not saved it."


def _is_open(page: str) -> bool:
    client = Client.instances.get(page)
    return client is not None and client.has_socket_connection


class Files:
    """The toolbar that opens, begins, saves and downloads the composed file.

    Parameters
    ----------
    site : Site
    document : Document
    path : Path or None
        Of the file; None as long as it has no name.
    replace_text : callable
        Gives the document another text, and shows it.
    is_unread : callable
        Returns whether the editor has a text that is not in the document.
    """

    def __init__(
        self,
        site: Site,
        document: Document,
        path: Path | None,
        replace_text: Callable[[str], object],
        is_unread: Callable[[], bool],
    ) -> None:
        self._site, self._document, self._path = site, document, path
        self._replace_text, self._is_unread = replace_text, is_unread
        self._began_as = document.text
        self._page = ui.context.client.id
        self._on_disk = document.text if path is not None else ""
        self._offered: Draft | None = None
        self._left: Draft | None = None  # offered, and not wanted on this page
        self._build()
        self._offer_drafts()
        ui.timer(_OTHERS_EVERY_S, self._offer_drafts)

    def _build(self) -> None:
        with ui.element("div").classes("compose-bar").props('role="toolbar" aria-label="File"'):
            self._state = ui.label().classes("compose-saved").props('role="status"')
            button("Save", "save", self.save)
            button("Save as", "save_as", self._ask_for_name)
            button("Download", "download", self._download)
            with button("Open", "folder_open"), ui.menu() as self._files:
                pass
            self._files.on("show", self._list_files)
            with button("New", "note_add"), ui.menu():
                for title, words, place in (
                    ("a sweep", "A master, a trainer and a space of parameters, to be filled in.",
                     address("/compose", new=NEW_SWEEP)),
                    ("an empty workflow", "Modules and groups of your own.", address("/compose")),
                ):  # fmt: skip
                    menu_line(title, words, lambda place=place: ui.navigate.to(place))
                ui.separator()
                for example in list_examples():
                    copy = functools.partial(self._copy_example, example)
                    menu_line(example.name, example.text, copy)
        with ui.element("div").classes("compose-bar").props('role="status"') as self._offer:
            self._offer_text = ui.label()
            button("Take the edits back", "restore", self._accept_draft)
            self._forget = button("Forget them", None, self._decline_draft)

    def _offer_drafts(self) -> None:
        """Offer the text of this file that another page has not saved."""
        document = self._document
        found = _drafts.of_others(document.file, self._page)
        if found is None or found.text == document.text or found == self._left:
            self._offered = None
        else:
            self._offered = found
            is_open = _is_open(found.page)
            self._offer_text.text = _OPEN if is_open else _GONE
            self._forget.text = "Leave them" if is_open else "Forget them"
        self._offer.set_visibility(self._offered is not None)

    def _accept_draft(self) -> None:
        taken = self._offered
        self._decline_draft()
        if taken is not None:
            self._replace_text(taken.text)

    def _decline_draft(self) -> None:
        self._left = self._offered
        if self._left is not None and not _is_open(self._left.page):
            _drafts.give_up(self._document.file, self._left.page)
        self._offer_drafts()

    def _keep(self) -> None:
        """Keep the unsaved text for pages that are built later; drop it once it is saved."""
        document = self._document
        is_new = self._path is None and document.text == self._began_as
        if not self.is_saved and not is_new:
            _drafts.keep(document.file, self._page, document.text)
        else:
            _drafts.drop(document.file, self._page)

    def show(self) -> None:
        """Show the name of the file, and whether there are edits to save."""
        is_saved = self.is_saved
        name = self._site.name_of(self._path) if self._path else "not saved yet"
        self._state.text = name if is_saved or not self._path else f"{name}, edited"
        self._keep()
        ui.run_javascript(f"diel.hasEdits = {'false' if is_saved else 'true'}")

    @property
    def is_saved(self) -> bool:
        """Whether the file on disk has the text of the page."""
        return self._path is not None and self._on_disk == self._document.text

    async def saved(self) -> Path | None:
        """Save the file if it has edits; return its path, None if it was not saved."""
        return self._path if self.is_saved or await self.save() else None

    async def save(self) -> bool:
        """Save the file, but ask first if it was changed meanwhile; return whether it was saved."""
        if self._path is None:
            return await self._ask_for_name()
        return await self._write(self._path, self._on_disk)

    async def _write(self, path: Path, known: str | None) -> bool:
        """Write to a path; ask first if it does not have the text ``known`` (None: no file)."""
        text = self._document.text
        is_written = False
        with errors_shown():
            if self._is_unread():
                raise PageError("the text is too long to be read here, and was not saved: undo it")
            if self._site.is_record(path):
                raise PageError(
                    f"{self._site.name_of(path)} is the record of a run: save it under another name"
                )
            there = await run.io_bound(_text_at, path)
            if there is not None and there not in (known, text):
                name = self._site.name_of(path)
                words = (
                    f"{name} is there already."
                    if known is None
                    else f"{name} was changed by somebody else since it was opened."
                )
                if not await confirmed(f"{words} Overwrite it?", "Overwrite"):
                    return False
            await run.io_bound(_write, path, text)
            self._on_disk = text
            if path != self._path:
                _drafts.drop(self._document.file, self._page)
                self._path = path
                self._document.file = path
                ui.navigate.history.replace(address("/compose", file=self._site.name_of(path)))
            self.show()
            ui.notify(f"saved {self._site.name_of(path)}", type="positive")
            is_written = True
        return is_written

    async def _ask_for_name(self) -> bool:
        name = self._document.get(("workflow", "name"))
        stem = name if isinstance(name, str) and name else "workflow"
        with asked("Save as, in the folder of this page") as dialog:
            field = ui.input("File name", value=f"{stem}.toml").props("outlined dense autofocus")
            field.on("keydown.enter", lambda: dialog.submit(field.value))
            with ui.row():
                ui.button("Save", on_click=lambda: dialog.submit(field.value)).props("no-caps")
                ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat no-caps")
        given = await answer_to(dialog)
        if not given:
            return False
        try:
            path = self._site.resolve(given if given.endswith(".toml") else f"{given}.toml")
        except PageError as error:
            tell(error)
            return False
        return await self._write(path, self._on_disk if path == self._path else None)

    def _download(self) -> None:
        ui.download.content(self._document.text, self._document.file.name, "application/toml")

    async def _list_files(self) -> None:
        found = await run.io_bound(self._site.workflow_files)
        self._files.clear()
        with self._files:
            for file in found or []:
                name = self._site.name_of(file)
                menu_entry(name, lambda name=name: ui.navigate.to(address("/compose", file=name)))
            if not found:
                menu_entry("no workflow file in this folder").props("disable")

    async def _copy_example(self, example: Example) -> None:
        """Copy an example and the files that it needs into the folder, and open the copy."""
        with errors_shown():
            remedy = "rename or remove it, or open it as it is"
            files = await run.io_bound(copy_example, example, self._site.folder, remedy)
            if files:  # None if the server ends
                ui.navigate.to(address("/compose", file=self._site.name_of(files[0])))


def _text_at(path: Path) -> str | None:
    """Return the text of a file; None if there is no file."""
    if not path.exists():
        return None
    try:
        return read_source(path)
    except SourceProblem as error:
        raise PageError(f"{path.name}: {error.problem.message}") from None


def _write(path: Path, text: str) -> None:
    """Write a file in one step, with the permissions that it has; EditRefused if that fails."""
    try:
        with replacing(path, sync=True) as file:
            if path.exists():
                os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
            file.write(text.encode())
    except (OSError, UnicodeEncodeError) as error:
        raise EditRefused(
            f"{path.name} cannot be written: {getattr(error, 'strerror', None) or error}",
            "save it under another name",
        ) from error
