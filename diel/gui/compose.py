"""The page that composes a workflow: its graph, forms and text, side by side and in step.

::

    Composer                 the page of one browser
      document               the text, and every edit of it
      inspection             what `diel check` finds, from another process after the last edit
      graph, form, editor    three views of the document: an edit in one shows in the others
      files, launcher        save the document, and start it

Its parts get the document, and `Composer.edit` to change it; none of them knows the page.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nicegui import background_tasks, run, ui
from nicegui.events import GenericEventArguments, ValueChangeEventArguments

from diel.errors import PROBLEMS_SHOWN, EditRefused, PageError, Problem
from diel.gui.compose_files import NEW_FILE, NEW_SWEEP, Files
from diel.gui.compose_form import Form, Selected, options_that_name
from diel.gui.compose_launch import Launcher
from diel.gui.editor import TextEditor
from diel.gui.inspection import Inspection
from diel.gui.inspector import Inspector, code_state
from diel.gui.site import (
    MOST_BOXES,
    Site,
    button,
    errors_shown,
    frame,
    menu_entry,
    menu_line,
    page,
    tell,
)
from diel.loading.reporter import first_answer
from diel.text import as_tables
from diel.workflow.document import Document
from diel.workflow.drawing import drawing_of_draft
from diel.workflow.load import draft_of_text, place_of
from diel.workflow.source import SourceProblem, read_source
from diel.workflow.svg import STYLE, draw_svg

_LOOK_EVERY_S: Final = 0.2
_CODE_EVERY_S: Final = 2.0
_QUIET_S: Final = 0.3  # after the last edit, before options are checked
_STILL_S: Final = 1.0  # after the last key, before lines of the editor are marked
_ONE_STEP_S: Final = 2.0  # keys typed within it are one step back
_EMPTY: Final = "# A new workflow: add a module, then a group that runs it.\n"
_SWEEP: Final = """\
# A sweep: the master chooses points of its space, and copies of the trainer try them.
# Say what the trainer trains on, and what the master is to try.

