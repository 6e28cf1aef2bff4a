"""The records of the journal: a class for each event, with the kinds of its fields.

::

    {"time_s": 1700000000.25, "event": "GroupStarted", "group": "train", "iteration": [0], ...}

A line of the journal is a record, under the name of its class. `decode` makes records of lines, and
`fields.encoded` tables of records. The kind of a field stands beside its type, and a field that
older journals lack has a default, so that a damaged line is found in one place, and code that uses
a record can rely on its fields.

Fields and events may be added at any time: versions that do not know them pass them over. Where an
event or a field changes its meaning, `FORMAT` goes up; `RunCreated` and `RunResumed` say in which
format what follows them is written, and a later one than this is refused.
"""

# Annotations are evaluated here: they hold what the fields of a record may be.
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

from diel.errors import RunDirectoryError
from diel.frozen import Frozen
from diel.run.fields import (
    ANY,
    COUNT,
    COUNTS,
    EVENTS,
    FILE_NAME,
    INTEGER,
    NUMBER,
    ROW,
    SECONDS,
    TEXT,
    TEXTS,
    TRUTH,
    Column,
    Count,
    Counts,
    Kind,
    Record,
    Row,
    Seconds,
    Text,
    Texts,
    complete,
    field,
    list_of,
    list_of_tables,
    or_none,
    table_of,
)
from diel.run.json_values import DamagedRecord, StoredValue, parse_json
from diel.text import as_toml, show

FORMAT: Final = 1
"""The version of the journal that is written, and the latest that is read."""
_MOST_RANKS: Final = 2**20

_RANKS: Final = Kind(
    "a number of ranks", lambda value: type(value) is int and 1 <= value <= _MOST_RANKS
)
_FILE_NAMES: Final = list_of(FILE_NAME, "a list of names of files")
_ITERATION: Final = Kind(
    "a list of whole numbers", lambda value: COUNTS.fits(value) and len(value) > 0, tuple
)
_FINISHED: Final = table_of(
    Kind(
        "an iteration and whether it was the last",
        lambda value: (
            type(value) is list
            and len(value) == 2
            and _ITERATION.fits(value[0])
            and TRUTH.fits(value[1])
        ),
    ),
    "a table of the last iteration of groups",
)._replace(
    convert=lambda table: {
        group: Finished(tuple(iteration), is_last) for group, (iteration, is_last) in table.items()
    }
)

_ALWAYS: Final = {"time_s": Column(SECONDS, True), "event": Column(TEXT, True)}

Iteration: TypeAlias = Annotated[tuple[int, ...], _ITERATION]
"""Numbers from 0, outermost first: one of each enclosing group, then that of the group itself."""


class Finished(NamedTuple):
    """The last iteration of a group that is finished, and whether no further one follows it.

    A mapping from groups to this holds all that a run has finished, since iterations finish in
    order: if the iteration of an entry belongs to an earlier pass of the enclosing group, nothing
    of the present pass is finished.
    """

    iteration: tuple[int, ...]
    is_last: bool


FinishedGroups: TypeAlias = Annotated[Mapping[str, Finished], _FINISHED]
Outcomes: TypeAlias = Annotated[Mapping[str, str], table_of(TEXT, "a table of text")]
"""By group, ``failed`` or ``skipped``; a group that has simply finished is not in it."""


TableName: TypeAlias = tuple[str, frozenset[str]]
"""A table of results: the module that fills it, and its columns, or its own file."""


# -- parts of records -----------------------------------------------------------------------------


class Node(Frozen):
    """A machine: its ranks, and its GPUs as CUDA names them."""

    host: Text
    ranks: Counts
    gpus: Annotated[Sequence[str], ANY] = ()


class Elements(Frozen):
    """The elements of a group with ``foreach``: the groups inside it, in the same order.

    Attributes
    ----------
    group : str
    columns : sequence of str
        The names of their values.
    rows : sequence of sequence
        The values of each.
    at_once : int or None
        How many run at the same time; None for as many as there are ranks for.
    failures : int or None
        How many may fail; None where the first that fails ends the run.
    """

    group: Text
    columns: Texts
    rows: Annotated[Sequence[Sequence[Any]], list_of(list_of(ANY, "a list"), "a list of lists")]
    at_once: Annotated[int | None, or_none(COUNT)] = None
    failures: Annotated[int | None, or_none(COUNT)] = None


