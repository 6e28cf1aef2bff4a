"""What a browser may ask of a sweep: a point, a pause, an end of a trial, more trials.

The same function answers as `diel sweep RUN_DIR --enqueue ...`, so that what is refused there is
refused here, in the same words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from nicegui import ui

from diel.errors import DielError
from diel.gui.cards import heading
from diel.gui.processes import wait_for
from diel.loading.sweeps import WatchedSweep, steer_sweep
from diel.run.directory import RunDirectory

_ANSWER_S: Final = 10.0
_MOST_DIGITS: Final = 12


class SteeringPanel:
    """Buttons that ask a sweep for something, and what it has answered.

    Parameters
    ----------
    directory : RunDirectory
    watched : callable
        Returns the sweep that the page shows; None as long as it has not begun.
    """

    def __init__(self, directory: RunDirectory, watched: Callable[[], WatchedSweep | None]) -> None:
        self._directory, self._watched = directory, watched
        self._dialog = ui.dialog()
        with ui.element("section").classes("sweep-card sweep-steering"):
            heading("Change it while it runs")
            with ui.element("div").classes("sweep-chips"):
                _button("Try a point", "add", self._offer_point)
                _button("Pause", "pause", lambda: self._ask({"kind": "pause"}))
                _button("Go on", "play_arrow", lambda: self._ask({"kind": "resume"}))
                _button("Stop a trial", "stop", lambda: self._offer_number("stop"))
                _button("Number of trials", "numbers", lambda: self._offer_number("trials"))
            self._answer = ui.label("").classes("sweep-note").props('role="status"')

    async def _ask(self, asked: Mapping[str, Any]) -> bool:
        """Ask, and say what was answered; return whether it was not refused."""
        watched = self._watched()
        if watched is None:
            self._answer.text = "no sweep has begun"
            return False
        self._answer.text = f"{asked['kind']}: asked"
        try:
            answers = await wait_for(
                steer_sweep, self._directory, [asked], sweep=watched.name, wait_s=_ANSWER_S
            )
        except DielError as error:
            self._answer.text = f"{asked['kind']}: refused: {error}"
            return False
        refused = [answer for answer in answers if answer["accepted"] is False]
        told = [
            f"{answer['kind']}: {'refused: ' if answer in refused else ''}{answer['answer']}"
            for answer in answers
        ]
        self._answer.text = "; ".join(told)
        return not refused

    # -- what needs more than a button ------------------------------------------------------------

    def _offer_point(self) -> None:
        """Show a form of the parameters, which begins with those of the best trial."""
        watched = self._watched()
        if watched is None:
            self._answer.text = "no sweep has begun"
            return
        summary = watched.summary()
        start: Mapping[str, Any] = {}
        if summary["best"] is not None:
            told = watched.trial(summary["best"]["trial"])
            start = told["parameters"] if told is not None else {}
        fields: dict[str, ui.input] = {}

        async def ask() -> None:
            point = {name: field.value or "" for name, field in fields.items()}
            if await self._ask({"kind": "enqueue", "parameters": point_of(point)}):
                self._dialog.close()
            else:
                problem.text = self._answer.text

        self._dialog.clear()
        with self._dialog, ui.card().classes("sweep-dialog"):
            heading("Try a point")
            values = "The values are those of the best trial; a" if start else "A"
            ui.label(
                f"It comes before the strategy's next ones. {values} parameter without a value is "
                "left out, which only one that a condition switches off may be."
            ).classes("sweep-note")
            for name in summary["parameters"]:
                shown = "" if name not in start else _written(start[name])
                fields[name] = ui.input(name, value=shown).props("dense outlined")
            problem = ui.label("").classes("sweep-problem").props('role="alert"')
            _dialog_buttons("Try it", ask, self._dialog.close)
        self._dialog.open()

    def _offer_number(self, kind: str) -> None:
        watched = self._watched()
        running: Sequence[int] = watched.summary()["running"] if watched is not None else ()
        texts = {"stop": ("Stop a trial", "its number"),
                 "trials": ("Number of trials", "how many there are to be")}  # fmt: skip
        title, label = texts[kind]

        async def ask() -> None:
            text = (field.value or "").strip()
            if not text.isdecimal() or len(text) > _MOST_DIGITS:
                problem.text = f"{text[:40]!a} is no number"
            elif await self._ask({"kind": kind, "number": int(text)}):
                self._dialog.close()
            else:
                problem.text = self._answer.text

        self._dialog.clear()
        with self._dialog, ui.card().classes("sweep-dialog"):
            heading(title)
            start = str(running[0]) if kind == "stop" and running else ""
            field = ui.input(label, value=start).props("dense outlined")
            problem = ui.label("").classes("sweep-problem").props('role="alert"')
            _dialog_buttons(title, ask, self._dialog.close)
        self._dialog.open()


def point_of(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return a point from what was written in a form: JSON where it is some, else a word."""
    point: dict[str, Any] = {}
    for name, text in texts.items():
        if not text.strip():
            continue
        try:
            point[name] = json.loads(text)
        except (ValueError, RecursionError):
            point[name] = text.strip()
    return point


def _written(value: Any) -> str:
    """Return what `point_of` reads as this value."""
    if isinstance(value, str) and point_of({"": value}) == {"": value}:
        return value
    return json.dumps(value)


def _button(text: str, icon: str, press: Callable[[], Any]) -> None:
    ui.button(text, icon=icon, on_click=press).props("flat dense no-caps")


def _dialog_buttons(text: str, ask: Callable[[], Any], close: Callable[[], Any]) -> None:
    with ui.element("div").classes("sweep-chips"):
        ui.button(text, on_click=ask).props("no-caps")
        ui.button("Cancel", on_click=close).props("flat no-caps")