"""
LONGEST_TEXT: Final = 2**20
"""Letters of the longest text that the page edits: a longer one would keep it busy."""
_MOST_ENTRIES: Final = 100
_THEMES: Final[Mapping[bool, Any]] = {False: "eclipse", True: "githubDark"}
"""Themes of the editor, light and dark, whose colours have enough contrast with the background."""
_OWN_MODULES: Final = (
    ("function of your own", "Python, called on each rank with a context",
     {"name": "worker", "function": "./worker.py:run"}),
    ("program", "Any executable, with its arguments",
     {"name": "program", "executable": ["./program"]}),
)  # fmt: skip
"""Modules that can be added beside those that packages offer."""


def add_pages(site: Site) -> None:
    """Add the page that composes a workflow."""

    @page("/compose")
    async def compose(file: str = "", new: str = "") -> None:
        path = site.resolve(file) if file else None
        if path is not None and path.suffix != ".toml":
            raise PageError(f"{file} is no workflow file: those end in .toml")
        sweep = await run.io_bound(first_answer, lambda each: each.new_sweep()) or {}
        text = await run.io_bound(_begin_with, path, sweep if new == NEW_SWEEP else {}) or ""
        title = site.name_of(path) if path is not None else "A new workflow"
        with frame(site, title):
            composer = Composer(site, path, text, sweep.get("module", ()))
            await run.io_bound(composer.document.prepare)
            if path is None and new == NEW_SWEEP and (names := composer.document.names("module")):
                composer.selected = Selected("module", names[-1])  # it lacks what to train on
            composer.build()


def _begin_with(path: Path | None, tables: Mapping[str, Any]) -> str:
    """Return the text of a file, or the first text of a new one: with tables, if there are any."""
    if path is None:
        return f"{_SWEEP}{as_tables(tables)}" if tables else _EMPTY
    try:
        text = read_source(path)
    except SourceProblem as error:
        raise PageError(f"{path.name}: {error.problem.message}") from None
    if len(text) > LONGEST_TEXT:
        raise PageError(f"{path.name} {_too_long(len(text))}")
    return text


def _too_long(letters: int) -> str:
    return (
        f"has {letters:,} letters, and the page edits texts of {LONGEST_TEXT:,} at most: keep data "
        "in files of their own, and name these in the options"
    )


class Composer:
    """The page of one browser: the document that is edited, and its views.

    Parameters
    ----------
    site : Site
    path : Path or None
        The file; None as long as it has no name.
    text : str
        The text of the file.
    of_sweeps : sequence of mapping
        Modules of a sweep, which can be added.
    """

    def __init__(
        self, site: Site, path: Path | None, text: str, of_sweeps: Sequence[Mapping[str, Any]]
    ) -> None:
        self._site, self._path, self._of_sweeps = site, path, of_sweeps
        self.document = Document(text, path or site.folder / NEW_FILE)
        self.inspection = Inspection()
        self.selected: Selected | None = None
        self._edited_s = 0.0
        self._typed_s = -_ONE_STEP_S
        self._inspector = Inspector()
        self._asked: Any = None  # the text, file and code of the last inspection
        self._times_asked = 0
        self._code: Any = None
        self._code_s = -_CODE_EVERY_S
        self._is_shown = False
        self._unread = 0  # letters in the editor, if they are too many to be read
        self._marks: Any = ([], {})  # what the editor shows: decorations and tooltips
        self._marked: list[Problem] | None = None  # problems whose lines are still to be marked

    # -- building ---------------------------------------------------------------------------------

    def build(self) -> None:
        """Build the page."""
        # Edits run in the context of this element: they may delete the element that began them,
        # as forms are built anew.
        self.root = ui.element("div")
        with self.root:
            self._build()

    def _build(self) -> None:
        replace_text = functools.partial(self.edit, self.document.replace_text)
        self._files = Files(
            self._site, self.document, self._path, replace_text, lambda: self._unread > 0
        )
        with ui.element("div").classes("compose-panes"):
            with ui.element("section").classes("compose-pane").props('aria-label="Graph"'):
                self._build_edits()
                self.graph = ui.html(sanitize=False).classes("compose-graph")
                self.graph.props('id="compose-graph"')
                self.legend = ui.label().classes("compose-hint")
            with ui.element("section").classes("compose-pane").props('aria-label="Form"'):
                self._form = Form(self.document, self.edit, self._rename)
            with ui.element("section").classes("compose-pane").props('aria-label="Text"'):
                self.editor = TextEditor(
                    self.document.text,
                    language="TOML",
                    on_change=self._take_typed,
                    theme=_THEMES[False],
                    line_wrapping=True,
                ).classes("compose-editor")
                self.problems = ui.element("ul").classes("compose-problems")
                self.problems.props('aria-live="polite" aria-label="Problems"')
        self._launcher = Launcher(self._site, self.document, self._files.saved, self._check_again)
        ui.add_head_html(f"<style>{STYLE}</style>")
        ui.on("diel_choose", self._choose)
        ui.on("diel_key", self._take_key)
        ui.on("diel_theme", lambda event: self._take_theme(event.args is True))
        ui.timer(_LOOK_EVERY_S, self._look)
        ui.context.client.on_delete(self._inspector.stop)
        ui.run_javascript("diel.keepFocus(); diel.followTheme(); diel.nameEditor()")
        ui.on("diel_too_long", self._tell_too_long)
        ui.run_javascript(f"diel.limitEditor({LONGEST_TEXT})")
        self.show()

    def _build_edits(self) -> None:
        with ui.element("div").classes("compose-bar").props('role="toolbar" aria-label="Edit"'):
            with button("Add module", "add_box"), ui.menu():
                self._list_modules()
            button("Add group", "library_add", self._add_group)
            self._connect = _Menu("Runs before", "arrow_downward")
            self._inside = _Menu("Put inside", "move_down")
            self._out = button("Take out", "move_up", self._take_out)
            self._remove = button("Remove", "delete", self._remove_selected)
            self._undo = button("Undo", "undo", self.undo)
            self._redo = button("Redo", "redo", lambda: self.edit(self.document.redo))
            button("Check again", "refresh", self._check_again)

    # -- showing ----------------------------------------------------------------------------------

    def show(self, *, keep_editor: bool = False) -> None:
        """Show the current document in all views."""
        self._is_shown = True
        draft = self.document.draft
        is_known = self.inspection.source == self.document.text and not self._unread
        problems = self.inspection.problems if is_known else self.document.problems()
        if not keep_editor:
            self.editor.show(self.document.text)
        if self.selected is not None and not self.selected.is_in(self.document):
            self.selected = None
        boxes = draft.boxes
        if boxes > MOST_BOXES:
            self.graph.content = (
                f"<p>{boxes:,} modules and groups are too many for a picture here.</p>"
            )
        elif draft.document or not self.document.text.strip():
            drawing = drawing_of_draft(draft)
            picture = draw_svg(drawing, on_page=True, classes=self._classes(problems))
            if picture != self.graph.content:
                self.graph.content = picture
        self._show_edits()
        remarks = self.inspection.remarks if is_known else []
        self._form.show(self.selected, self.inspection, [*problems, *remarks])
        self._show_problems(problems, is_known=is_known)
        self._launcher.show(self.inspection, is_known=is_known)
        self._files.show()

    def _classes(self, problems: list[Problem]) -> dict[tuple[str, str], str]:
        """Return the classes of groups and modules with problems, and of what is selected."""
        document = self.document
        wrong: dict[str, set[str]] = {"module": set(), "group": set()}
        for problem in problems:
            place = place_of(problem.path)
            if len(place) > 1 and place[0] in wrong:
                name = document.get((*place[:2], "name"))
                wrong[str(place[0])].add(str(name))
        found: dict[tuple[str, str], str] = {}
        groups = document.get(("group",))
        entries = groups if isinstance(groups, list) else []
        for entry in (entry for entry in entries if isinstance(entry, dict)):
            name, inside = str(entry.get("name")), entry.get("modules")
            found[name, ""] = self._class_of("group", name, wrong)
            for module in inside if isinstance(inside, list) else []:
                found[name, str(module)] = self._class_of("module", str(module), wrong)
        for module in wrong["module"] | {self.selected.name if self.selected else ""}:
            found["", module] = self._class_of("module", module, wrong)
        return found

    def _class_of(self, kind: str, name: str, wrong: dict[str, set[str]]) -> str:
        words = ["problem"] if name in wrong[kind] else []
        if self.selected is not None and (kind, name) == (self.selected.kind, self.selected.name):
            words.append("selected")
        return " ".join(words)

    def _show_problems(self, problems: list[Problem], *, is_known: bool) -> None:
        self._marked = problems
        self._mark_lines()
        self.problems.clear()
        with self.problems:
            if self._unread:
                with ui.element("li").classes("compose-problem"):
                    ui.label(
                        f"The text {_too_long(self._unread)}. It has not been read, and cannot be "
                        "saved here: undo it."
                    )
                return
            for problem in problems[:PROBLEMS_SHOWN]:
                with ui.element("li").classes("compose-problem"):
                    place = f"line {problem.line}" if problem.line else "file"
                    button(place, None, lambda problem=problem: self._go_to(problem))
                    ui.label(_words(problem))
            more = len(problems) - PROBLEMS_SHOWN
            if more > 0:
                with ui.element("li").classes("compose-problem"):
                    ui.label(f"and {more:,} more")
            remarks = self.inspection.remarks[:PROBLEMS_SHOWN] if is_known else []
            of_data = [remark for remark in remarks if ".options" in remark.path]
            for remark in remarks:
                with ui.element("li").classes("compose-problem" if remark in of_data else ""):
                    ui.label(_words(remark))
            if not problems and not of_data:
                with ui.element("li").classes("compose-fine" if is_known else "compose-help"):
                    ui.label("No problem found." if is_known else "Checking ...")

    def _mark_lines(self) -> None:
        """Mark the lines of problems in the editor, once the user has stopped typing."""
        problems = self._marked
        if problems is None or time.monotonic() - self._typed_s < _STILL_S:
            return
        self._marked = None
        lines = self.document.text.count("\n") + 1
        marks: list[dict[str, Any]] = [
            {"kind": "line", "line": line, "class": "compose-wrong"}
            for line in sorted({each.line for each in problems[:PROBLEMS_SHOWN] if each.line})
            if line <= lines
        ]
        tooltips: dict[int, str] = {}
        for problem in problems[:PROBLEMS_SHOWN]:
            if problem.line:
                words = _words(problem)
                before = tooltips.get(problem.line)
                tooltips[problem.line] = f"{before}; {words}" if before else words
        if (marks, tooltips) != self._marks:
            self._marks = marks, tooltips
            # Not by its properties: setting one sends the server's text too, over newer typing.
            self.editor.run_method("setDecorations", marks)
            self.editor.run_method("setLineTooltips", tooltips)

    def _show_edits(self) -> None:
        selected = self.selected
        document, groups = self.document, self.document.names("group")
        is_group = selected is not None and selected.kind == "group"
        name = selected.name if selected is not None else ""
        other_groups = [group for group in groups if group != name]
        if is_group:
            _fill(self._connect, other_groups, functools.partial(self.edit, document.connect, name))
            _fill(
                self._inside, other_groups, functools.partial(self.edit, document.put_inside, name)
            )
            with self._inside.menu:
                menu_entry("a new group", lambda: self._put_in_new(name))
            self.legend.text = f'Group "{name}" is chosen.'
        else:
            _fill(self._connect, [], lambda other: None)
            _fill(self._inside, groups if selected else [], self._put_module)
            self.legend.text = (
                f'Module "{name}" is chosen.'
                if selected
                else "Choose a group or a module with the mouse, or with Tab and Enter."
            )
        parents = {
            child
            for index in range(len(groups))
            for child in document.get(("group", index, "groups")) or []
        }
        self._out.set_enabled(is_group and name in parents)
        self._remove.set_enabled(selected is not None)
        self._undo.set_enabled(document.can_undo or self._unread > 0)
        self._redo.set_enabled(document.can_redo)

    # -- edits ------------------------------------------------------------------------------------

    def edit(self, change: Callable[..., object], *arguments: Any) -> bool:
        """Call a method of the document that edits it, and show it; return whether it changed."""
        before = self.document.text
        with self.root:
            with errors_shown():
                change(*arguments)
                if len(self.document.text) > LONGEST_TEXT:
                    letters = len(self.document.text)
                    self.document.undo()
                    raise EditRefused(f"the text then {_too_long(letters)}")
            self._edited_s, self._typed_s = time.monotonic(), -_ONE_STEP_S
            self._unread = 0
            self.show()
        return self.document.text != before

    def undo(self) -> None:
        """Undo the last edit, or remove a text from the editor that is too long to be read."""
        if self._unread:
            self._check_again()
        else:
            self.edit(self.document.undo)

    def _list_modules(self) -> None:
        """Build the menu of modules that can be added."""
        for title, words, table in _OWN_MODULES:
            menu_line(title, words, functools.partial(self._add_module, table))
        for each in self._of_sweeps:
            words = f"{each['function']}, which comes with diel"
            menu_line(f"sweep {each['name']}", words, functools.partial(self._add_module, each))

    def _add_module(self, table: Mapping[str, Any]) -> None:
        """Add a module with these keys, to the chosen group if it can have one."""
        with errors_shown():
            keys = dict(table)
            name = self.document.free_name("module", keys.pop("name"))
            group = ""
            if self.selected is not None and self.selected.kind == "group":
                index = self.document.index_of("group", self.selected.name)
                if not self.document.get(("group", index, "groups")):
                    group = self.selected.name
            if self.edit(self.document.add_module, name, keys, group):
                self.choose(Selected("module", name))

    def _add_group(self) -> None:
        """Add a group, with all modules in it that are in no group yet, and choose it."""
        with errors_shown():
            name = self.document.free_name("group", "group")
            used = {
                module
                for index in range(len(self.document.names("group")))
                for module in self.document.get(("group", index, "modules")) or []
            }
            modules = [module for module in self.document.names("module") if module not in used]
            if self.edit(self.document.add_group, name, modules):
                self.choose(Selected("group", name))

    def _put_module(self, group: str) -> None:
        if self.selected is not None:
            self.edit(self.document.add_to_group, self.selected.name, group)

    def _put_in_new(self, name: str) -> None:
        with errors_shown():
            outer = self.document.free_name("group", "together")
            if self.edit(self.document.put_in_new_group, [name], outer):
                self.choose(Selected("group", outer))

    def _take_out(self) -> None:
        if self.selected is not None:
            self.edit(self.document.take_out, self.selected.name)

    def _remove_selected(self) -> None:
        if self.selected is not None:
            is_group = self.selected.kind == "group"
            remove = self.document.remove_group if is_group else self.document.remove_module
            self.edit(remove, self.selected.name)

    def _rename(self, new: str) -> None:
        """Give the chosen group or module another name, everywhere."""
        selected, document = self.selected, self.document
        if selected is None:
            return

        def rename() -> None:
            if selected.kind == "module":
                named = [*options_that_name(document, self.inspection, selected.name)]
                document.rename_module(selected.name, new, named)
            else:
                document.rename_group(selected.name, new)
            self.selected = Selected(selected.kind, new)

        self.edit(rename)

    def _take_typed(self, event: ValueChangeEventArguments[str]) -> None:
        text = event.value or ""
        self._unread = len(text) if len(text) > LONGEST_TEXT else 0
        if text == self.document.text or self._unread:
            self._is_shown = False
            return
        now_s = time.monotonic()
        self.document.replace_text(text, continues=now_s - self._typed_s < _ONE_STEP_S)
        self._edited_s = self._typed_s = now_s
        # Shown once the user stops typing: an update of the editor would restore an older text.
        self._is_shown = False

    def _tell_too_long(self, event: GenericEventArguments) -> None:
        if isinstance(event.args, int):
            tell(PageError(f"Nothing was pasted: the text {_too_long(event.args)}"))

    async def _take_key(self, event: GenericEventArguments) -> None:
        actions: dict[str, Callable[[], Any]] = {
            "remove": self._remove_selected,
            "undo": self.undo,
            "redo": lambda: self.edit(self.document.redo),
            "save": self._files.save,
        }
        if isinstance(event.args, str) and event.args in actions:
            result = actions[event.args]()
            if inspect.isawaitable(result):
                await result

    def _take_theme(self, is_dark: bool) -> None:
        self.editor.theme = _THEMES[is_dark]

    # -- choosing ---------------------------------------------------------------------------------

    def choose(self, selected: Selected | None) -> None:
        """Choose a group or a module; None for the file as a whole."""
        self.selected = selected
        with self.root:
            self.show()

    def _choose(self, event: GenericEventArguments) -> None:
        given = event.args if isinstance(event.args, dict) else {}
        module, group = given.get("module"), given.get("group")
        if isinstance(module, str) and module:
            self.choose(Selected("module", module))
        elif isinstance(group, str) and group:
            self.choose(Selected("group", group))
        else:
            self.choose(None)

    def _go_to(self, problem: Problem) -> None:
        """Show where a problem is: its line, and the form of its table."""
        if problem.line:
            self.editor.reveal_line(problem.line)
        place = place_of(problem.path)
        name = self.document.get((*place[:2], "name")) if len(place) > 1 else None
        if place[:1] in (("module",), ("group",)) and isinstance(name, str):
            self.choose(Selected(str(place[0]), name))
        elif place[:1] in (("workflow",), ("tuple_space",)):
            self.choose(None)

    # -- inspecting -------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Show and inspect the text, once it has not been edited for a moment."""
        if time.monotonic() - self._edited_s < _QUIET_S:
            return
        if not self._is_shown:
            await run.io_bound(self.document.prepare)
            self.show(keep_editor=True)
        self._mark_lines()
        now_s = time.monotonic()
        if now_s - self._code_s >= _CODE_EVERY_S:
            self._code_s = now_s
            self._code = await run.io_bound(code_state, self.document.draft)
        document = self.document
        asked = document.text, document.file, document.given, self._code, self._times_asked
        if asked != self._asked:
            self._asked = asked
            self._inspector.stop()
            background_tasks.create(self._inspect(asked))

    async def _inspect(self, asked: tuple[Any, ...]) -> None:
        draft = await run.io_bound(draft_of_text, *asked[:2], given=asked[2])
        if draft is None or self._asked != asked:
            return
        found = await self._inspector.inspect(draft)
        if found is not None and (self.document.text, self.document.given) == (asked[0], asked[2]):
            self.inspection = found
            self._is_shown = False  # shown at the next look, if the user does not type then

    def _check_again(self) -> None:
        """Inspect the text again, whether or not anything has changed."""
        self._times_asked += 1
        self.inspection.source = None
        self._unread = 0
        self.show()


def _words(problem: Problem) -> str:
    where = f"{problem.path}: " if problem.path else ""
    remedy = f" ({problem.remedy})" if problem.remedy else ""
    return f"{where}{problem.message}{remedy}"


class _Menu:
    """A button with a menu that is filled anew."""

    def __init__(self, text: str, icon: str) -> None:
        self.button = button(text, icon)
        with self.button:
            self.menu = ui.menu()


def _fill(menu: _Menu, names: list[str], action: Callable[[str], Any]) -> None:
    menu.menu.clear()
    with menu.menu:
        if len(names) > _MOST_ENTRIES:
            menu_entry(f"and {len(names) - _MOST_ENTRIES:,} more, in the text").props("disable")
        for name in names[:_MOST_ENTRIES]:
            menu_entry(name, lambda name=name: action(name))
    menu.button.set_enabled(bool(names))