class RankTimes(Frozen):
    """The times of a rank; `copies` are the names of copies that ran there, or ``tuple server``."""

    rank: Count
    host: Text
    copies: Texts
    working_s: Seconds
    waiting_s: Seconds
    communicating_s: Seconds
    cpu_s: Seconds = 0.0


class ModuleTimes(Frozen):
    """The times of a module, summed over the ranks that ran it."""

    module: Text
    ranks: Count
    working_s: Seconds
    waiting_s: Seconds
    communicating_s: Seconds
    cpu_s: Seconds = 0.0


# -- records --------------------------------------------------------------------------------------


class _UnknownRecord(Record):
    """A record of an event that a later version has added."""


class _OfGroup(Record):
    group: Text
    iteration: Iteration = (0,)


class _OfCopy(Record):
    module: Text
    copy: Count

    @property
    def name(self) -> str:
        """The name of the copy: ``module.copy``."""
        return f"{self.module}.{self.copy}"


class _OfResults(Record):
    module: Text
    copy: Annotated[int, ANY] = 0  # no reader relies on it


class RunCreated(Record):
    """The run directory was made for a workflow file.

    Attributes
    ----------
    file : str
    format : int
        Of the journal.
    given : sequence of str
        Settings of the command line, each ``KEY=VALUE``.
    only, from_groups : sequence of str
        The groups that run alone, or with which it begins, where not all run.
    """

    file: Text
    format: Count = 1
    given: Texts = field(default=(), is_sparse=True)
    only: Texts = field(default=(), is_sparse=True)
    from_groups: Texts = field(default=(), is_sparse=True)


class RunStarted(Record):
    """Rank 0 begins, also where a run is resumed.

    Attributes
    ----------
    workflow : str
        Its name.
    ranks : int
        Number of all ranks, with rank 0 and tuple servers.
    groups : sequence of str
        All groups, in the order of the file.
    finished : mapping of str to Finished
        What a resumed run has finished already, by group.
    file : str
        The workflow file.
    host : str
        The host of rank 0.
    diel, python, mpi : str
        Versions.
    copies : mapping of str to mapping of str to int
        Number of copies, by group and module.
    iterations : mapping of str to int or None
        Most iterations in a row, by group; None for any number.
    until : sequence of str
        Groups that a tuple may end sooner.
    tags : mapping of str to str
        The tag of that tuple, by group.
    inside : mapping of str to str
        The enclosing group, by group.
    depends : mapping of str to sequence of str
        Groups that have to finish before it, by group.
    processes : mapping of str to int
        Ranks of each copy, by module; 1 for a module that is not named.
    servers : sequence of int
        Ranks that are tuple servers.
    threads : mapping of str to int
        Threads of each rank, by module.
    nodes : sequence of Node
        The nodes of the ranks that run modules.
    parameters : mapping of str to value
        The values of the file's parameters.
    when : mapping of str to str
        The condition of groups that may be skipped, or will be.
    outcomes : mapping of str to str
        How the groups in `finished` have ended, where not as ``finished``.
    resources : mapping of str to int
        How many there are of each resource that groups share.
    taken : mapping of str to mapping of str to int
        What each copy takes of these, by module.
    part : str
        The options that say which groups of the file run, where not all do.
    elements : sequence of Elements
        Of each group with ``foreach``.
    """

    workflow: Text
    ranks: Annotated[int, _RANKS]
    groups: Texts
    finished: FinishedGroups = field(default_factory=dict, is_sparse=True)
    file: Text = ""
    host: Annotated[str, ANY] = ""
    diel: Annotated[str, ANY] = ""
    python: Annotated[str, ANY] = ""
    mpi: Text = "MPI"
    copies: Annotated[
        Mapping[str, Mapping[str, int]],
        table_of(table_of(COUNT, "a table of whole numbers"), "a table of tables of numbers"),
    ] = field(default_factory=dict)
    iterations: Annotated[
        Mapping[str, int | None], table_of(or_none(COUNT), "a table of whole numbers")
    ] = field(default_factory=dict)
    until: Texts = ()
    tags: Annotated[Mapping[str, str], table_of(TEXT, "a table of text")] = field(
        default_factory=dict, is_sparse=True
    )
    inside: Annotated[Mapping[str, str], table_of(TEXT, "a table of text")] = field(
        default_factory=dict
    )
    depends: Annotated[Mapping[str, Sequence[str]], table_of(TEXTS, "a table of lists of text")] = (
        field(default_factory=dict, is_sparse=True)
    )
    processes: Annotated[Mapping[str, int], table_of(COUNT, "a table of whole numbers")] = field(
        default_factory=dict, is_sparse=True
    )
    servers: Counts = ()
    threads: Annotated[Mapping[str, int], ANY] = field(default_factory=dict)
    nodes: Annotated[Sequence[Node], list_of_tables(Node, "a list of nodes with their ranks")] = ()
    parameters: Row = field(default_factory=dict, is_sparse=True)
    when: Annotated[Mapping[str, str], table_of(TEXT, "a table of text")] = field(
        default_factory=dict, is_sparse=True
    )
    outcomes: Outcomes = field(default_factory=dict, is_sparse=True)
    resources: Annotated[Mapping[str, int], table_of(COUNT, "a table of whole numbers")] = field(
        default_factory=dict, is_sparse=True
    )
    taken: Annotated[
        Mapping[str, Mapping[str, int]],
        table_of(table_of(COUNT, "a table of whole numbers"), "a table of tables of numbers"),
    ] = field(default_factory=dict, is_sparse=True)
    part: Text = field(default="", is_sparse=True)
    elements: Annotated[
        Sequence[Elements], list_of_tables(Elements, "a list of elements of groups")
    ] = field(default=(), is_sparse=True)


