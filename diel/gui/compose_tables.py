"""Rows of a form for options that are tables: search spaces, and lists such as layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from nicegui import ui

from diel.errors import DielError
from diel.gui.forms import (
    PARAMETER_KINDS,
    FormField,
    Parameter,
    Variants,
    kind_of,
    parameter_of,
    safe,
    value_of,
)
from diel.text import as_toml
from diel.workflow.document import Document
from diel.workflow.source import Place

LAYER: Final = "layer"
"""The key, in a row of `describe_network`, for the index of the table that the row is about."""


Edit: TypeAlias = Callable[..., bool]
"""Calls a method of the document with arguments, and shows the document or the error."""
AddRow: TypeAlias = "Callable[[Place, ui.label, Callable[[], None]], None]"
"""Shows problems of a place in a label, and calls a function whenever the form is shown."""


# -- search spaces --------------------------------------------------------------------------------


def build_space(
    document: Document, edit: Edit, place: Place, field: FormField, add_row: AddRow
) -> None:
    """Build a row for each parameter of a search space, and a select that adds a parameter."""
    table = document.get(place)
    names = list(table) if isinstance(table, dict) else []
    for name in names:
        _build_parameter(document, edit, (*place, name), add_row, field.notes.get(name, ""))

    def start(name: str) -> Any:
        return field.starts.get(name, [])

    known = [name for name in field.choices if name not in names]
    build_new(document, edit, place, "Add a parameter", known, start)


def build_new(
    document: Document,
    edit: Edit,
    place: Place,
    words: str,
    known: list[str],
    start: Callable[[str], Any],
) -> None:
    """Build the select that adds a key to a table: a known key, or any key that is typed."""

    def add() -> None:
        name = str(element.value or "").strip()
        if name and document.get((*place, name)) is None:
            edit(document.set, (*place, name), start(name))

    element = ui.select(
        known, label=f"{words}: choose it, or type its name and Enter", with_input=True,
        new_value_mode="add-unique", on_change=add,
    )  # fmt: skip
    element.props(f'outlined dense hide-dropdown-icon aria-label="{words}"')
    element.classes("compose-new")


def _build_parameter(
    document: Document, edit: Edit, place: Place, add_row: AddRow, note: str
) -> None:
    name = str(place[-1])
    parameter = parameter_of(document.get(place))
    with ui.element("div").classes("compose-parameter"):
        ui.label(name).classes("compose-key")
        kind = ui.select(list(PARAMETER_KINDS), value=parameter.kind)
        kind.props(f'outlined dense aria-label="kind of {safe(name)}"')
        box = ui.element("div").classes("compose-numbers")
        remove = ui.button(icon="delete", on_click=lambda: edit(document.remove, place))
        remove.props(f'flat dense aria-label="remove {safe(name)}"')
    if note:
        ui.label(note).classes("compose-help")
    error = ui.label().classes("compose-error")
    texts: dict[str, Any] = {}

    def typed_parameter() -> Parameter:
        given = {key: str(element.value or "") for key, element in texts.items()}
        return Parameter(str(kind.value), given, parameter.condition)

    def fill(texts_of: Any) -> None:
        box.clear()
        texts.clear()
        with box:
            for key in PARAMETER_KINDS[str(kind.value)]:
                element = ui.input(key, value=texts_of.get(key, ""))
                element.props(f'outlined dense aria-label="{key} of {safe(name)}"')
                element.on("blur", commit).on("keydown.enter", commit)
                texts[key] = element

    def commit() -> None:
        try:
            value = value_of(typed_parameter())
        except DielError as problem:
            error.text = str(problem)
            return
        error.text = ""
        if value != document.get(place):
            edit(document.set, place, value)

    def update() -> None:
        value = document.get(place)
        try:
            is_shown = value_of(typed_parameter()) == value
        except DielError:  # the user has not typed all of it yet
            return
        if not is_shown:
            kind.value = parameter_of(value).kind
            fill(parameter_of(value).texts)

    kind.on_value_change(lambda: fill({key: e.value for key, e in texts.items()}))
    fill(parameter.texts)
    add_row(place, error, update)


# -- lists of tables ------------------------------------------------------------------------------


class TableList:
    """A list of tables that are added, moved and removed, each with the fields of its kind.

    Parameters
    ----------
    document : Document
    edit : callable
    place : Place
        Of the list.
    variants : Variants
        The kinds, and their fields.
    """

    def __init__(self, document: Document, edit: Edit, place: Place, variants: Variants) -> None:
        self._document, self._edit = document, edit
        self._place, self._variants = place, variants
        self._item_name = str(place[-1]).removesuffix("s")

    def build(
        self,
        add_row: AddRow,
        build_fields: Callable[..., None],
        facts_of: Callable[[int], str | None],
    ) -> None:
        """Build a row for each table, and a select that adds a table.

        Parameters
        ----------
        add_row : callable
        build_fields : callable
            Builds the fields of a table, as `diel.gui.compose_form.Form.build_fields`.
        facts_of : callable
            Returns the facts about the table with a number; None if they are not known yet.
        """
        tables = self._document.get(self._place)
        tables = tables if isinstance(tables, list) else []
        for number, table in enumerate(tables):
            with ui.element("div").classes("compose-table"):
                facts = self._build_head(number, table, len(tables))
                error = ui.label().classes("compose-error")

                def update(number: int = number, facts: ui.label = facts) -> None:
                    text = facts_of(number)
                    facts.text = facts.text if text is None else text

                place = (*self._place, number)
                add_row(place, error, update)
                fields = self._variants.fields.get(kind_of(self._variants.key, table) or "", [])
                name = f"{self._item_name} {number + 1}"
                build_fields(place, fields, ("activation",), "arguments", name)
        with ui.element("div").classes("compose-new"):
            choice = ui.select([*self._variants.fields], label=f"Add a {self._item_name}")
            choice.props(f'outlined dense aria-label="Add a {safe(self._item_name)}"')
            choice.on_value_change(lambda event: self._add(event.value))

    def _build_head(self, number: int, table: Any, count: int) -> ui.label:
        """Build the number, kind and buttons of a table; return the label for facts about it."""
        name = f"{self._item_name} {number + 1}"
        kind = kind_of(self._variants.key, table)
        with ui.element("div").classes("compose-table-head"):
            ui.label(str(number + 1)).classes("compose-unit")
            options = list(dict.fromkeys([*self._variants.fields, *([kind] if kind else [])]))
            choice = ui.select(options, value=kind)
            choice.props(f'outlined dense aria-label="kind of {safe(name)}"')
            choice.on_value_change(lambda event: self._change_kind(number, event.value))
            facts = ui.label().classes("compose-help")
            self._button("arrow_upward", f"move {name} up", number > 0,
                         lambda: self._move(number, number - 1))  # fmt: skip
            self._button("arrow_downward", f"move {name} down", number < count - 1,
                         lambda: self._move(number, number + 1))  # fmt: skip
            self._button("delete", f"remove {name}", True, lambda: self._remove(number))
        return facts

    def _button(self, icon: str, name: str, is_possible: bool, press: Any) -> None:
        button = ui.button(icon=icon, on_click=press).props("flat dense size=sm")
        button.props(f'aria-label="{safe(name)}"')
        button.set_enabled(is_possible)

    def _add(self, kind: Any) -> None:
        if not isinstance(kind, str):
            return
        given = self._document.get(self._place)
        table = {self._variants.key: kind}
        if isinstance(given, list) and given:
            self._edit(self._document.insert, (*self._place, len(given)), table)
        else:
            self._edit(self._document.set, self._place, [table])

    def _change_kind(self, number: int, kind: Any) -> None:
        """Give a table another kind; keep the arguments that the new kind has too."""
        place = (*self._place, number)
        table = self._document.get(place)
        if not isinstance(kind, str) or kind == kind_of(self._variants.key, table):
            return
        known = {field.label for field in self._variants.fields.get(kind, [])}
        kept = {key: value for key, value in table.items() if key in known}
        self._edit(self._document.set, place, {self._variants.key: kind, **kept})

    def _move(self, number: int, to: int) -> None:
        self._edit(self._document.move, (*self._place, number), to)

    def _remove(self, number: int) -> None:
        given = self._document.get(self._place)
        is_last = isinstance(given, list) and len(given) == 1
        place = self._place if is_last else (*self._place, number)
        self._edit(self._document.remove, place)


def facts_about_layers(network: Sequence[dict[str, str]], number: int) -> str:
    """Return output shape and number of parameters of a table's layers; empty if not known."""
    rows = [row for row in network if row.get(LAYER) == str(number)]
    if not rows or rows[-1].get("problem"):  # which is shown as a problem
        return ""
    counts = [row["parameters"] for row in rows if row.get("parameters", "").isdecimal()]
    return f"→ {rows[-1].get('shape', '')}, {sum(map(int, counts)):,} parameters"


def as_lines(value: Any) -> str:
    """Return a table, or a list that holds tables or lists, with a line for each of its entries.

    Empty for all other values, which can be read in their fields.
    """
    if isinstance(value, dict):
        return "\n".join(f"{key} = {as_toml(item)}" for key, item in value.items())
    if isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        return "\n".join(f"{number}  {as_toml(item)}" for number, item in enumerate(value, 1))
    return ""
