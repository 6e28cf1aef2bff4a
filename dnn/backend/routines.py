"""Choice of a routine by size or shape: measured once, stored, and never changed within a run.

There are several ways to sum columns, to multiply matrices or to convolve images, and which is
fastest depends on the machine and on the size. They round differently, so a run measures once,
keeps the table with its results, gives it to every rank and takes it again when it is resumed.

Sums and products are measured at a few sizes, beforehand. Each shape of a convolution is measured
when it first occurs, and the choice is stored in two folders::

    the run's      <run>/routines/forward-NHWC-f4-32x64x32x32-64x3x3-padding1.1.1.1.json
       | not found
    the machine's  ~/.cache/dnn/kernels/routines-<CPU, threads, kernels>/...
       | not found
    measured       written to both; where another process was first, its choice is taken

so that the ranks of a run agree whoever meets a shape first, and the next run measures nothing.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dnn.backend.rounding import narrow
from dnn.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from dnn.backend.convolution import Convolution, Routine
    from dnn.backend.ops import Ops, Step

__all__ = [
    "CACHE_VARIABLE",
    "CANDIDATES",
    "ROUTINES_VARIABLE",
    "ConvolutionChoices",
    "RoutineTable",
    "cache_folder",
    "choose_convolution",
    "convolution_key",
    "machine_choices",
    "one_process",
]

CACHE_VARIABLE = "DNN_KERNEL_CACHE"

ROUTINES_VARIABLE = "DNN_ROUTINES"
"""If ``"fixed"``, no convolution is measured, and without a table the first routine is taken."""

MEASURED_FROM = 4_000_000
"""Multiplications of the smallest convolution that is measured: less takes some 50 us."""

MEASURED_S = 0.02
"""How long each routine is repeated, at least four times."""

HOPELESS = 3.0
"""A routine that takes this many times the time of the fastest one is not repeated."""

CLOSE, ROUNDS = 1.6, 2
"""Routines within this factor of the least time are timed in this many further rounds."""

SPACIOUS, MODERATE_BYTES = 8, 256 << 20
"""A routine is skipped if its workspace exceeds both this many times the smallest and this size."""

LONGEST_WAIT_S = 30.0
"""How long to wait for another process that measures or compiles."""

CANDIDATES = {
    # Sums over rows: a compiled loop, NumPy's reduction, a product with a row of ones.
    # Size: elements.
    "sum": ("loop", "numpy", "ones"),
    # Matrix products: in parts, one for each thread, or whole. Size: multiplications.
    "product": ("parts", "whole"),
    # Sums over rows or columns on a GPU: a kernel of ours, cuBLAS with a vector of ones, CuPy's
    # reduction. Size: elements.
    "gpu_sum": ("kernel", "gemv", "library"),
    # How many networks train at once on a GPU. Size: parameters of one network.
    "gpu_models": ("1", "16", "64", "256", "1024"),
}

Choices = Mapping[str, Sequence[tuple[int, str]]]
_CONVOLUTION, _FOLDER = "convolution", "folder"
_measuring = threading.RLock()


class ConvolutionChoices:
    """Chosen routines of convolutions, or of another operation that has several routines.

    Parameters
    ----------
    folder : Path, optional
        Where each choice is stored in a file of its own. The first process that writes it decides,
        and all other processes read it. If left out, choices are kept in `names` alone.
    names : mapping of str to str, optional
        From keys, see `convolution_key`, to names of routines; these take precedence over the
        folder.
    about : str
        Machine on which routines were measured, for people who read the files.
    is_cache : bool
        Whether the folder may be lost: files that cannot be read are replaced, and where nothing
        can be written the choices are kept in `names` alone. If not, both are errors.
    of : str
        Operation that has the routines; a key of each record.
    """

    def __init__(
        self,
        folder: Path | None = None,
        names: Mapping[str, str] | None = None,
        about: str = "",
        is_cache: bool = False,
        of: str = _CONVOLUTION,
    ) -> None:
        self.folder = folder
        self.of = of
        self.about = about
        self.is_cache = is_cache
        self.names = dict(names or {})

    def find(self, key: str, offered: Container[str] | None = None) -> str | None:
        """Return the name of the routine that was chosen for a key, None if there is no choice yet.

        In a cache, a choice that is not among the routines `offered` does not count.
        """
        if key not in self.names and self.folder is not None:
            record = self._read(self._file(key))
            if record is not None:
                self.names[key] = record["routine"]
        name = self.names.get(key)
        return None if self.is_cache and offered is not None and name not in offered else name

    def keep(
        self, key: str, record: Mapping[str, Any], offered: Container[str] | None = None
    ) -> str:
        """Store a choice, ``record["routine"]``, unless there is one; return the valid choice.

        Raises
        ------
        ConfigurationError
            If it cannot be written and this is no cache: other processes could choose differently.
        """
        found = self.find(key, offered)
        if found is None:
            self.names.pop(key, None)
            if self.folder is not None:
                about = {"machine": self.about} if self.about else {}
                text = json.dumps({self.of: key, **record, **about}, indent=1)
                try:
                    # In a cache this replaces a file that is broken or names no offered routine.
                    self._write(self._file(key), text)
                except OSError as error:
                    if not self.is_cache:
                        raise ConfigurationError(
                            f"routines: {self._file(key)} cannot be written: {error}; "
                            "the processes of a run have to share the choice of a routine"
                        ) from error
                else:
                    found = self.find(key, offered)
        return self.names.setdefault(key, found or record["routine"])

    def measuring(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from measuring at the same time, for half a minute at most."""
        return one_process(self.folder and self.folder / ".measuring")

    def records(self) -> list[dict[str, Any]]:
        """Return the records in the folder, sorted by name of the file.

        Each has the key under the name `of`, ``"routine"`` and, if it was measured, ``"ms"``, the
        time of each routine, and ``"machine"``.
        """
        files = sorted(self.folder.glob("*.json")) if self.folder is not None else []
        return [record for file in files if (record := self._read(file)) is not None]

    def _file(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{key}.json"

    def _read(self, file: Path) -> dict[str, Any] | None:
        """Return the record in a file; None if there is no file, or a broken one in a cache."""
        for wait_s in (0.01, 0.05, 0.1, None):
            try:
                record = json.loads(file.read_text(encoding="utf-8"))
                if isinstance(record, dict) and isinstance(record.get("routine"), str):
                    return record
                problem = 'it names no "routine"'
            except FileNotFoundError:
                return None
            except (OSError, ValueError) as error:
                problem = str(error)
            if self.is_cache:
                return None
            if wait_s is not None:  # another process may be writing it
                time.sleep(wait_s)
        raise ConfigurationError(f"routines: {file} cannot be read: {problem}; remove it")

    def _write(self, file: Path, text: str) -> None:
        """Write a file in one step; an existing file is replaced in a cache, and else kept."""
        import tempfile  # imports bz2 and lzma too, and few processes write

        file.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=file.parent, prefix=".")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as opened:
                opened.write(text)
            os.chmod(draft, 0o644)
            if self.is_cache and file.exists():
                os.replace(draft, file)
                return
            try:
                os.link(draft, file)  # unlike a rename it does not replace another process's choice
            except FileExistsError:
                pass
            except OSError:  # the file system has no hard links
                with contextlib.suppress(FileExistsError), file.open("x", encoding="utf-8") as new:
                    new.write(text)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)