class RunResumed(Record):
    """The run is asked to go on from a checkpoint: what came later will be repeated.

    Attributes
    ----------
    checkpoint : int
        Its number; 0 for the very beginning.
    file : str or None
        The file with its tuples, if there were any.
    finished : mapping of str to Finished
        What is finished at that checkpoint, by group, or has finished since and is not repeated.
    restart : int
        Which restart by the launcher it is, counted from 1; 0 where a person has asked.
    outcomes : mapping of str to str
        How these groups have ended, where not as ``finished``.
    states : sequence of str
        The names of the files with the states of modules that go on from them.
    """

    checkpoint: Count
    file: Annotated[str | None, or_none(FILE_NAME)]
    finished: FinishedGroups
    format: Count = 1
    states: Annotated[Sequence[str], _FILE_NAMES] = field(default=(), is_sparse=True)
    restart: Count = field(default=0, is_sparse=True)
    outcomes: Outcomes = field(default_factory=dict, is_sparse=True)


class RunLost(Record):
    """Ranks, a host or mpiexec have died, and the run with them; written by its launcher.

    Attributes
    ----------
    explanation : str
        What is known of the cause, in one line.
    detail : str
        Further lines: where a crash was, or what mpiexec printed.
    ranks : sequence of int
        The ranks that died first, as far as that is known.
    restart : int
        Which restart follows, counted from 1; 0 if none does.
    on_ranks : int
        How many ranks that restart has.
    refusal : str
        Why no restart follows, where restarts were asked for.
    """

    explanation: Text
    detail: Text = field(default="", is_sparse=True)
    ranks: Counts = field(default=(), is_sparse=True)
    restart: Count = field(default=0, is_sparse=True)
    on_ranks: Count = field(default=0, is_sparse=True)
    refusal: Text = field(default="", is_sparse=True)


class RunRefused(Record):
    """A run could not be resumed; nothing has started."""

    error: Text
    exit_code: Annotated[int, INTEGER]


class GroupStarted(_OfGroup):
    """An iteration of a group begins.

    Attributes
    ----------
    copies : mapping of str to int
        Number of copies of each module, in a group of modules.
    placement : mapping of str to sequence of int
        The ranks of each copy, in a group of modules.
    groups : sequence of str
        The inner groups, in a group of groups.
    """

    copies: Annotated[Mapping[str, int], table_of(COUNT, "a table of whole numbers")] = field(
        default_factory=dict, is_sparse=True
    )
    placement: Annotated[
        Mapping[str, Sequence[int]], table_of(COUNTS, "a table of lists of ranks")
    ] = field(default_factory=dict, is_sparse=True)
    groups: Texts = field(default=(), is_sparse=True)


