"""The files of a run directory: their paths, and requests to stop or to go on.

::

    runs/<name>-<time>/
        workflow.toml       the file that was run
        journal.jsonl       the events of the run, one record a line
        results.csv         the rows that a module added or wrote, in order of arrival
        results-2.csv       the rows of a second table, if there is one
        sweeps/<group>.<module>/trials.jsonl    the trials of a sweep, a line for each
        sweeps/<group>.<trainer>.<copy>.<rank>.under-way    the trials that this rank runs now
        sweeps/<group>.<trainer>.<copy>.curve   the reports of a long trial there so far
        logs/<module>.<copy>.<rank>.log
        logs/rank-<rank>.crash      Python's stack when that rank crashed; empty if it has not
        logs/launcher.log   what mpiexec wrote, and ranks while they ran no module
        status.json         waits, progress, contents of tuple servers, while the run goes on
        tuples.json         the socket for outside access to the tuples, while the run goes on
        report.html         the report of a sweep that filled results.csv, to open in a browser
        report-2.html       the report on results-2.csv
        trace.json          what each rank did and when, for https://ui.perfetto.dev
        trace/rank-<rank>.jsonl     the events of one rank, from which trace.json is made
        checkpoints/        the tuple space as it was when a group had finished an iteration
        states/<module>.<copy>.<rank>.<group>.<iteration>_<version>.zip
                            saved states of modules, for a run that is resumed
        spill/<session>/    payloads that tuple servers wrote to disk, while the run goes on
        tasks/              which tasks of executables are done, for a run that goes on
        returned/           returned values of modules that are too large for the journal
        elements/<group>.csv        results of all elements of a group with foreach
        elements/<group>-<number>/  a folder for files of one element
        plan.json           the workflow as the launcher has checked it, until rank 0 has read that
        part.json           which modules of the file run here, where not all do
        joined/             runs whose ranks have joined a sweep of this one
        stop                a request to stop the run
        more                a request to go on with a run that has finished
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import shlex
import shutil
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from diel.errors import RunDirectoryError
from diel.exit_codes import NOT_FINISHED, STOPPED
from diel.frozen import Frozen
from diel.run.files import PART, file_opener, open_regular, part_of, read_json, replace_file
from diel.run.json_values import DamagedRecord, parse_json

if TYPE_CHECKING:
    from diel.run.part import Part
    from diel.run.records import RunCreated

ELEMENTS: Final = "elements"
LOST_OR_ENDED: Final = "somebody ends the job, or its launcher, having lost a rank"
"""The reason in a request to stop that a rank makes after a signal; under ``diel run`` the launcher
has then lost a rank."""
_STOP: Final = "a stop was asked for"
_LONGEST_REASON: Final = 1000
_WITHOUT_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
"""Errors of ``os.link`` on file systems without hard links."""
_UNUSED_AFTER_S: Final = 600.0
_LONGEST_LINE_BYTES: Final = 2**24
_LAST_WORDS_BYTES: Final = 256 * 1024
_STARTED_AGAIN: Final = "\n== diel starts mpiexec again\n"
_FOLDERS: Final = frozenset(
    {"logs", "sweeps", "trace", "checkpoints", "states", "spill", "tasks", "returned"}
)
_OWN_FILE: Final = re.compile(
    r"journal\.jsonl|workflow\.toml|plan\.json|part\.json|tuples\.json|stop|more|results(-\d+)?\.csv"
    r"|report(-\d+)?\.html|status\.json|trace\.json"
)


class RunDirectory:
    """The directory of one run: the paths of its files, and requests to the run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self.workflow = self.path / "workflow.toml"
        self.plan = self.path / "plan.json"
        self.part = self.path / "part.json"
        self.joined = self.path / "joined"
        self.journal = self.path / "journal.jsonl"
        self.logs = self.path / "logs"
        self.launcher_log = self.logs / "launcher.log"
        self.spill = self.path / "spill"
        self.checkpoints = self.path / "checkpoints"
        self.states = self.path / "states"
        self.tasks = self.path / "tasks"
        self.returned = self.path / "returned"
        self.elements = self.path / ELEMENTS
        self.status = self.path / "status.json"
        self.tuple_access = self.path / "tuples.json"
        self.trace = self.path / "trace.json"
        self.trace_parts = self.path / "trace"
        self.stop_request = self.path / "stop"
        self.extension_request = self.path / "more"

    @classmethod
    def create(
        cls,
        parent: str | os.PathLike[str],
        name: str,
        workflow_file: Path,
        *,
        private: bool = True,
        at: Path | None = None,
        given: Sequence[str] = (),
        part: Part | None = None,
    ) -> RunDirectory:
        """Make a new run directory with a copy of the workflow file in it.

        Parameters
        ----------
        parent : path
            Usually ``runs``; made if need be.
        name : str
            The workflow's name.
        workflow_file : path
        private : bool, optional
            Whether only its owner may enter it, and so read its files, whatever the umask.
        at : path, optional
            The directory itself, in place of a new name in `parent`; it must not exist yet.
        given : sequence of str, optional
            Settings of the command line, each ``KEY=VALUE``.
        part : Part, optional
            Which groups of the workflow run; default: all.

        Raises
        ------
        RunDirectoryError
            If it cannot be made.
        """
        from diel.run.fields import encoded
        from diel.run.records import RunCreated  # here, so that ranks start sooner

        stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        mode = 0o700 if private else 0o777
        try:
            if at is not None:
                at.parent.mkdir(parents=True, exist_ok=True)
                at.mkdir(mode)
                run = cls(at)
            else:
                Path(parent).mkdir(parents=True, exist_ok=True)
                run = cls(_make_unused(Path(parent), stem, mode))
            run.logs.mkdir()
            with run.workflow.open("xb") as copy:
                copy.write(workflow_file.read_bytes())
            # A run that is killed before its first record can be resumed all the same.
            record = RunCreated(
                file=str(workflow_file.absolute()),
                given=list(given),
                only=list(part.only if part else ()),
                from_groups=list(part.from_groups if part else ()),
            )
            created = encoded(record, time.time())
            with run.journal.open("x", encoding="utf-8") as journal:
                journal.write(json.dumps(created) + "\n")
        except OSError as error:
            raise RunDirectoryError(
                f"cannot make a run directory {f'in {parent}' if at is None else at}: "
                f"{error.strerror or error}; "
                f"choose another place with {'--runs DIR' if at is None else '--run-dir'}"
            ) from error
        return run

    def given(self) -> list[str]:
        """Return the settings of the command line with which the run has begun."""
        created = self._created()
        return [] if created is None else list(created.given)

    def started_with(self) -> Path:
        """Return the workflow file that the run was made for, or its copy where that is unknown."""
        created = self._created()
        return Path(created.file) if created is not None and created.file else self.workflow

    def chosen_part(self) -> Part:
        """Return which groups of the workflow the run has been limited to when it was made."""
        from diel.run.part import Part

        created = self._created()
        return Part() if created is None else Part(tuple(created.only), tuple(created.from_groups))

    def _created(self) -> RunCreated | None:
        from diel.run.records import RunCreated, decode

        try:
            with open_regular(self.journal) as journal:
                first = decode(journal.readline(_LONGEST_LINE_BYTES))
        except (OSError, DamagedRecord):
            return None
        return first if isinstance(first, RunCreated) else None

    def limit_to(self, group: str, modules: Sequence[str]) -> None:
        """Limit a run that has not begun to some modules of one group."""
        replace_file(self.part, json.dumps({"group": group, "modules": list(modules)}))

    def limits(self) -> tuple[str, list[str]] | None:
        """Return the group and the modules that `limit_to` was given; None if all run here."""
        try:
            said = read_json(self.part)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RunDirectoryError(f"{self.part} cannot be read: {error}") from error
        group, modules = (said.get("group"), said.get("modules")) if type(said) is dict else ("", 0)
        if type(group) is str and type(modules) is list and all(type(m) is str for m in modules):
            return group, modules
        raise RunDirectoryError(
            f"{self.part} is damaged: it does not say which modules of a group run here"
        )

    def results_table(self, number: int) -> Path:
        """Return the file of the first, second, ... table of results."""
        return _results_table(self.path, number)

    def report_of(self, table: str) -> Path:
        """Return the file of the report on a table of results, by the name of its file."""
        return self.path / f"report{Path(table).stem.removeprefix('results')}.html"

    def reports(self) -> list[Path]:
        """Return the existing reports, in the order of their tables."""
        found = (file for file in self.path.glob("report*.html") if file.is_file())
        return sorted(found, key=lambda path: (len(path.name), path.name))

    def module_log(self, module: str, copy_index: int, copy_rank: int) -> Path:
        """Return the log file of one rank of one copy of a module."""
        return self.logs / f"{module}.{copy_index}.{copy_rank}.log"

    def crash_note(self, rank: int) -> Path:
        """Return the file to which a rank writes Python's stack when it crashes."""
        return self.logs / f"rank-{rank}.crash"

    def crashes(self) -> list[tuple[int, str]]:
        """Return the ranks that have crashed, each with the text of its crash file."""
        found = []
        for note in self.logs.glob("rank-*.crash"):
            number = note.stem.removeprefix("rank-")
            if number.isdecimal() and (text := _end_of(note).strip()):
                found.append((int(number), text))
        return sorted(found)

    def forget_crashes(self) -> None:
        """Remove the crash files of ranks, before the ranks are started again."""
        for note in self.logs.glob("rank-*.crash"):
            try:
                note.unlink(missing_ok=True)
            except OSError as error:  # such as a folder of that name, where a rank could not write
                raise RunDirectoryError(f"{note} cannot be removed: {error.strerror}") from error

    def forget_in_flight(self) -> None:
        """Remove the notes of trials that ranks were running when they were told to stop."""
        for note in self.path.glob("sweeps/*.under-way"):
            with contextlib.suppress(OSError):  # such as a folder of that name
                note.unlink()

    def forget_spilled(self) -> None:
        """Remove payloads that tuple servers of earlier sessions have left on the disk."""
        shutil.rmtree(self.spill, ignore_errors=True)  # what stays is in nobody's way

    def recorded_bytes(self) -> int:
        """Return the size of all ledgers of sweeps: it grows with each trial, despite lost ranks.

        The first line of a ledger, which describes the sweep, does not count.
        """
        size_bytes = 0
        for ledger in self.path.glob("sweeps/*/trials.jsonl"):
            with contextlib.suppress(OSError), open_regular(ledger) as file:
                size_bytes += os.fstat(file.fileno()).st_size - len(file.readline())
        return size_bytes

    def keep_states(self, names: Sequence[str]) -> None:
        """Remove all saved states of modules, except the files of these names."""
        _keep_files(self.states, names)

    def trace_part(self, rank: int) -> Path:
        """Return the file of one rank's events for the trace."""
        return self.trace_parts / f"rank-{rank}.jsonl"

    def launcher_output(self) -> str:
        """Return the end of the launcher's log, since mpiexec last started; empty if it is missing.

        It is the output of mpiexec, and what ranks have written there by themselves.
        """
        return _end_of(self.launcher_log).rpartition(_STARTED_AGAIN)[2]

    def end_of_log(self, name: str) -> str:
        """Return the end of a log of a module; empty if it cannot be read."""
        return _end_of(self.logs / name)

    def note_start(self) -> int:
        """Write to the launcher's log that mpiexec starts again, if it does; return the log's size.

        An OSError if the log cannot be written.
        """
        with open(self.launcher_log, "a", encoding="utf-8", opener=file_opener) as log:
            if log.tell():
                log.write(_STARTED_AGAIN)
            return log.tell()

    def request_stop(self, why: str = _STOP, exit_code: int = STOPPED) -> None:
        """Ask the run to stop; rank 0 looks for this now and then.

        The first request counts; but any other replaces that of a rank that had a signal.

        Parameters
        ----------
        why : str, optional
        exit_code : int, optional
            The exit code of the run, unless it fails.

        Raises
        ------
        OSError
            If the request cannot be written; then none is made.
        """
        # Whole or not at all: this process may be killed meanwhile, and an empty file counts as a
        # person's request, after which no run is started again.
        part = part_of(self.stop_request)
        try:
            with part.open("x", encoding="utf-8") as file:
                file.write(json.dumps({"reason": why, "exit_code": exit_code}))
            if LOST_OR_ENDED not in why and self.is_lost_or_ended():
                part.replace(self.stop_request)
            else:
                _make_unless_there(part, self.stop_request)
        finally:
            part.unlink(missing_ok=True)

    def table_of_elements(self, group: str) -> Path:
        """Return the file with the results of all elements of a group with ``foreach``."""
        return self.elements / f"{group}.csv"

    def checkpoint_file(self, number: int) -> Path:
        """Return the file of the first, second, ... checkpoint."""
        return self.checkpoints / f"{number:06d}.tuples"

    def keep_checkpoints(self, numbers: Sequence[int]) -> None:
        """Remove the files of all checkpoints, except those of these numbers."""
        _keep_files(self.checkpoints, [self.checkpoint_file(number).name for number in numbers])

    def refuse_links(self) -> None:
        """Raise if a resumed run would write through a link, so into a file that is not its own.

        A RunDirectoryError if a file of the run is no regular file, or a folder of it no folder.
        """
        for place in sorted(self.path.iterdir()):
            is_folder = place.name in _FOLDERS
            if not is_folder and not _OWN_FILE.fullmatch(place.name):
                continue
            _refuse_unless(place, is_folder=is_folder)
            for folder, folders, files in os.walk(place) if is_folder else ():
                for name in folders:
                    _refuse_unless(Path(folder, name), is_folder=True)
                for name in files:
                    _refuse_unless(Path(folder, name), is_folder=False)

    def remove_parts(self) -> None:
        """Remove the unfinished files that killed processes have left; not those being written."""
        oldest_s = time.time() - _UNUSED_AFTER_S
        for folder in (self.path, self.returned, self.states, *self.path.glob("sweeps/*/")):
            with contextlib.suppress(OSError):
                for place in list(os.scandir(folder)):
                    about = place.stat(follow_symlinks=False)
                    is_part = PART.fullmatch(place.name) and stat.S_ISREG(about.st_mode)
                    if is_part and about.st_mtime < oldest_s:
                        os.unlink(place.path)

    def withdraw_stop(self) -> None:
        """Remove the request to stop the run."""
        self.stop_request.unlink(missing_ok=True)

    def stop_requested(self) -> bool:
        """Whether there is a request to stop the run."""
        return self.stop_request.exists()

    def is_lost_or_ended(self) -> bool:
        """Whether the request to stop the run is that of a rank that had a signal."""
        return self.stop_requested() and LOST_OR_ENDED in self.stop_reason()

    def request_extension(self) -> None:
        """Ask a run that has finished to go on from its last checkpoint when it is resumed."""
        with contextlib.suppress(FileExistsError), self.extension_request.open("x"):
            pass

    def extension_requested(self) -> bool:
        """Whether a finished run is asked to go on when it is resumed."""
        return self.extension_request.exists()

    def withdraw_extension(self) -> None:
        """Remove the request to go on with a finished run."""
        self.extension_request.unlink(missing_ok=True)

    def stop_reason(self) -> str:
        """Return the reason that `request_stop` was given."""
        return " ".join(str(self._stop_said().get("reason", "")).split()) or _STOP

    def exit_code_of_stop(self) -> int:
        """Return the exit code that `request_stop` was given."""
        exit_code = self._stop_said().get("exit_code")
        return NOT_FINISHED if exit_code == NOT_FINISHED else STOPPED

    def _stop_said(self) -> dict[str, object]:
        # Users may make the file by hand, with any content.
        try:
            with open_regular(self.stop_request) as file:
                text = file.read(_LONGEST_REASON).decode(errors="replace")
        except OSError:
            return {}
        try:
            said = parse_json(text.encode())
        except ValueError:
            return {"reason": text}
        return said if isinstance(said, dict) else {"reason": text}


