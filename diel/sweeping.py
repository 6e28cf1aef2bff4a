"""`diel.sweep`: a sweep of a function of a script or a notebook.

::

    def train(parameters, report):
        ...
        return {"score": score}

    if __name__ == "__main__":                  # in a script: ranks import it too
        run = diel.sweep(train, {"rate": [0.1, 0.2, 0.3]}, objective="score", maximise=True)
        run.best

It writes a workflow file, which ``diel run`` runs again at any time, and runs it as that does.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

from diel.errors import LaunchError, RunDirectoryError, SweepCallError
from diel.exit_codes import BAD_INPUT, FINE, NOT_FINISHED, STOPPED
from diel.function_source import source_of
from diel.loading.reporter import first_answer
from diel.opened_run import Run
from diel.processes import diel_command
from diel.run.directory import RunDirectory
from diel.run.history import summarize
from diel.run.journal import is_run_of
from diel.text import as_tables

_STARTED_BY: Final = "DIEL_SWEEP_OF"
"""Environment variable of a sweep's ranks: the file of the function. A call of `sweep` in a rank
would start further ranks without end."""
_MARK: Final = "# Written by diel.sweep"
_LOOK_EVERY_S: Final = 0.1
_SHOW_EVERY_S: Final = 0.5
_STOP_PATIENCE_S: Final = 30.0


def sweep(
    train: Callable[..., Any] | str | Mapping[str, Any],
    space: Mapping[str, Any],
    *,
    strategy: str | Mapping[str, Any] = "auto",
    trials: int | None = None,
    objective: str | list[str] | None = None,
    maximise: bool | list[bool] | None = None,
    ranks: int | None = None,
    seed: int = 0,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
    folder: str | os.PathLike[str] = "sweeps",
    runs: str | os.PathLike[str] = "runs",
    allow_run_as_root: bool = False,
    **more: Any,
) -> Run:
    """Run a function for points of a parameter space, on many ranks; return the run.

    Parameters
    ----------
    train : callable, str or mapping
        Called as ``train(parameters, report)``; returns metrics by name. A function of a file that
        can be imported, of the script that calls this, or of a notebook: then its source is
        written down, with what it uses. Or a place, as in a workflow file. Or a mapping, the
        options of the trainer that comes with diel: ``{"dataset": "csv", "path": "mine.csv"}``.
    space : mapping
        What each parameter may be, as in a workflow file.
    strategy, trials, objective, maximise, seed
        As in a workflow file.
    ranks : int, optional
        MPI ranks to start; as many as there are cores for, if left out.
    name : str, optional
        Of the workflow; default: the function's. Where `folder` has another sweep of that name,
        a number is appended.
    options : mapping, optional
        What the function finds in ``report.options``.
    folder : path, optional
        Where the workflow file is written, and the source of a notebook's function.
    runs : path, optional
        Where run directories are made.
    allow_run_as_root : bool, optional
        Passed on to Open MPI, which otherwise refuses that.
    **more
        Further options of the master, such as ``early_stopping`` and ``until``.

    Returns
    -------
    Run
        Finished, or stopped from elsewhere.

    Raises
    ------
    SweepCallError
        If the function cannot be given to ranks, or the sweep is not as it should be: every problem
        of the workflow file.
    LaunchError
        If the run has failed; what has been tried is in its directory.
    KeyboardInterrupt
        When it is interrupted, after the run has stopped.
    """
    if _STARTED_BY in os.environ:
        raise SweepCallError(
            f"a rank that imports {os.environ[_STARTED_BY]} would start the sweep again: put the "
            'call of diel.sweep below  if __name__ == "__main__":'
        )
    is_of_data = isinstance(train, Mapping)
    if is_of_data and options is not None:
        raise SweepCallError(
            "options are for a function: put those of the trainer into the mapping"
        )
    own_name = train if isinstance(train, str) else getattr(train, "__name__", "")
    title = name or (str(train.get("dataset", "sweep")) if isinstance(train, Mapping) else own_name)
    title = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in title)
    asked = {
        "space": dict(space),
        "strategy": strategy if isinstance(strategy, str) else dict(strategy),
        **({} if objective is None else {"objective": objective}),
        "seed": seed,
        **({} if trials is None else {"trials": trials}),
        **({} if maximise is None else {"maximise": maximise}),
        **more,
    }
    given = dict(options or {})
    if isinstance(train, Mapping):
        spec, source, given = "", None, dict(train)
    else:
        spec, source = (train, None) if isinstance(train, str) else _place_of(train)
    file, spec = _write(Path(folder).absolute(), title, spec, source, asked, given)
    arguments = ["run", str(file), "--runs", str(Path(runs).absolute())]
    arguments += [] if ranks is None else ["--ranks", str(ranks)]
    arguments += ["--allow-run-as-root"] if allow_run_as_root else []
    return _run(arguments, file, Path(runs).absolute(), spec)


# -- the function ---------------------------------------------------------------------------------


def _place_of(train: Callable[..., Any]) -> tuple[str, str | None]:
    """Return a function's place, as a workflow file has it, and the file to write, or None.

    For a function of a notebook a file is written, and the place is the function's name alone.
    """
    if not callable(train):
        raise SweepCallError(f"train is a function or its place, not {train!r:.60}")
    name = train.__name__
    try:
        inspect.signature(train).bind({}, None)
    except TypeError as error:
        raise SweepCallError(
            f"{name} is called as {name}(parameters, report), which it does not take: {error}"
        ) from None
    module = sys.modules.get(train.__module__)
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file() or Path(file).suffix != ".py":
        return name, f"{_MARK} from a notebook: of the function {name}.\n{source_of(train)}"
    if getattr(module, name, None) is not train:
        raise SweepCallError(
            f"{name} cannot be found in {file} by its name, so ranks cannot either: define it at "
            "the top of the file"
        )
    if train.__module__ == "__main__":
        _check_guard(Path(file))
        return f"{Path(file).absolute()}:{name}", None
    top = train.__module__.partition(".")[0]
    root = Path(getattr(sys.modules.get(top), "__file__", "") or "").parent
    is_alone = "." not in train.__module__ and "site-packages" not in root.parts
    return (f"{Path(file).absolute()}:{name}" if is_alone else f"{train.__module__}:{name}"), None


def _check_guard(file: Path) -> None:
    """Raise SweepCallError unless a script calls `sweep` behind its main guard."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != "__main__":
        frame = frame.f_back
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if frame is None:
        return
    tree = ast.parse(file.read_bytes())
    for part in tree.body:
        if part.lineno <= frame.f_lineno <= (part.end_lineno or part.lineno):
            guarded = isinstance(part, ast.If) and "__name__" in ast.unparse(part.test)
            if not guarded:
                raise SweepCallError(
                    f"{file}, line {frame.f_lineno}: ranks import this file for its function, and "
                    "would start the sweep again: put the call of diel.sweep below  "
                    'if __name__ == "__main__":'
                )