class ModuleCommMade(_OfGroup):
    """All copies of a module share ``ctx.module_comm`` from now on."""

    module: Text


class CopyFinished(_OfCopy, _OfGroup):
    """A copy is done on all its ranks.

    Attributes
    ----------
    returned : object
        What rank 0 of the copy returned, in JSON's own types; None also for a value that is too
        large for a journal, which the other fields describe.
    returned_file : str or None
        The name of its file; None if it could not be written.
    returned_type : str
        Its Python type; empty unless the value is too large.
    returned_bytes : int
        The size of its file.
    is_apart : bool
        Whether it is a program that has not used the tuple space.
    """

    attempt: Count = 1
    returned: Annotated[Any, ANY] = None
    returned_file: Annotated[str | None, or_none(FILE_NAME)] = field(default=None, is_sparse=True)
    returned_type: Text = field(default="", is_sparse=True)
    returned_bytes: Count = field(default=0, is_sparse=True)
    is_apart: Annotated[bool, TRUTH] = field(default=False, is_sparse=True)

    @classmethod
    def of(cls, value: Any, **place: Any) -> "CopyFinished":
        """Return the record of a copy's returned value, or of the `StoredValue` for a large one."""
        if not isinstance(value, StoredValue):
            return cls(returned=value, **place)
        return cls(
            returned_file=value.file,
            returned_type=value.type,
            returned_bytes=value.size_bytes,
            **place,
        )

    @property
    def value(self) -> Any:
        """The returned value, or the `StoredValue` that describes it."""
        if not self.returned_type:
            return self.returned
        return StoredValue(self.returned_type, self.returned_bytes, self.returned_file)


class ModuleFailed(_OfCopy, _OfGroup):
    """A copy has failed; `policy` says what follows.

    Attributes
    ----------
    rank : int or None
        Of the pool; None for a time limit, which is the failure of no rank in particular.
    copy_rank : int or None
        The same rank, counted within the copy.
    ranks : sequence of int
        All ranks of the copy.
    host : str
        Of that rank.
    error : str
        In one line.
    detail : str
        Its traceback.
    policy : str
        ``stop``, ``continue`` or ``retry``; the latter also where a retry follows only once every
        rank has left.
    whole_module : bool
        Whether the policy is applied to all copies, since they share a communicator.
    """

    group: Text = ""
    attempt: Count = 1
    rank: Annotated[int | None, or_none(COUNT)] = None
    copy_rank: Annotated[int | None, or_none(COUNT)] = None
    ranks: Counts = ()
    host: Text = ""
    error: Text
    detail: Text = ""
    policy: Text = "stop"
    whole_module: Annotated[bool, TRUTH] = False

    @property
    def stops_run(self) -> bool:
        """Whether the run ends because of this failure."""
        return self.policy == "stop"


class CopiesRestarted(_OfGroup):
    """Copies of a module start again; `attempt` counts from 1."""

    module: Text
    copies: Counts
    attempt: Count


class CopyGivenUp(_OfCopy, _OfGroup):
    """A copy has failed, all its ranks have left, and the rest goes on without it."""

    attempt: Count = 1
    error: Text


class TaskFailed(_OfCopy, _OfGroup):
    """A task of an executable has failed, and its copy goes on with the next.

    Attributes
    ----------
    task, total : int
        Which of how many, from 0.
    error : str
        In one line.
    detail : str
        The last lines of its standard error.
    """

    task: Count
    total: Count
    error: Text
    detail: Text = field(default="", is_sparse=True)


class TasksFailed(_OfGroup):
    """An iteration of a group is about to finish although tasks of a module have failed.

    Attributes
    ----------
    module : str
    failed : sequence of int
    total : int
        How many tasks the module has.
    is_repeatable : bool
        Whether no copy of the group has used the tuple space, so that they can be repeated.
    """

    module: Text
    failed: Counts
    total: Count
    is_repeatable: Annotated[bool, TRUTH] = field(default=False, is_sparse=True)


