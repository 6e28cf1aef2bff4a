"""The form of the page that composes: a field for each key of the chosen group or module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from nicegui import ui

from diel.errors import DielError, Problem
from diel.frozen import Frozen
from diel.gui.compose_tables import (
    LAYER,
    Edit,
    TableList,
    as_lines,
    build_new,
    build_space,
    facts_about_layers,
)
from diel.gui.forms import FormField, Variants, fields_of, kind_of, safe, shown, typed
from diel.gui.inspection import Inspection
from diel.gui.site import text_table
from diel.workflow.document import Document
from diel.workflow.fields import ONE_OF
from diel.workflow.load import place_of
from diel.workflow.model import Group, Module, TupleSpace, WorkflowTable
from diel.workflow.source import Place

_OPTIONS: Final = "options"
# Keys that are always shown; others are folded below "more keys" unless the file has them.
_COMMON: Final = {
    "module": ("name", "function", "library", "executable", "copies", "processes", "threads"),
    "group": ("name", "modules", "groups", "depends", "iterations", "until", "when"),
    "workflow": ("name",),
    "tuple_space": ("servers",),
}
_NAMED: Final = {"modules": "module", "groups": "group", "depends": "group"}
_POINTS_SHOWN: Final = 3
_FEW: Final = 6


class Selected(Frozen):
    """The group or the module that is chosen on the page."""

    kind: str
    name: str

    def place(self, document: Document) -> Place:
        """Return the place of the group or module in the file."""
        return (self.kind, document.index_of(self.kind, self.name))

    def is_in(self, document: Document) -> bool:
        """Whether the file still has the group or module."""
        try:
            document.index_of(self.kind, self.name)
        except DielError:
            return False
        return True


class _Entry(Frozen):
    """A field of the form: its place in the file, and the element that shows it."""

    place: Place
    field: FormField
    element: Any  # with an attribute `error`
    update: Callable[[], None]  # shows the value in the file


class Form:
    """The form of the chosen entry; rebuilt if it needs other fields, else updated in place.

    Parameters
    ----------
    document : Document
    edit : callable
    rename : callable
        Called with the new name of the group or module that is chosen.
    """

    def __init__(self, document: Document, edit: Edit, rename: Callable[[str], None]) -> None:
        self._document, self._edit, self._rename = document, edit, rename
        self._selected: Selected | None = None
        self._inspection = Inspection()
        self._shape: Any = None
        self._entries: list[_Entry] = []
        self._places: list[Place] = []
        self._shown: dict[Place, Any] = {}  # the file's values when fields were last set
        self._title: Any = None
        self._head: Any = None
        self._facts: Any = None
        self._box = ui.element("div").classes("compose-form").props('id="compose-form"')

    def show(
        self, selected: Selected | None, inspection: Inspection, problems: Sequence[Problem]
    ) -> None:
        """Show the chosen group or module, or else the file, with the problems of its fields."""
        self._selected, self._inspection = selected, inspection
        tables = self._tables()
        fields = [(place, field.label, field.kind) for place, listed in tables for field in listed]
        shape = fields, self._space_names(tables), self._kinds_of_tables(tables)
        if shape != self._shape:
            self._shape = shape
            self._places = [place for place, _ in tables]
            self._entries = []
            self._shown = {}
            self._box.clear()
            with self._box:
                self._build(tables)
        self._title.text = f'{selected.kind.title()} "{selected.name}"' if selected else "The file"
        for entry in self._entries:
            entry.update()
        self._tell(problems)
        self._show_facts()

    # -- which fields -----------------------------------------------------------------------------

    def _tables(self) -> list[tuple[Place, list[FormField]]]:
        selected, document = self._selected, self._document
        if selected is None:
            return [
                (("workflow",), list(fields_of(WorkflowTable))),
                (("tuple_space",), list(fields_of(TupleSpace))),
            ]
        place = selected.place(document)
        if selected.kind == "group":
            return [(place, list(fields_of(Group)))]
        fields = [(place, list(fields_of(Module, without=(_OPTIONS,))))]
        options = self._inspection.fields.get(selected.name)
        if options is not None:  # above the other keys: a module needs some of them
            fields.insert(0, ((*place, _OPTIONS), options))
        elif document.get((*place, "executable")) is None:
            given = document.get((*place, _OPTIONS))
            names = list(given) if isinstance(given, dict) else []
            fields.append(((*place, _OPTIONS), [_plain(name) for name in names]))
        return fields

    def _space_names(self, tables: list[tuple[Place, list[FormField]]]) -> list[Any]:
        return [
            (place, field.path, self._keys_at((*place, *field.path)))
            for place, fields in tables
            for field in fields
            if field.kind == "space"
        ]

    def _kinds_of_tables(self, tables: list[tuple[Place, list[FormField]]]) -> list[Any]:
        """Return the kinds of options that are tables, which decide which fields these have."""
        found: list[Any] = []
        for place, fields in tables:
            for field in fields:
                key, value = self._key_of(field), self._document.get((*place, *field.path))
                if field.kind == "variant":
                    found.append(kind_of(key, value))
                elif field.kind == "tables":
                    found += [kind_of(key, each) for each in value or ()]
        return found

    def _variants_of(self, field: FormField) -> Variants | None:
        name = self._selected.name if self._selected else ""
        return self._inspection.variants.get(name, {}).get(field.label)

    def _key_of(self, field: FormField) -> str:
        variants = self._variants_of(field)
        return variants.key if variants is not None else ""

    def _keys_at(self, place: Place) -> list[str]:
        table = self._document.get(place)
        return list(table) if isinstance(table, dict) else []

    # -- building ---------------------------------------------------------------------------------

    def _build(self, tables: list[tuple[Place, list[FormField]]]) -> None:
        selected = self._selected
        self._title = ui.label().props('role="heading" aria-level="2"')
        self._title.classes("compose-heading")
        self._head = ui.label().classes("compose-error")
        self._facts = ui.element("div").classes("compose-facts")
        for place, fields in tables:
            kind = str(place[0])
            is_options = place[-1] == _OPTIONS
            if is_options or len(tables) > 1:
                heading = "Options" if is_options else f"[{kind}]" if len(place) == 1 else "Keys"
                ui.label(heading).props('role="heading" aria-level="3"').classes("compose-subhead")
            common = () if is_options else _COMMON[kind]
            self.build_fields(place, fields, common, "options" if is_options else "keys")
            if is_options and (selected and selected.name) not in self._inspection.fields:
                build_new(self._document, self._edit, place, "Add an option", [], lambda name: "")

    def _is_ruled_out(self, place: Place) -> bool:
        """Whether the file has a key that excludes this one: one of what a module runs."""
        either = ONE_OF["module"]
        if place[-1] not in either:
            return False
        others = [key for key in either if key != place[-1]]
        return any(self._document.get((*place[:-1], key)) is not None for key in others)

    def build_fields(
        self,
        place: Place,
        fields: Sequence[FormField],
        common: Sequence[str],
        words: str,
        of: str = "",
    ) -> None:
        """Build the fields of a table; those that are neither given nor common are folded by group.

        Parameters
        ----------
        place : Place
            Of the table.
        fields : sequence of FormField
        common : sequence of str
            Labels of fields that are shown even where the table does not have them.
        words : str
            What the folded fields are called: ``keys``, ``options``.
        of : str, optional
            Which of several tables it is, for labels that would be the same otherwise.
        """
        rest = []
        for field in sorted(fields, key=lambda field: not _is_at_top(field)):
            is_given = self._document.get((*place, *field.path)) is not None
            is_common = field.label in common and not self._is_ruled_out((*place, *field.path))
            is_common |= field.is_first or field.kind in ("space", "module", "variant", "tables")
            if is_given or is_common or (words != "keys" and len(fields) <= _FEW):
                self._build_field(place, field, of)
            else:
                rest.append(field)
        for group in dict.fromkeys(field.group for field in rest):
            # Where there are groups, these are the headings, and not the tables of the file.
            folded = [
                field
                for field in rest
                if field.group == group and (not group or field.kind != "table")
            ]
            title = f"{group}, {len(folded)} more" if group else f"{len(folded)} more {words}"
            with ui.expansion(title).classes("compose-more").props("dense"):
                for field in folded:
                    self._build_field(place, field, of)

    def _build_field(self, place: Place, field: FormField, of: str = "") -> None:
        if field.kind == "table":
            ui.label(field.label).classes("compose-subhead")
            return
        variants = self._variants_of(field) if not of else None
        with ui.element("div").classes("compose-field"):
            with ui.element("div").classes("compose-label"):
                ui.label(field.label).classes("compose-key")
                if field.unit:
                    ui.label(field.unit).classes("compose-unit")
            if field.help:
                ui.label(field.help).classes("compose-help")
            if field.kind == "space":
                at = (*place, *field.path)
                build_space(self._document, self._edit, at, field, self._add_row)
                return
            if field.kind == "tables" and variants is not None:
                tables = TableList(self._document, self._edit, (*place, *field.path), variants)
                tables.build(self._add_row, self.build_fields, self._facts_about_table)
                return
            element = self._input((*place, *field.path), field)
            label = f"{field.label} of {of}" if of else field.label
            element.props(f'outlined dense aria-label="{safe(label)}"')
            element.classes("compose-input")
            lines = ui.label().classes("compose-lines")

        def update() -> None:
            self._update(entry)
            lines.text = (
                "" if field.kind == "variant" else as_lines(self._document.get(entry.place))
            )
            lines.set_visibility(bool(lines.text))

        entry = _Entry((*place, *field.path), field, element, update)
        self._entries.append(entry)
        if field.kind == "variant" and variants is not None:
            kind = kind_of(variants.key, self._document.get((*place, *field.path)))
            inside = variants.fields.get(kind or field.default.strip('"'), [])
            with ui.element("div").classes("compose-inside"):
                self.build_fields((*place, *field.path), inside, (), "options", field.label)

    def _add_row(self, place: Place, error: ui.label, update: Callable[[], None]) -> None:
        """Show problems of a place in a label, and call a function whenever the form is shown."""
        self._entries.append(_Entry(place, _plain(str(place[-1])), _RowError(error), update))

    def _input(self, place: Place, field: FormField) -> Any:
        def commit() -> None:
            for entry in self._entries:
                if entry.place == place and entry.element is element:
                    self._commit(entry)

        names_of, key = self._document.names, field.path[-1]
        if key in _NAMED and field.kind == "names":
            element: Any = ui.select(
                names_of(_NAMED[key]), multiple=True, value=[], on_change=commit
            ).props("use-chips")
        elif field.kind in ("choice", "module", "switch"):
            names = {
                "choice": list(field.choices),
                "module": names_of("module"),
                "switch": ["true", "false"],
            }[field.kind]
            element = ui.select(names, clearable=True, value=None, on_change=commit)
            element.props(f'placeholder="{safe(field.default)}"')
        else:
            element = ui.input(autocomplete=self._suggestions(place, field) or None)
            element.on("blur", commit).on("keydown.enter", commit)
            hint = f"default {field.default}" if field.default else field.accepts
            if "table" in field.holds:
                hint = f"{field.accepts}: name = value, ..."
            elif "list" in field.holds and field.default in ("", "[]"):
                hint = f"{field.accepts}: one, another, ..."
            element.props["placeholder"] = hint
        return element

    def _suggestions(self, place: Place, field: FormField) -> list[str]:
        """Return common values of a field; in a list of tables also parameters of the space."""
        document = self._document
        is_in_list = any(isinstance(step, int) for step in place[2:])
        names = [
            f"${name}"
            for module, fields in self._inspection.fields.items()
            for each in fields
            if each.kind == "space" and is_in_list and module in document.names("module")
            for name in self._keys_at(
                ("module", document.index_of("module", module), _OPTIONS, *each.path)
            )
        ]
        return [*field.choices, *dict.fromkeys(names)]

    # -- values -----------------------------------------------------------------------------------

    def _value(self, entry: _Entry) -> Any:
        """Return the value in the file as the element of a field shows it."""
        value = self._document.get(entry.place)
        if entry.field.kind == "names" and isinstance(entry.element, ui.select):
            return (
                [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
            )
        if entry.field.kind in ("choice", "module"):
            return value if isinstance(value, str) else None
        if entry.field.kind == "variant":
            value = kind_of(self._key_of(entry.field), value)
        if entry.field.kind == "switch":
            return None if value is None else "true" if value is True else "false"
        return shown(entry.field, value)

    def _update(self, entry: _Entry) -> None:
        value, element = self._value(entry), entry.element
        if isinstance(element, ui.select):
            names = self._options_of(entry, value)
            if element.options != names:
                element.set_options(names)
        if entry.place in self._shown and self._shown[entry.place] == value:
            return  # the user may be typing into it
        self._shown[entry.place] = value
        if element.value != value:
            element.value = value

    def _options_of(self, entry: _Entry, value: Any) -> list[str]:
        """Return the choices of a field: the valid ones, and invalid ones that the file has."""
        key = entry.field.path[-1]
        known = list(entry.field.choices)
        if entry.field.kind == "switch":
            known = ["true", "false"]
        elif entry.field.kind == "module":
            known = self._document.names("module")
        elif key in _NAMED:
            known = self._document.names(_NAMED[key])
        given = value if isinstance(value, list) else [value] if value is not None else []
        return list(dict.fromkeys([*known, *given]))

    def _commit(self, entry: _Entry) -> None:
        """Write the value of a field into the document, if it differs from the document's."""
        document, edit = self._document, self._edit
        raw = entry.element.value
        if raw == self._value(entry):
            return
        if entry.place == (*entry.place[:2], "name") and entry.place[0] in ("module", "group"):
            self._rename(str(raw or ""))
            self._reset(entry)
            return
        if isinstance(raw, list):
            value: Any = raw or None
        elif entry.field.kind == "switch":
            value = None if raw is None else raw == "true"
        else:
            value = typed(entry.field, str(raw or ""))
        around = entry.place[:-1]
        named = document.get(around) if around else None
        if value is None:
            edit(document.remove, entry.place)
        elif isinstance(named, str):  # a table that is given by its kind alone so far
            keys = [self._key_of(each.field) for each in self._entries if each.place == around]
            edit(document.set, around, {keys[0]: named, entry.place[-1]: value})
        else:
            edit(document.set, entry.place, value)
        self._reset(entry)

    def _reset(self, entry: _Entry) -> None:
        """Show the value in the file, which may differ from what was typed."""
        if entry in self._entries:
            self._shown.pop(entry.place, None)
            self._update(entry)

    def _tell(self, problems: Iterable[Problem]) -> None:
        """Show each problem at the field that it is about, or else above all fields."""
        entries = {entry.place: entry for entry in self._entries}
        texts: dict[Place, list[str]] = {}
        above: list[str] = []
        for problem in problems:
            place = place_of(problem.path)
            words = f"{problem.message} ({problem.remedy})" if problem.remedy else problem.message
            at = next((place[:n] for n in range(len(place), 0, -1) if place[:n] in entries), None)
            if at is not None:
                texts.setdefault(at, []).append(words)
            elif any(place[: len(table)] == table or place == table[:2] for table in self._places):
                above.append(f"{problem.path}: {words}")
        for place, entry in entries.items():
            entry.element.error = "; ".join(texts[place]) if place in texts else None
        if self._head is not None:
            self._head.text = "\n".join(above)
            self._head.set_visibility(bool(above))

    def _show_facts(self) -> None:
        """Show the size and first points of a module's sweep, and the layers of its network."""
        self._facts.clear()
        selected, inspection = self._selected, self._inspection
        if selected is None:
            self._show_boundaries()
        if selected is None or selected.kind != "module":
            return
        with self._facts:
            if selected.name in inspection.sweeps:
                ui.label(inspection.sweeps[selected.name]).classes("compose-size").props(
                    'role="status" aria-label="Size of the sweep"'
                )
                for point in inspection.points.get(selected.name, [])[:_POINTS_SHOWN]:
                    ui.label(point).classes("compose-help")
            rows = inspection.networks.get(selected.name)
            if rows:
                names = [key for key in dict.fromkeys(chain(*rows)) if key != LAYER]
                cells = [[row.get(name, "") for name in names] for row in rows]
                text_table(names, cells, "Layers").classes("compose-layers")
            if selected.name in inspection.failures:
                ui.label(inspection.failures[selected.name]).classes("compose-error")

    def _show_boundaries(self) -> None:
        """Show the boundaries of the file, which can be edited in its text only."""
        boundaries = self._document.get(("boundary",))
        with self._facts:
            for number, table in enumerate(boundaries if isinstance(boundaries, list) else [], 1):
                name = table.get("name") if isinstance(table, dict) else None
                ui.label(f"boundary {name or number}").classes("compose-subhead")
                ui.label(as_lines(table)).classes("compose-lines")
                ui.label("It is edited in the text.").classes("compose-help")

    def _facts_about_table(self, number: int) -> str | None:
        """Return facts about a table of layers; None until the text has been inspected."""
        inspection = self._inspection
        if inspection.source != self._document.text or self._selected is None:
            return None
        return facts_about_layers(inspection.networks.get(self._selected.name, []), number)


class _RowError:
    """A label below a row of the form that shows the problems of that row."""

    def __init__(self, label: ui.label) -> None:
        self._label = label

    @property
    def error(self) -> str | None:
        """The problems that are shown, None if there are none."""
        return self._label.text or None

    @error.setter
    def error(self, words: str | None) -> None:
        self._label.text = words or ""


def options_that_name(document: Document, inspection: Inspection, module: str) -> Iterator[Place]:
    """Yield the places of options whose value, given or by default, is a module's name."""
    for name in document.names("module"):
        index = document.index_of("module", name)
        for field in inspection.fields.get(name, ()):
            if field.kind == "module":
                place: Place = ("module", index, _OPTIONS, *field.path)
                given = document.get(place)
                if (given if isinstance(given, str) else field.default.strip('"')) == module:
                    yield place


def _is_at_top(field: FormField) -> bool:
    return field.is_first and len(field.path) == 1


def _plain(name: str) -> FormField:
    return FormField((name,), "value", "", "anything that TOML can write", "", "", (), False)