def cache_folder() -> Path:
    """Return the folder of compiled kernels and choices; `RuntimeError` if there is no home."""
    from pathlib import Path  # imports urllib and ipaddress too, some 5 ms

    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dnn" / "kernels"


@contextlib.contextmanager
def one_process(lock: Path | None) -> Iterator[None]:
    """Lock a file for the block, so that one process at a time runs it; wait at most half a minute.

    File and folder are created. Without a file, or where the folder cannot be made or the file
    system or operating system has no locks, the block runs at once, and after the wait it runs
    without the lock.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            if lock is not None:
                lock.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(lock.open("a"))
                until = time.monotonic() + LONGEST_WAIT_S
                while time.monotonic() < until:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        time.sleep(0.005)
        yield


def machine_choices(name: str, about: str, of: str = _CONVOLUTION) -> ConvolutionChoices:
    """Return the choices measured on this machine, stored in a folder beside compiled kernels.

    `name`, that of the folder, has to differ where anything differs that times depend on. Where
    there is no home directory, or nothing can be written, choices are kept in this process alone.
    """
    try:
        folder: Path | None = cache_folder() / name
    except RuntimeError:
        folder = None
    return _choices_in(folder, about, of)


@functools.cache
def _choices_in(folder: Path | None, about: str, of: str) -> ConvolutionChoices:
    return ConvolutionChoices(folder, about=about, is_cache=True, of=of)


def convolution_key(problem: Convolution, device: str = "cpu") -> str:
    """Return the shape of a convolution as text, such as ``forward-NHWC-f4-8x3x32x32-16x5x5``.

    That is images, channels, height and width, then filters and window, then parameters that differ
    from the defaults; on a GPU ``cuda`` comes first. Models, bias and rectifier are not in it, so
    they change no choice.
    """
    shape = "x".join(map(str, (problem.images, problem.channels, *problem.size)))
    parts = ["cuda"] if device.startswith("cuda") else []
    parts += [problem.kind, problem.layout, problem.dtype, shape]
    parts.append("x".join(map(str, (problem.filters, *problem.window))))
    for name in ("stride", "dilation"):
        pair = getattr(problem, name)
        if pair != (1, 1):
            parts.append(f"{name}{pair[0]}x{pair[1]}")
    if any(map(any, problem.padding)):
        parts.append("padding" + ".".join(str(zeros) for pair in problem.padding for zeros in pair))
    if problem.groups != 1:
        parts.append(f"groups{problem.groups}")
    if problem.precision != "float32":
        parts.append(problem.precision)
    return "-".join(parts)


def choose_convolution(ops: Ops, problem: Convolution, machine: ConvolutionChoices) -> Routine:
    """Return the routine of a convolution, from a table or by measuring.

    The choice comes from the table of `ops`, if there is one with this shape, else from `machine`,
    the choices for this processor and number of threads, else routines are measured, and the choice
    is added to `machine`. Without an entry in the table a small convolution takes the first
    routine, and so does any other where ``DNN_ROUTINES`` is ``"fixed"``.

    Raises `ConfigurationError` if the table names a routine that does not compute this convolution
    here, or ``DNN_ROUTINES`` is anything else.
    """
    mode = os.environ.get(ROUTINES_VARIABLE, "")
    if mode not in ("", "fixed"):
        raise ConfigurationError(f"{ROUTINES_VARIABLE} must be 'fixed' or not set, not {mode!r}")
    offered = {routine.name: routine for routine in ops.convolutions(problem)}
    first = next(iter(offered))
    key = convolution_key(problem, ops.device)
    table = ops.routines.convolutions if ops.routines is not None else None
    with _measuring:
        name = table.find(key) if table is not None else None
        if name is None:
            work = math.prod((*problem.y_shape, *problem.w_shape[1:]))
            if len(offered) == 1 or work < MEASURED_FROM or mode == "fixed":
                name = first
            else:
                name = machine.find(key, offered) or _measured(ops, problem, machine, offered)
            if table is not None:
                name = table.keep(key, {"routine": name})
    if name not in offered:
        here = ", ".join(offered)
        raise ConfigurationError(
            f"routines: the table takes {name!r} for {key}, and here there are {here}; run it "
            "where it was measured, with the same version of dnn, or remove that choice"
        )
    return offered[name]


def _measured(
    ops: Ops, problem: Convolution, machine: ConvolutionChoices, offered: Container[str]
) -> str:
    """Measure a convolution of one model, unless another process has done it; return the choice."""
    key = convolution_key(problem, ops.device)
    with machine.measuring():
        machine.names.pop(key, None)
        found = machine.find(key, offered)
        if found is not None:
            return found
        single = problem._replace(models=None, stacked=(False, False), bias=False, relu=False)
        return machine.keep(key, measure_convolution(ops, single), offered)


def measure_convolution(
    ops: Ops, problem: Convolution, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """Time each routine that `is_timed`; return the fastest as ``"routine"``, and ``"ms"`` of each.

    The least time of some calls counts, since other load on the machine can only add to it. The
    calls work on arrays that are allocated here and freed afterwards. A routine that needs far more
    memory than another is skipped, and so is one for which there is not enough memory.
    """
    *shapes, out_shape = problem.shapes
    generator = np.random.default_rng(0)
    *dtypes, out_dtype = problem.dtypes
    inputs = []
    for shape, dtype in zip(shapes, dtypes, strict=True):
        values = generator.standard_normal(shape, np.dtype(problem.dtype).type)
        if dtype != values.dtype:
            wide, values = values, np.empty(shape, dtype)
            narrow(wide, values)
        array = ops.memory(values.nbytes).view(dtype).reshape(shape)
        ops.load(values, array)
        inputs.append(array)
    size = math.prod(out_shape) * out_dtype.itemsize
    out = ops.memory(size).view(out_dtype).reshape(out_shape)
    routines = [each for each in ops.convolutions(problem) if each.is_timed]
    most_bytes = max(MODERATE_BYTES, SPACIOUS * min(each.workspace_bytes for each in routines))
    seconds: dict[str, float] = {}

    def time_it(routine: Routine) -> None:
        hopeless_s = HOPELESS * min(seconds.values(), default=math.inf)
        with contextlib.suppress(MemoryError):
            scratch = ops.memory(routine.workspace_bytes) if routine.workspace_bytes else None
            calls = ops.ready(ops.link(routine.steps(inputs, out, scratch)))
            least_s = _least_seconds(calls, hopeless_s, clock)
            seconds[routine.name] = min(least_s, seconds.get(routine.name, math.inf))

    for routine in routines:
        if routine.workspace_bytes <= most_bytes:
            time_it(routine)
    # In turn, so that a moment at which the machine was busy decides nothing.
    for _ in range(ROUNDS):
        limit_s = CLOSE * min(seconds.values(), default=0.0)
        close = [each for each in routines if seconds.get(each.name, math.inf) <= limit_s]
        for routine in close if len(close) > 1 else ():
            time_it(routine)
    if not seconds:
        raise MemoryError(f"no routine has enough memory for {convolution_key(problem)}")
    fastest = min(seconds, key=lambda name: seconds[name])
    return {"routine": fastest, "ms": {name: round(1e3 * s, 4) for name, s in seconds.items()}}


def _least_seconds(calls: Sequence[Step], hopeless_s: float, clock: Callable[[], float]) -> float:
    """Return the least time of repeated calls; stop as soon as one takes over `hopeless_s`."""
    best = math.inf
    spent, times = 0.0, 0
    while times < 4 or spent < MEASURED_S:
        began = clock()
        for function, arguments in calls:
            function(*arguments)
            if times == 0 and clock() - began > hopeless_s:
                break
        taken = clock() - began
        best, spent, times = min(best, taken), spent + taken, times + 1
        if best > hopeless_s:
            break
    return best


class RoutineTable:
    """Table of the routine that computes each operation, by size.

    Parameters
    ----------
    choices : mapping of str to sequence of (int, str)
        For each operation of `CANDIDATES` rows of a size and the candidate from that size on;
        sizes ascend from 0.
    convolutions : ConvolutionChoices, optional
        Routine of each convolution. Those measured later are added to it.

    Raises
    ------
    ConfigurationError
        If an operation or candidate is unknown, or sizes do not ascend from 0.
    """

    def __init__(self, choices: Choices, convolutions: ConvolutionChoices | None = None) -> None:
        self.convolutions = convolutions or ConvolutionChoices()
        try:
            self.choices = {
                name: [(int(a), str(b)) for a, b in rows] for name, rows in choices.items()
            }
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            message = "choices are rows of (size, candidate) for each operation"
            raise ConfigurationError(f"routines: {message}, not {choices!r:.100}") from error
        for name, rows in self.choices.items():
            sizes = [size for size, _ in rows]
            known = name in CANDIDATES and all(how in CANDIDATES[name] for _, how in rows)
            if not known or sizes[:1] != [0] or sizes != sorted(set(sizes)):
                raise ConfigurationError(f"routines: {name!r} with {rows} is no table of routines")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RoutineTable) and (self.choices, self.convolutions.names) == (
            other.choices,
            other.convolutions.names,
        )

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, operation: str, size: int) -> str | None:
        """Return the candidate for an operation of a size; None where the table has no row."""
        rows = self.choices.get(operation)
        if rows is None:
            return None
        return rows[bisect_right(rows, size, key=lambda row: row[0]) - 1][1]

    def kept_in(self, folder: Path) -> RoutineTable:
        """Return this table with a folder for convolutions that are measured later.

        Processes whose tables have the same folder take the same routines.
        """
        return RoutineTable(self.choices, ConvolutionChoices(folder, self.convolutions.names))

    def to_json(self) -> str:
        """Return the table as JSON, to be stored with the results of a run."""
        given: dict[str, Any] = dict(self.choices)
        if self.convolutions.names:
            given[_CONVOLUTION] = self.convolutions.names
        if self.convolutions.folder is not None:
            given[_FOLDER] = str(self.convolutions.folder)
        return json.dumps(given, indent=1)

    @classmethod
    def from_json(cls, text: str) -> RoutineTable:
        """Return the table of a text from `to_json`; `ConfigurationError` if it is invalid."""
        from pathlib import Path

        try:
            given = json.loads(text)
            convolutions = dict(given.pop(_CONVOLUTION, {}))
            place = given.pop(_FOLDER, None)
            folder = None if place is None else Path(place)
            if not all(isinstance(name, str) for name in convolutions.values()):
                raise ValueError(f"{_CONVOLUTION!r} with {convolutions}")
            rows = {name: [(row[0], row[1]) for row in rows] for name, rows in given.items()}
            return cls(rows, ConvolutionChoices(folder, convolutions))
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise ConfigurationError(f"routines: no table of routines: {error}") from error

    @classmethod
    def measure(cls, ops: Any, clock: Callable[[], float] = time.perf_counter) -> RoutineTable:
        """Time ``ops.candidates()`` at a few sizes, a tenth of a second in all; return a table."""
        choices: dict[str, list[tuple[int, str]]] = {}
        for operation, size, calls in ops.candidates():
            fastest = min(calls, key=lambda name: _seconds(calls[name], clock))
            rows = choices.setdefault(operation, [])
            if not rows or rows[-1][1] != fastest:
                rows.append((size if rows else 0, fastest))
        return cls(choices)


def _seconds(call: Callable[[], object], clock: Callable[[], float], times: int = 15) -> float:
    call()
    taken = []
    for _ in range(times):
        began = clock()
        call()
        taken.append(clock() - began)
    return float(np.median(taken))