class OutputsCurrent(_OfCopy, _OfGroup):
    """The outputs of a copy are up to date, so it counts as finished without having run."""


class GroupFinished(_OfGroup):
    """An iteration of a group is done.

    Attributes
    ----------
    ended_by : str or None
        Why no further iteration follows, ``iterations`` or ``until``; None if one does.
    outcome : str
        ``failed`` if copies of it, or of a group inside, were given up in this pass.
    """

    ended_by: Annotated[str | None, or_none(TEXT)] = "iterations"
    outcome: Text = field(default="finished", is_sparse=True)


class GroupSkipped(_OfGroup):
    """A group does not run in this pass, since its condition is false.

    Attributes
    ----------
    condition : str
        The ``when`` of the group.
    values : mapping of str to value
        What it was judged by; None for a tuple that was not there.
    """

    condition: Text
    values: Row = field(default_factory=dict)

    @property
    def is_by_tuples(self) -> bool:
        """Whether it was judged by tuples."""
        return any(name.startswith("value(") for name in self.values)

    @property
    def reason(self) -> str:
        """The condition and its values, in words."""
        seen = ", ".join(
            f"{name}: no tuple" if value is None else f"{name} = {show(value)}"
            for name, value in self.values.items()
        )
        return f"when = {as_toml(self.condition)} is false{f': {seen}' if seen else ''}"


class CheckpointSaved(Record):
    """The run can be resumed from here.

    Attributes
    ----------
    number : int
        Counted from 1.
    file : str or None
        The file with the tuples; None if there were none.
    states : sequence of str
        The names of the files in which modules had saved their own state.
    finished : mapping of str to Finished, or None
        Written until 1.3; what is finished at this moment follows from the records before.
    is_pinned : bool
        Whether it stays until the run has ended, since a group has just finished with failed tasks.
    """

    number: Count
    file: Annotated[str | None, or_none(FILE_NAME)]
    states: Annotated[Sequence[str], _FILE_NAMES] = field(default=(), is_sparse=True)
    finished: Annotated[Mapping[str, Finished] | None, or_none(_FINISHED)] = field(
        default=None, is_sparse=True
    )
    is_pinned: Annotated[bool, TRUTH] = field(default=False, is_sparse=True)


DEADLOCK: Final = "deadlock: every module waits for what no module puts, sends or receives"


class DeadlockFound(Record):
    """Every module waits for a tuple or a message that no module is left to put or send."""

    explanation: Text


class JournalLost(Record):
    """The journal was removed or cut; only processes that have it open can read this record."""

    explanation: Text


class WhenFailed(_OfGroup):
    """The condition of a group has no value, and so the run was ended."""

    explanation: Text


class LeaveIgnored(_OfCopy):
    """Ranks did not leave a copy that has failed, and so the run was ended."""

    group: Text = ""
    ranks: Counts = ()
    explanation: Text


class RanksLost(Record):
    """Ranks have died, or have not been heard of for too long.

    Attributes
    ----------
    ranks : sequence of int
    hosts : sequence of str
        Where they ran.
    explanation : str
        What ran there, and since when they are lost.
    policy : str
        ``stop``, or ``continue`` where the run goes on without them.
    """

    ranks: Counts
    hosts: Texts
    explanation: Text
    policy: Text = "stop"

    @property
    def stops_run(self) -> bool:
        """Whether the run ends because of this failure."""
        return self.policy == "stop"


Failure: TypeAlias = (
    ModuleFailed | DeadlockFound | JournalLost | LeaveIgnored | RanksLost | WhenFailed
)
"""A record of a failure that may end a run."""

LOSSES: Final[tuple[type[Record], ...]] = (RanksLost,)
"""The failures that are the loss of ranks or hosts: the launcher may start the run again."""


class StopOrdered(Record):
    """All ranks are told to stop."""

    reason: Text


class RanksAborted(Record):
    """Ranks did not report that they leave, and are ended."""

    ranks: Counts


