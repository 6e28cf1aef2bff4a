"""Declared inputs and outputs of a copy: whether its outputs are current, and why not.

::

    FOLDER/.diel/<workflow>/<module>.<copy>.<group>.<iteration>.json  of what they were made
    FOLDER/.diel/<workflow>/<module>.<copy>.<group>.<iteration>.lock  held while they are made

A record is written before the copy starts, as ``making``, and after it has ended well, as ``made``:
what is left of a copy that was killed is never taken for current. Files are compared by content,
and read again only where their size or time has changed. FOLDER is that of the workflow file, or
the run directory where all outputs are there.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from diel.errors import ModuleFailed, RunDirectoryError
from diel.loading.module_spec import ModuleSpec
from diel.run.directory import is_own_name
from diel.run.files import locked_file, read_json, replace_file
from diel.workflow.programs import fill_placeholders

FOLDER: Final = ".diel"
_CHUNK_BYTES: Final = 2**20
_DIGEST_BYTES: Final = 20

Contents: TypeAlias = "dict[str, list[Any]]"
"""By path, the size, the time of the last change in ns, and the digest of each file."""


class CopyOutputs:
    """The inputs and outputs of one copy of a module.

    Parameters
    ----------
    spec : ModuleSpec
    places : mapping of str to object
        The values of placeholders.
    file : Path
        The workflow file.
    """

    def __init__(self, spec: ModuleSpec, places: Mapping[str, object], file: Path) -> None:
        self._spec = spec
        self._places = places
        self._file = file
        self._folder = file.parent
        name = f"{spec.name}.{places['copy']}.{places['group']}.{places['iteration']}"
        # What is in the run directory alone is no other run's concern, and the file's folder may be
        # one that cannot be written.
        is_own = all(text.startswith("{run_dir}/") for text in spec.outputs)
        place = Path(str(places["run_dir"])) if is_own else self._folder
        self._record = place / FOLDER / file.stem / f"{name}.json"

    @contextlib.contextmanager
    def making(self, *, force: bool = False) -> Iterator[bool]:
        """Enter with whether the outputs are current; if not, the block has to make them.

        Old outputs are removed before, and those of a block that raises after it. A ModuleFailed
        if an input is missing, an output has not been made, or another run is making them.
        """
        with contextlib.ExitStack() as stack:
            try:
                self._record.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked_file(self._record.with_suffix(".lock")))
            except RunDirectoryError as error:  # such as that another run makes them now
                raise ModuleFailed(str(error)) from error
            except OSError as error:
                raise self._not_written(error) from error
            inputs = self.inputs()
            outputs = self.outputs(inputs)
            before = self._read()
            command = self._command()
            read = contents(inputs, before.get("inputs"))
            if outputs and not force and not self._why(before, command, read, outputs):
                yield True
                return
            now = {"command": command, "inputs": read, "declared": [*map(str, outputs)]}
            self._write({"state": "making", **now})
            for path in outputs:
                remove(path)
                path.parent.mkdir(parents=True, exist_ok=True)
            try:
                yield False
                for path in outputs:
                    if not path.exists():
                        raise ModuleFailed(f"it has ended well without making its output {path}")
                self._write({"state": "made", **now, "outputs": contents(outputs)})
            except BaseException:
                for path in outputs:
                    with contextlib.suppress(OSError, ModuleFailed):
                        remove(path)
                raise

    def why(self) -> str:
        """Return why the copy would run; empty if its outputs are current.

        A ModuleFailed if its inputs or outputs are not what they have to be.
        """
        inputs = self.inputs()
        before = self._read()
        read = contents(inputs, before.get("inputs"))
        return self._why(before, self._command(), read, self.outputs(inputs))

    def _why(
        self, before: Mapping[str, Any], command: Any, read: Contents, outputs: list[Path]
    ) -> str:
        if not before:
            return "never run"
        if before.get("state") != "made":
            return "not finished when it ran last"
        then = before.get("command", {})
        changed = [key for key in {**then, **command} if then.get(key) != command.get(key)]
        if changed:
            return f"command has changed: {', '.join(changed)}"
        if before.get("declared") != [*map(str, outputs)]:
            return "other outputs are declared"
        for path in outputs:
            if not path.exists():
                return f"output missing: {self._shown(path)}"
        difference = _difference(before.get("inputs", {}), read)
        if difference:
            return f"input {self._shown(difference[0])} {difference[1]}"
        made = before.get("outputs", {})
        difference = _difference(made, contents(outputs, made))
        return f"output {self._shown(difference[0])} {difference[1]}" if difference else ""

    def _shown(self, path: str | Path) -> str:
        return os.path.relpath(path, self._folder)

    def inputs(self) -> list[Path]:
        """Return the files and folders that the inputs name; a ModuleFailed if one is missing."""
        values = {name: glob.escape(str(value)) for name, value in self._places.items()}
        found: set[Path] = set()
        for text in self._spec.inputs:
            pattern = fill_placeholders(text, values)
            names = glob.glob(pattern, root_dir=self._folder, recursive=True)
            if not names:
                raise ModuleFailed(f'its input "{text}" is missing: there is no {pattern}')
            found.update(Path(os.path.normpath(self._folder / name)) for name in names)
        return sorted(found)

    def outputs(self, inputs: Iterable[Path] = ()) -> list[Path]:
        """Return the files and folders that the outputs name; a ModuleFailed if one is not safe."""
        function = self._spec.function
        kept = [self._file, *inputs, *([function.file] if function and function.file else [])]
        roots = [self._folder, Path(str(self._places["run_dir"]))]
        found = []
        for text in self._spec.outputs:
            path = Path(os.path.normpath(self._folder / fill_placeholders(text, self._places)))
            refuse_output(path, roots, kept)
            found.append(path)
        return found

    def _command(self) -> dict[str, Any]:
        spec, program, function = self._spec, self._spec.executable, self._spec.function
        command: dict[str, Any] = {"options": spec.options}
        if function is not None:
            command["function"] = function.spec
            if function.file is not None:
                command["source"] = _digest(function.file)
        if program is not None:

            def filled(text: str) -> str:
                return fill_placeholders(text, self._places)

            for key, words in (("executable", program.words), ("launcher", program.launcher)):
                command[key] = [filled(word) for word in words]
                file = self._folder / command[key][0] if words and "/" in words[0] else None
                if file is not None and file.is_file():
                    command[f"the file of {key}"] = _digest(file)
            command["directory"] = filled(program.directory)
            command["environment"] = {
                name: filled(value) for name, value in program.environment.items()
            }
            if program.stdin:
                stdin = self._folder / filled(program.stdin)
                command["stdin"] = _digest(stdin) if stdin.is_file() else ""
        kept: dict[str, Any] = json.loads(json.dumps(command, default=str))
        return kept

    def _read(self) -> dict[str, Any]:
        try:
            record = read_json(self._record)
        except (OSError, ValueError):
            return {}
        tables = ("command", "inputs", "outputs")
        is_sound = type(record) is dict and all(type(record.get(t, {})) is dict for t in tables)
        return record if is_sound else {}

    def _write(self, record: Mapping[str, Any]) -> None:
        try:
            replace_file(self._record, json.dumps(record), sync=True)
        except OSError as error:
            raise self._not_written(error) from error

    def _not_written(self, error: OSError) -> ModuleFailed:
        return ModuleFailed(f"{self._record} cannot be written: {error.strerror}")


def refuse_output(path: Path, roots: Iterable[Path], kept: Iterable[Path]) -> None:
    """Raise a ModuleFailed if an output may not be removed, as it is before a copy starts.

    It has to lie in one of the folders `roots` and hold none of them, be no link, and neither be,
    hold nor lie in a file of `kept`.
    """
    real = Path(os.path.realpath(path.parent)) / path.name
    places = [Path(os.path.realpath(root)) for root in roots]
    if not any(real != root and real.is_relative_to(root) for root in places):
        raise ModuleFailed(f"its output {path} is outside of the workflow file's folder")
    if any(root.is_relative_to(real) for root in places):
        raise ModuleFailed(f"its output {path} is a folder that the run itself is in")
    if path.is_symlink():
        raise ModuleFailed(f"its output {path} is a link, and would be removed: put no link there")
    run_dir = places[-1]
    if any(real.is_relative_to(root / FOLDER) for root in places) or (
        real.is_relative_to(run_dir) and is_own_name(real.relative_to(run_dir).parts[0])
    ):
        raise ModuleFailed(f"its output {path} is a file of diel's own: choose another name")
    for file in map(os.path.realpath, kept):
        if real.is_relative_to(file) or Path(file).is_relative_to(real):
            words = f"is, holds or lies in {file}, of which it is made"
            raise ModuleFailed(f"its output {path} {words}")


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; links in it are not followed."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise ModuleFailed(
            f"{error.filename or path} cannot be removed: {error.strerror}"
        ) from error


def contents(paths: Iterable[Path], before: Any = None) -> Contents:
    """Return the contents of files, and of all files in folders.

    What has the size and time that `before` says is not read again. A ModuleFailed if something
    cannot be read, or is neither file nor folder.
    """
    known = before if isinstance(before, dict) else {}
    found: Contents = {}
    try:
        for path in paths:
            for file in _files(path):
                about = file.stat()
                old = known.get(str(file))
                stamp = [about.st_size, about.st_mtime_ns]
                if type(old) is list and len(old) == 3 and old[:2] == stamp:
                    found[str(file)] = old
                elif stat.S_ISDIR(about.st_mode):
                    found[str(file)] = [0, 0, "an empty folder"]
                elif stat.S_ISREG(about.st_mode):
                    found[str(file)] = [*stamp, _digest(file)]
                else:
                    raise ModuleFailed(f"{file} is neither a file nor a folder")
    except OSError as error:
        raise ModuleFailed(f"{error.filename} cannot be read: {error.strerror}") from error
    return found


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    is_empty = True
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            is_empty = False
            yield Path(folder, name)
    if is_empty:
        yield path


def _digest(file: Path) -> str:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the first file whose content differs, and how."""
    for path in sorted({*then, *now}):
        if path not in now:
            return path, "is gone"
        if path not in then:
            return path, "is new"
        if now[path][-1] != then[path][-1]:
            return path, "has changed"
    return None
