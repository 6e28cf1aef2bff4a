"""The form of a list of tables that have kinds, such as the layers of a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nicegui import ui

from diel.gui.forms import FormField, safe
from diel.text import as_toml
from diel.workflow.source import Place

if TYPE_CHECKING:
    from diel.gui.compose import Composer
    from diel.gui.compose_form import Form
    from diel.gui.inspection import Variants

LAYER: Final = "layer"
"""The key, in a row of `describe_network`, for the index of the table that the row is about."""


def kind_of(key: str, value: Any) -> str | None:
    """Return the kind of a table, such as the type of a layer; None if it has none.

    Parameters
    ----------
    key : str
        The key of the table that has its kind.
    value : Any
        The table, or a text that is the kind alone.
    """
    kind = value.get(key) if isinstance(value, dict) else value
    return kind if isinstance(kind, str) else None


class TableList:
    """A list of tables that are added, moved and removed, each with the fields of its kind.

    Parameters
    ----------
    composer : Composer
    form : Form
        The form that the list is a part of.
    place : Place
        Of the list.
    field : FormField
    variants : Variants
        The kinds, and their fields.
    """

    def __init__(
        self, composer: Composer, form: Form, place: Place, field: FormField, variants: Variants
    ) -> None:
        self._composer, self._form = composer, form
        self._place, self._variants = place, variants
        self._item_name = field.path[-1].removesuffix("s")

    def build(self) -> None:
        """Build a row for each table, and a select that adds a table."""
        given = self._composer.document.get(self._place)
        tables = given if isinstance(given, list) else []
        for number, table in enumerate(tables):
            self._build_table(number, table, len(tables))
        with ui.element("div").classes("compose-new"):
            choice = ui.select([*self._variants.fields], label=f"Add a {self._item_name}")
            choice.props(f'outlined dense aria-label="Add a {safe(self._item_name)}"')
            choice.on_value_change(lambda event: self._add(event.value))

    def _build_table(self, number: int, table: Any, count: int) -> None:
        place = (*self._place, number)
        name = f"{self._item_name} {number + 1}"
        kind = kind_of(self._variants.key, table)
        with ui.element("div").classes("compose-table"):
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
            error = ui.label().classes("compose-error")
            self._form.add_row(place, error, lambda: self._show_facts(number, facts))
            fields = self._variants.fields.get(kind or "", [])
            self._form.build_fields(place, fields, ("activation",), "arguments", name)

    def _button(self, icon: str, name: str, is_possible: bool, press: Any) -> None:
        button = ui.button(icon=icon, on_click=press).props("flat dense size=sm")
        button.props(f'aria-label="{safe(name)}"')
        button.set_enabled(is_possible)

    def _show_facts(self, number: int, facts: ui.label) -> None:
        """Show the shape that a table's layers put out, and how many parameters they have."""
        composer = self._composer
        if composer.inspection.source != composer.document.text or composer.selected is None:
            return  # the last facts are shown until the text has been inspected
        network = composer.inspection.networks.get(composer.selected.name, [])
        facts.text = agreement_facts(network, number)

    # -- edits ------------------------------------------------------------------------------------

    def _add(self, kind: Any) -> None:
        if not isinstance(kind, str):
            return
        given = self._composer.document.get(self._place)
        table = {self._variants.key: kind}
        if isinstance(given, list) and given:
            self._composer.edit("insert", (*self._place, len(given)), table)
        else:
            self._composer.edit("set", self._place, [table])

    def _change_kind(self, number: int, kind: Any) -> None:
        """Give a table another kind; keep the arguments that the new kind has too."""
        place = (*self._place, number)
        table = self._composer.document.get(place)
        if not isinstance(kind, str) or kind == kind_of(self._variants.key, table):
            return
        known = {field.label for field in self._variants.fields.get(kind, [])}
        kept = {key: value for key, value in table.items() if key in known}
        self._composer.edit("set", place, {self._variants.key: kind, **kept})

    def _move(self, number: int, to: int) -> None:
        self._composer.edit("move", (*self._place, number), to)

    def _remove(self, number: int) -> None:
        given = self._composer.document.get(self._place)
        is_last = isinstance(given, list) and len(given) == 1
        self._composer.edit("remove", self._place if is_last else (*self._place, number))


def as_lines(value: Any) -> str:
    """Return a table, or a list that holds tables or lists, with a line for each of its entries.

    Empty for all other values, which can be read in their fields.
    """
    if isinstance(value, dict):
        return "\n".join(f"{key} = {as_toml(item)}" for key, item in value.items())
    if isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        return "\n".join(f"{number}  {as_toml(item)}" for number, item in enumerate(value, 1))
    return ""


def agreement_facts(network: list[dict[str, str]], number: int) -> str:
    """Return output shape and number of parameters of a table's layers; empty if not known."""
    rows = [row for row in network if row.get(LAYER) == str(number)]
    if not rows:
        return ""
    if rows[-1].get("problem"):
        return ""  # which is shown as a problem
    counts = [row["parameters"] for row in rows if row.get("parameters", "").isdecimal()]
    return f"→ {rows[-1].get('shape', '')}, {sum(map(int, counts)):,} parameters"
