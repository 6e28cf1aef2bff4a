"""The panel of a sweep's page that changes it while it runs: try a point, pause it, add trials.

It calls the same function as `diel sweep RUN_DIR --enqueue ...`, so that both refuse the same
requests, in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from nicegui import run, ui

from diel.errors import DielError
from diel.gui.cards import heading
from diel.gui.forms import Parameter, parameter_of, safe, typed_value
from diel.gui.processes import in_words_of_the_page, wait_for
from diel.gui.site import button, printable
from diel.loading.reporter import WatchedSweep
from diel.loading.sweeps import steer_sweep
from diel.run.directory import RunDirectory
from diel.run.watched_run import WatchedRun
from diel.text import as_toml, duration_s, format_value

_ANSWER_S: Final = 10.0
_LOOK_EVERY_S: Final = 2.0
_MOST_DIGITS: Final = 12
_LONGEST_TIME: Final = 40
_ENDED: Final = ("finished", "skipped", "stopped")
_WHILE_IT_RUNS: Final = "Change it while it runs"
_AFTERWARDS: Final = "Go on with more trials or time"


class SteeringPanel:
    """Buttons that send requests to a sweep, with the sweep's answers below.

    The buttons are hidden until `begin`; once the sweep has ended, those are hidden that would
    change nothing.

    Parameters
    ----------
    directory : RunDirectory
    watched : callable
        Returns the sweep that the page shows; None as long as it has not begun.
    """

    def __init__(self, directory: RunDirectory, watched: Callable[[], WatchedSweep | None]) -> None:
        self._directory, self._watched = directory, watched
        self._run = WatchedRun(directory)
        self._dialog = ui.dialog()
        self._notes = ui.label("").classes("sweep-warning").props('role="note"')
        self._notes.visible = False
        with ui.expansion(_WHILE_IT_RUNS, value=True) as self._section:
            self._section.classes("sweep-card sweep-steering").props("dense")
            with ui.element("div").classes("sweep-chips"):
                button("Try a point", "add", self._offer_point)
                with ui.element("div").classes("sweep-buttons") as self._live:
                    button("Pause", "pause", lambda: self._ask({"kind": "pause"}))
                    button("Go on", "play_arrow", lambda: self._ask({"kind": "resume"}))
                    button("Stop a trial", "stop", lambda: self._offer_number("stop"))
                button("Number of trials", "numbers", lambda: self._offer_number("trials"))
                button("Time", "timer", lambda: self._offer_number("time"))
            self._answer = ui.label("").classes("sweep-note").props('role="status"')
        self._section.visible = False
        self._is_over = False
        ui.timer(_LOOK_EVERY_S, self._look)

    def begin(self) -> None:
        """Show the buttons, once there is a sweep."""
        self._section.visible = True

    async def _look(self) -> None:
        """Show the run's notes on the sweep's results, and only buttons that have an effect."""
        watched = self._watched()
        if watched is None:
            return
        try:
            await run.io_bound(self._run.look)
        except DielError:  # the page of the run shows it
            return
        group, file = watched.name.partition(".")[0], watched.summary()["table"]
        with self._run.unchanged() as view:
            ends = view.groups[group].state in _ENDED if group in view.groups else False
            # Found by its file: each iteration of a group has a sweep, all of the same module.
            tables = [table for table in view.results.values() if table.file == file]
            notes = [note for table in tables for note in table.notes]
        self._notes.text = "\n".join(notes)
        self._notes.visible = bool(notes)
        is_over = ends or self._run.has_ended
        if is_over != self._is_over:
            self._is_over = is_over
            self._live.visible = not is_over
            self._section.text = _AFTERWARDS if is_over else _WHILE_IT_RUNS
            self._section.value = not is_over

    async def _ask(self, request: Mapping[str, Any]) -> bool:
        """Send a request to the sweep and show the answer; return whether it was not refused."""
        watched = self._watched()
        if watched is None:
            self._answer.text = "no sweep has begun"
            return False
        self._answer.text = f"{request['kind']}: asked"
        try:
            answers = await wait_for(
                steer_sweep, self._directory, [request], sweep=watched.name, wait_s=_ANSWER_S
            )
        except DielError as error:
            why = in_words_of_the_page(str(error))
            self._answer.text = f"{request['kind']}: refused: {why}"
            return False
        refused = [answer for answer in answers if answer["accepted"] is False]
        texts = [
            f"{answer['kind']}: {'refused: ' if answer in refused else ''}{answer['answer']}"
            for answer in answers
        ]
        self._answer.text = in_words_of_the_page("; ".join(texts))
        return not refused

    # -- requests with a dialog -------------------------------------------------------------------

    def _offer_point(self) -> None:
        """Open a dialog for the point to try, with the parameters of the best trial at first."""
        watched = self._watched()
        if watched is None:
            self._answer.text = "no sweep has begun"
            return
        best = watched.summary()["best"]
        best_trial = watched.trial(best["trial"]) if best is not None else None
        start = best_trial["parameters"] if best_trial is not None else {}
        fields: dict[str, _PointField] = {}

        async def ask() -> None:
            chosen = {name: field.value() for name, field in fields.items() if field.is_given()}
            point, problems = watched.point_of(chosen)
            for name, field in fields.items():
                field.show(problems.get(name, ""))
            if problems:
                problem.text = "; ".join(f"{name}: {why}" for name, why in problems.items())
            elif await self._ask({"kind": "enqueue", "parameters": point}):
                self._dialog.close()
            else:
                problem.text = self._answer.text

        self._dialog.clear()
        self._dialog.props["aria-label"] = "Try a point"
        with self._dialog, ui.card().classes("sweep-dialog"):
            heading("Try a point")
            values = " The values are those of the best trial so far." if start else ""
            ui.label(f"It comes before the strategy's next ones.{values}").classes("sweep-note")
            for name, entry in watched.space.items():
                fields[name] = _PointField(name, entry, start.get(name))
            problem = ui.label("").classes("sweep-problem").props('role="alert"')
            _dialog_buttons("Try it", ask, self._dialog.close)
        self._dialog.open()

    def _offer_number(self, kind: str) -> None:
        watched = self._watched()
        running: Sequence[int] = watched.summary()["running"] if watched is not None else ()
        texts = {"stop": ("Stop a trial", "its number"),
                 "time": ("Time", "in which it ends, as 10 min"),
                 "trials": ("Number of trials", "how many there are to be")}  # fmt: skip
        title, label = texts[kind]

        async def ask() -> None:
            try:
                amount = _amount(kind, (field.value or "").strip())
            except ValueError as error:
                problem.text = str(error)
                return
            if await self._ask({"kind": kind, **amount}):
                self._dialog.close()
            else:
                problem.text = self._answer.text

        self._dialog.clear()
        self._dialog.props["aria-label"] = title
        with self._dialog, ui.card().classes("sweep-dialog"):
            heading(title)
            start = str(running[0]) if kind == "stop" and running else ""
            field = ui.input(label, value=start).props("dense outlined")
            problem = ui.label("").classes("sweep-problem").props('role="alert"')
            _dialog_buttons(title, ask, self._dialog.close)
        self._dialog.open()


class _PointField:
    """The input for one parameter of a point: a select if its values are listed, else a text.

    Parameters
    ----------
    name : str
    entry : any
        The parameter's entry in the search space, as a workflow file has it.
    start : any
        The value to begin with; None if there is none.
    """

    def __init__(self, name: str, entry: Any, start: Any) -> None:
        found = parameter_of(entry)
        self._values = choices_of(found, entry)
        hint = " to ".join(found.texts[end] for end in ("from", "to") if end in found.texts)
        hint += f" in steps of {found.texts['step']}" if "step" in found.texts else ""
        if "log_steps" in found.texts:
            hint += f", {found.texts['log_steps']} values in equal ratios"
        only = f"only where {found.condition}" if found.condition else ""
        about = ", ".join(filter(None, [hint, only]))
        # Not as the field's own label, which is one line and cut where it is longer than that.
        with ui.element("div").classes("sweep-point"):
            ui.label(printable(name)).classes("sweep-point-name")
            self._build(name, start, about, only, found)

    def _build(self, name: str, start: Any, about: str, only: str, found: Parameter) -> None:
        if self._values:
            places = [place for place, value in enumerate(self._values) if value == start]
            self._element: ui.select | ui.input = ui.select(
                dict(enumerate(named_apart(self._values))), value=(places or [0])[0]
            )
            if len(self._values) == 1:
                self._element.disable()
                about = ", ".join(filter(None, ["the same in all trials", only]))
        else:
            text = found.texts.get("from", "") if start is None else as_toml(start)
            self._element = ui.input(value=text)
        self._element.props["aria-label"] = name
        self._element.props(f'dense outlined hint="{safe(about)}"' if about else "dense outlined")

    def is_given(self) -> bool:
        """Whether the field has a value."""
        return bool(self._values) or bool(str(self._element.value or "").strip())

    def value(self) -> Any:
        """Return the value that is chosen or typed."""
        if self._values:
            return self._values[int(self._element.value or 0)]
        return typed_value(str(self._element.value or ""))

    def show(self, problem: str) -> None:
        """Show a problem of the value; an empty text removes the last one."""
        self._element.error = problem or None


def _amount(kind: str, text: str) -> dict[str, float]:
    """Return what a request of a kind has, from what was typed; a ValueError says what is wrong."""
    if kind == "time":
        return {"time_s": duration_s(text[:_LONGEST_TIME])}
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise ValueError(f"{text[:40]!a} is no number")
    return {"number": int(text)}


def choices_of(parameter: Parameter, entry: Any) -> list[Any]:
    """Return all values of a parameter if they are listed, else an empty list."""
    if parameter.kind not in ("choices", "one value"):
        return []
    if isinstance(entry, dict):
        entry = entry["choices"] if "choices" in entry else entry["value"]
    return list(entry) if parameter.kind == "choices" else [entry]


def named_apart(values: Sequence[Any]) -> list[str]:
    """Return values as texts: rounded as in tables, unless two of them would look the same."""
    words = [format_value(value, digits=7) for value in values]
    return words if len(set(words)) == len(words) else [as_toml(value) for value in values]


def _dialog_buttons(text: str, ask: Callable[[], Any], close: Callable[[], Any]) -> None:
    with ui.element("div").classes("sweep-chips"):
        ui.button(text, on_click=ask).props("no-caps")
        ui.button("Cancel", on_click=close).props("flat no-caps")