def is_own_name(name: str) -> bool:
    """Whether a name in a run directory is that of a file or a folder of the run's own."""
    return name in _FOLDERS or _OWN_FILE.fullmatch(name) is not None


def state_of(module: str, copy: int, rank: int, group: str, iteration: Sequence[int]) -> str:
    """Return the common stem of the file names of all states that a rank of a copy saves."""
    return f"{module}.{copy}.{rank}.{group}.{'-'.join(map(str, iteration))}"


def state_stem(name: str) -> str:
    """Return the stem of a state file's name, without the version, as `state_of` makes it."""
    return name.rpartition("_")[0]


def version_of_state(name: str) -> int:
    """Return the version of a state from its file's name, from 1; 0 if it is no such name."""
    number = name.rpartition("_")[2].partition(".")[0]
    return int(number) if number.isdecimal() else 0


def group_of_state(name: str) -> str:
    """Return the group in whose iteration a state was saved, from the name of its file."""
    return name.split(".")[3]


def _end_of(path: Path) -> str:
    """Return the end of a text file; empty if it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _make_unless_there(part: Path, file: Path) -> None:
    """Give a finished file its final name, unless there is a file of that name."""
    try:
        os.link(part, file)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in _WITHOUT_LINKS:
            raise
        if not file.exists():
            part.replace(file)


def _refuse_unless(path: Path, *, is_folder: bool) -> None:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        raise RunDirectoryError(
            f"{path} is a link: a run that goes on would write through it. Put a "
            f"{'folder' if is_folder else 'file'} in its place, or remove it"
        )
    if not (stat.S_ISDIR(mode) if is_folder else stat.S_ISREG(mode)):
        raise RunDirectoryError(f"{path} is no {'folder' if is_folder else 'file'}: remove it")


def _keep_files(folder: Path, names: Sequence[str]) -> None:
    with contextlib.suppress(FileNotFoundError):
        for place in sorted(folder.iterdir()):
            if place.name not in names and place.is_file():
                place.unlink(missing_ok=True)


def new_results_file(run_dir: Path) -> Path:
    """Create an empty file for a table of results, with the first name that is not taken.

    Rank 0 and modules may do so at the same time: each gets a file of its own.
    """
    for number in itertools.count(1):
        path = _results_table(run_dir, number)
        try:
            path.open("x").close()
        except FileExistsError:
            continue
        return path
    raise AssertionError("numbers do not end")


def repeat_command(run_dir: str | os.PathLike[str]) -> str:
    """Return the command that repeats a run, from within its directory, with what it was given."""
    from diel.run.part import words_of_choices

    run = RunDirectory(run_dir)
    choices = words_of_choices(run.given(), run.chosen_part())
    return shlex.join(["diel", "run", "workflow.toml", *choices])


def _results_table(run_dir: Path, number: int) -> Path:
    return run_dir / ("results.csv" if number == 1 else f"results-{number}.csv")


def _make_unused(parent: Path, stem: str, mode: int) -> Path:
    for number in range(1, 1000):
        path = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir(mode)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(f"{stem} and 998 more of that name exist")


# -- access to the tuples from outside ------------------------------------------------------------


class TupleAccess(Frozen):
    """Content of ``tuples.json``: the socket by which the tuples of a run can be reached.

    Only its owner may read the file (mode 0600), and the folder of the socket is open to the owner
    only.
    """

    host: str  # where the socket is
    address: str  # its path
    token: str  # to be sent with each request


def write_tuple_access(directory: RunDirectory, access: TupleAccess) -> None:
    """Write ``tuples.json`` in one step, in place of an older one.

    An OSError if it cannot be written.
    """
    replace_file(directory.tuple_access, json.dumps(access.as_dict()), mode=0o600)


def read_tuple_access(directory: RunDirectory) -> TupleAccess | None:
    """Return the content of ``tuples.json``; None if it is missing or cannot be read."""
    try:
        found = read_json(directory.tuple_access)
        return TupleAccess(str(found["host"]), str(found["address"]), str(found["token"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None
