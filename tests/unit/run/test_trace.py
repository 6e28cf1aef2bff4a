"""A trace is made of what ranks wrote and of what the journal knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trace_rules import checked_events, spans_of

from diel.errors import RunDirectoryError
from diel.run.directory import RunDirectory
from diel.run.trace import merge_trace, save_trace
from diel.run.trace_part import TracePart, span_event

START_S = 1_700_000_000.25
START_NS = 1_700_000_000_250_000_000


class Run:
    """A run directory whose journal and parts are written by hand; times are in seconds."""

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory(path)
        self.journal: list[dict[str, Any]] = []

    def record(self, at_s: float, event: str, **fields: Any) -> None:
        self.journal.append({"time_s": START_S + at_s, "event": event, **fields})

    def start(self, at_s: float = 0.0, **fields: Any) -> None:
        nodes = [{"host": "node1", "ranks": [2, 3], "gpus": []}]
        given = {"workflow": "w", "ranks": 4, "groups": ["g"], "nodes": nodes, "servers": [1]}
        self.record(at_s, "RunStarted", **(given | fields))

    def group(self, name: str, start_s: float, end_s: float, *iteration: int) -> None:
        self.record(start_s, "GroupStarted", group=name, iteration=iteration)
        self.record(end_s, "GroupFinished", group=name, iteration=iteration, ended_by=None)

    def span(self, rank: int, start_s: float, end_s: float, name: str = "m.0") -> None:
        about = {"group": "g", "iteration": [0], "attempt": 1}
        ends = (START_NS + round(one * 1e9) for one in (start_s, end_s))
        part = TracePart(self.directory, rank)
        part.write([span_event(name, "module", *ends, rank, about)])
        part.close()

    def merge(self) -> list[dict[str, Any]]:
        self.journal.sort(key=lambda record: record["time_s"])
        text = "".join(f"{json.dumps(record)}\n" for record in self.journal)
        self.directory.journal.write_text(text)
        return checked_events(merge_trace(self.directory))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def lines(events: list[dict[str, Any]]) -> dict[int, str]:
    return {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}


def test_the_lines_are_the_ranks_and_times_count_from_the_start(run: Run) -> None:
    run.start()
    run.group("g", 0.5, 2.0, 0)
    run.span(2, 0.75, 1.5)
    events = run.merge()
    assert lines(events) == {
        0: "rank 0: executive",
        1: "rank 1: tuple server",
        2: "rank 2 on node1",
        3: "rank 3 on node1",
    }
    (module,) = spans_of(events, "module")
    assert (module["ts"], module["dur"], module["tid"]) == (750_000.0, 750_000.0, 2)
    assert module["args"] == {"group": "g", "iteration": [0], "attempt": 1}
    (group,) = spans_of(events, "group")
    assert (group["name"], group["ts"], group["dur"], group["tid"]) == ("group g 0", 5e5, 1.5e6, 0)


def test_groups_side_by_side_have_lines_of_their_own_and_nested_ones_share(run: Run) -> None:
    run.start(groups=["outer", "a", "b", "c"], inside={"a": "outer"})
    run.group("outer", 1.0, 5.0, 0)
    run.group("a", 1.0, 2.0, 0, 0)
    run.group("a", 2.0, 3.0, 0, 1)
    run.group("b", 1.5, 2.5, 0)  # inside of nobody, though it lies within "outer"
    run.group("c", 4.0, 6.0, 0)
    events = run.merge()
    found = {event["name"]: event["tid"] for event in spans_of(events, "group")}
    assert found == {
        "group outer 0": 0,
        "group a 0.0": 0,
        "group a 0.1": 0,
        "group b 0": 4,
        "group c 0": 4,
    }
    assert lines(events)[4] == "executive: groups side by side"


def test_what_was_running_when_the_run_was_killed_is_there(run: Run) -> None:
    run.start()
    run.record(1.0, "GroupStarted", group="g", iteration=[0], placement={"m.0": [2], "m.1": [3]})
    run.span(3, 1.5, 2.0, "m.1")  # told by its rank, which then heard of the end
    run.record(4.0, "ProgressMade", module="m", copy=0, done=1, total=2, text="")
    events = run.merge()
    told, cut = sorted(spans_of(events, "module"), key=lambda event: -event["tid"])
    assert "ended" not in told["args"]
    assert (cut["name"], cut["tid"], cut["ts"], cut["dur"]) == ("m.0", 2, 1e6, 3e6)
    assert cut["args"]["ended"] == "cut short"
    (group,) = spans_of(events, "group")
    assert (group["dur"], group["args"]["ended_by"]) == (3e6, "cut short")


def test_what_was_cut_short_begins_after_what_its_rank_has_told(run: Run) -> None:
    run.start()
    run.record(1.0, "GroupStarted", group="g", iteration=[1], placement={"m.0": [2]})
    run.span(2, 0.0, 1.25)
    run.record(3.0, "SomethingElse")
    _, cut = spans_of(run.merge(), "module")
    assert (cut["ts"], cut["dur"]) == (1.25e6, 1.75e6)


def test_a_second_attempt_and_what_a_copy_came_to(run: Run) -> None:
    run.start()
    run.record(1.0, "GroupStarted", group="g", iteration=[0], placement={"m.0": [2]})
    who = {"group": "g", "module": "m", "copy": 0}
    run.record(2.0, "ModuleFailed", **who, error="ValueError: x", detail="long", policy="retry")
    run.record(2.5, "CopiesRestarted", group="g", module="m", copies=[0], attempt=2)
    run.record(3.0, "CopyFinished", **who, returned=None)
    run.record(3.5, "GroupFinished", group="g", iteration=[0], ended_by="iterations")
    run.record(4.0, "RunEnded", exit_code=0)
    events = run.merge()
    notes = [event for event in events if event["ph"] == "i"]
    assert [note["name"] for note in notes] == ["failed: m.0", "starts again: m"]
    assert notes[0]["args"]["error"] == "ValueError: x"
    assert "detail" not in notes[0]["args"]
    assert spans_of(events, "module") == []


def test_a_resumed_run_goes_on_in_the_same_trace(run: Run) -> None:
    run.start()
    run.record(1.0, "GroupStarted", group="g", iteration=[0], placement={"m.0": [2]})
    run.span(2, 0.5, 1.0, "early")
    run.record(2.0, "StopOrdered", reason="because")
    run.record(100.0, "RunResumed", checkpoint=0, file=None, finished={})
    run.start(101.0)
    run.group("g", 101.5, 103.0, 0)
    run.span(2, 102.0, 102.5)
    events = run.merge()
    assert [(event["name"], event["ts"]) for event in spans_of(events, "module")] == [
        ("early", 0.5e6),
        ("m.0", 1.0e6),
        ("m.0", 102e6),
    ]
    ends = [event["ts"] + event["dur"] for event in spans_of(events, "group")]
    assert ends == [2e6, 103e6]  # nothing went on between the two
    assert json.loads(run.directory.trace.read_text())["otherData"] == {"workflow": "w", "runs": 2}


def test_half_a_line_is_passed_over(run: Run) -> None:
    run.start()
    run.span(2, 0.0, 1.0)
    with run.directory.trace_part(2).open("a") as file:
        file.write('{"ph": "X", "name": "m')
    run.span(2, 2.0, 3.0)
    assert [event["ts"] for event in spans_of(run.merge(), "module")] == [0.0, 2e6]


def test_nothing_has_run(run: Run, tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="holds no run that has started"):
        run.merge()
    assert save_trace(run.directory) == ""
    run.directory.journal.write_text('{"time_s": 1, "event": "RunStarted"}\n')
    with pytest.raises(RunDirectoryError, match=r"line 1: .*: RunStarted has no workflow"):
        merge_trace(run.directory)
    assert not run.directory.trace.exists()


def test_a_trace_that_cannot_be_written_is_complained_about(run: Run) -> None:
    run.start()
    run.merge()
    run.directory.trace.unlink()
    run.directory.trace.mkdir()
    assert "trace.json cannot be written" in save_trace(run.directory)