# -- the workflow file ----------------------------------------------------------------------------


def _workflow(name: str, train: str, asked: dict[str, Any], options: dict[str, Any]) -> str:
    """Return the text of a sweep's workflow file, as the reporter of sweeps describes it."""
    document = first_answer(lambda reporter: reporter.describe_sweep(name, train, asked, options))
    if document is None:
        raise SweepCallError("no installed package runs sweeps: reinstall diel, which has one")
    return f"{_MARK}: diel run {name}.toml runs it again.\n\n{as_tables(_plain(document))}"


def _plain(value: Any) -> Any:
    """Return a Python or NumPy value in the types of TOML: numbers, text, lists and tables."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (bool, str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [_plain(entry) for entry in value]
    raise SweepCallError(
        f"{value!r:.60} (a {type(value).__name__}) cannot stand in a workflow file: give numbers, "
        "text, and lists and tables of such"
    )


def _write(
    folder: Path,
    title: str,
    spec: str,
    source: str | None,
    asked: dict[str, Any],
    options: dict[str, Any],
) -> tuple[Path, str]:
    """Write the workflow file, and a notebook's function; return the file and the function's place.

    Existing files are kept: where another sweep has the name, this one gets it with a number.
    """
    number = 0
    while True:
        number += 1
        name = title if number == 1 else f"{title}-{number}"
        place = spec if source is None else f"./{name}.py:{spec}"
        file = folder / f"{name}.toml"
        texts = {file: _workflow(name, place, asked, options)}
        if source is not None:
            texts[file.with_suffix(".py")] = source
        try:
            folder.mkdir(parents=True, exist_ok=True)
            found = {path: path.read_text(encoding="utf-8") for path in texts if path.exists()}
            foreign = [path for path, text in found.items() if not text.startswith(_MARK)]
            if foreign:
                raise SweepCallError(
                    f"{foreign[0]} is there, and was not written by diel.sweep: give another name= "
                    "or folder="
                )
            if any(texts[path] != text for path, text in found.items()):
                continue
            for path, text in texts.items():
                path.write_text(text, encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SweepCallError(f"{file} cannot be written: {error}") from error
        return file, place


# -- the run --------------------------------------------------------------------------------------


def _run(arguments: list[str], file: Path, runs: Path, spec: str) -> Run:
    environment = {**os.environ, _STARTED_BY: spec.rpartition(":")[0]}
    there = set(_folders(runs))
    notebook = _notebook()
    with tempfile.TemporaryFile() as output:
        shown: IO[bytes] | None = output if notebook is not None or not _is_terminal() else None
        process = subprocess.Popen(
            diel_command(arguments),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=shown,
            stderr=None if shown is None else subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only this process, which passes it on
        )
        run: Run | None = None
        try:
            next_s = 0.0
            while process.poll() is None:
                time.sleep(_LOOK_EVERY_S)
                if run is None:
                    run = _new_run(runs, there, file)
                elif notebook is not None and time.monotonic() >= next_s:
                    next_s = time.monotonic() + _SHOW_EVERY_S
                    notebook(run)
        except BaseException:
            _stop(process)
            raise
        run = run or _new_run(runs, there, file)
        if run is not None and notebook is not None:
            notebook(run)
        output.seek(0)
        said = output.read().decode(errors="replace")
    if run is not None and spec.startswith("./"):  # so that the run directory has the source
        with contextlib.suppress(OSError):
            shutil.copy(file.parent / spec.rpartition(":")[0], run.path)
    if process.returncode in (FINE, NOT_FINISHED, STOPPED) and run is not None:
        return run
    if process.returncode == BAD_INPUT:
        raise SweepCallError(said.strip().removeprefix("diel: ") or f"{file} cannot be run")
    where = "" if run is None else f"; what was tried is in {run.path}: diel.open_run"
    reason = said.strip()[-1000:] if run is None else summarize(run.path, time.time()).reason
    raise LaunchError(f"the sweep has failed: {reason}{where}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a run as Ctrl-C does; terminate it after 30 s, or if interrupted again."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_PATIENCE_S)
    except BaseException:  # a timeout, or another interrupt
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        process.wait()


def _folders(runs: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from runs.iterdir()


def _new_run(runs: Path, there: set[Path], file: Path) -> Run | None:
    """Return the new run of a workflow file, or None as long as no new journal names the file."""
    for folder in _folders(runs):
        if folder in there:
            continue
        with contextlib.suppress(RunDirectoryError, OSError):
            if is_run_of(RunDirectory(folder), file):
                return Run(folder)
    return None


def _is_terminal() -> bool:
    try:
        return sys.stdout.isatty() and sys.stdout.fileno() == 1
    except (AttributeError, OSError, ValueError):
        return False


def _notebook() -> Callable[[Run], object] | None:
    """Return a function that shows a run in a notebook's cell, updated; None outside a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import HTML, display

    show: Any = display
    html: Any = HTML
    handle = show(html("starting the ranks ..."), display_id=True)
    return lambda run: handle.update(html(run._repr_html_()))