class ResultsDeclared(_OfResults):
    """A module will add rows to a table of results.

    Attributes
    ----------
    columns : sequence of str
    objective : str
        The column that ranks the rows.
    maximise : bool
        Whether a larger value is better.
    expected : int or None
        How many rows there will be.
    file : str
        The name of a table that the module writes itself; else empty.
    parameters : sequence of str
        Columns whose values were chosen, not computed.
    facts : dict of str to str
        What the rows are computed on and with, by name.
    """

    columns: Texts
    objective: Text
    maximise: Annotated[bool, TRUTH]
    expected: Annotated[int | None, or_none(COUNT)]
    file: Annotated[
        str, Kind("the name of a file", lambda value: value == "" or FILE_NAME.fits(value))
    ] = field(default="", is_sparse=True)
    parameters: Texts = field(default=(), is_sparse=True)
    facts: Annotated[dict[str, str], table_of(TEXT, "a table of text")] = field(
        default_factory=dict, is_sparse=True
    )

    @property
    def table(self) -> TableName:
        """Name of the table."""
        return self.module, frozenset([self.file] if self.file else self.columns)


class ResultAdded(_OfResults):
    """A row of results: a value for each column."""

    row: Row

    @property
    def table(self) -> TableName:
        """Name of the table that the row belongs to."""
        return self.module, frozenset(self.row)


class ResultsShown(_OfResults):
    """State of a table of results that a module writes itself.

    Attributes
    ----------
    file : str
        Its name.
    count : int
        Rows so far.
    best : sequence of dict, or None
        The best rows, best first; None if they are the same as in the record before.
    constants : dict
        Columns that are the same in all rows.
    notes : sequence of str
        Lines to show below the table.
    unranked : dict of str to int
        Numbers of rows that are not ranked, by reason.
    """

    file: Annotated[str, FILE_NAME]
    count: Count
    best: Annotated[Sequence[dict[str, Any]] | None, or_none(list_of(ROW, "a list of tables"))] = (
        field(default=None, is_sparse=True)
    )
    constants: Row = field(default_factory=dict, is_sparse=True)
    notes: Texts = field(default=(), is_sparse=True)
    unranked: Annotated[dict[str, int], table_of(COUNT, "a table of whole numbers")] = field(
        default_factory=dict, is_sparse=True
    )

    @property
    def table(self) -> TableName:
        """Name of the table."""
        return self.module, frozenset([self.file])


class ProgressMade(_OfCopy):
    """Progress of a copy, in a unit of its own; `total` is None where it is not known."""

    done: Annotated[float, NUMBER]
    total: Annotated[float | None, or_none(NUMBER)]
    text: Text


class MessageLogged(_OfCopy):
    """A message of a copy or of the executive; `level` is that of `logging`."""

    level: Text
    text: Text


class TimeAccounted(Record):
    """The times of all ranks and modules."""

    ranks: Annotated[Sequence[RankTimes], list_of_tables(RankTimes, "a list of the times of ranks")]
    modules: Annotated[
        Sequence[ModuleTimes], list_of_tables(ModuleTimes, "a list of the times of modules")
    ]


class RunEnded(Record):
    """The run is over, after `restarts` restarts, with `tuples_left` tuples in the tuple space."""

    exit_code: Annotated[int, INTEGER]
    tuples_left: Annotated[int, ANY] = 0
    restarts: Count = field(default=0, is_sparse=True)


def decode(line: bytes) -> Record:
    """Return the record that a line of a journal holds.

    Raises
    ------
    DamagedRecord
        If the line is no record, or a field that its event needs is missing or of another type.
    RunDirectoryError
        If a newer version of diel has written the records that follow.
    """
    table = parse_json(line)
    if not isinstance(table, dict):
        raise DamagedRecord("it is no table in braces")
    complete(table, _ALWAYS, "it")
    event = table.pop("event")
    kind = EVENTS.get(event)
    if kind is None:
        return _UnknownRecord(time_s=table["time_s"])
    complete(table, kind.layout, event)
    record = object.__new__(kind)
    record.__dict__.update(table)  # all of its fields are there: __init__ has nothing to add
    if isinstance(record, (RunCreated, RunResumed)) and record.format > FORMAT:
        raise RunDirectoryError(
            f"it was written by a newer version of diel, in format {record.format} (this version "
            f"reads up to {FORMAT}): use that version or a later one"
        )
    return record
