"""A rank's part of the trace."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from diel.comm import meter as metering
from diel.comm.meter import Meter, Span
from diel.executive.plans import CopyPlan
from diel.executive.rank_times import SpanRecorder, clock_offset_s, event_of
from diel.run.directory import RunDirectory
from diel.tuples.striping import PieceLayout
from diel.tuples.tags import ANY, encode_tag

PLAN = CopyPlan(7, "g", "m", 1, 2, (3,), 8, (3,), (0, 2), 2)


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def test_a_copy_and_how_it_ended(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    spans = SpanRecorder(directory, 3, Meter())
    before_ns = time.time_ns()
    with spans.copy(PLAN) as about:
        about["ended"] = "finished"
    after_ns = time.time_ns()
    times = spans.close()
    (event,) = events(directory.trace_part(3))
    assert (event["ph"], event["name"], event["cat"], event["tid"]) == ("X", "m.1", "module", 3)
    assert event["args"] == {
        "group": "g",
        "iteration": [0, 2],
        "attempt": 2,
        "ended": "finished",
    }
    slack_ns = 50_000_000  # two clocks, and a machine that does other things
    assert before_ns - slack_ns <= event["ts"] <= event["ts"] + event["dur"] <= after_ns + slack_ns
    assert times.working_s > 0


def test_nothing_is_written_where_nothing_happened(tmp_path: Path) -> None:
    spans = SpanRecorder(RunDirectory(tmp_path), 3, Meter())
    spans.save_if_due()
    spans.close()
    assert list(tmp_path.iterdir()) == []


def test_events_are_written_now_and_then(tmp_path: Path) -> None:
    now_s = [10.0]
    meter = Meter(clock=lambda: now_s[0])
    directory = RunDirectory(tmp_path)
    spans = SpanRecorder(directory, 3, meter)
    spans.save_if_due()
    meter.keep(Span("transfer", 1.0, 2.0, "send"))
    spans.save_if_due()
    assert not directory.trace_part(3).exists()
    now_s[0] += 1.0
    spans.save_if_due()
    assert len(events(directory.trace_part(3))) == 1
    spans.close()


def test_a_note_says_how_many_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "SPANS_KEPT", 2)
    meter = Meter()
    directory = RunDirectory(tmp_path)
    spans = SpanRecorder(directory, 3, meter)
    for _ in range(1002):
        meter.keep(Span("transfer", 1.0, 2.0, "send"))
    spans.close()
    names = [event["name"] for event in events(directory.trace_part(3))]
    assert names == ["send", "send", "1,000 later events are left out"]


def test_a_disk_that_cannot_be_written_costs_the_trace_alone(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("no folder")
    meter = Meter()
    spans = SpanRecorder(RunDirectory(tmp_path), 3, meter)
    meter.keep(Span("transfer", 1.0, 2.0, "send"))
    assert sum(spans.close()[:3]) > 0


@pytest.mark.parametrize(
    ("span", "name", "about"),
    [
        (
            Span("wait", 0, 1, "tget", ("job", ANY)),
            "wait: tget(('job', ANY))",
            {"tag": "('job', ANY)", "what": "tget"},
        ),
        (Span("wait", 0, 1, "work"), "wait: work", {"what": "work"}),
        (
            Span("transfer", 0, 1, "send", encode_tag(("a", 1)), 9),
            "send(('a', 1))",
            {"tag": "('a', 1)", "bytes": 9},
        ),
        (
            Span("transfer", 0, 1, "receive", PieceLayout(b"12345678", 1, 9).piece_keys()[0], 9),
            "receive",
            {"bytes": 9},
        ),
        (Span("transfer", 0, 1, "receive", b"", 9), "receive", {"bytes": 9}),
        (
            Span("tuples", 0, 1, "tput", "x" * 500),
            f"tput('{'x' * 111}...",
            {"tag": repr("x" * 500)},
        ),
    ],
)
def test_how_spans_are_called(span: Span, name: str, about: dict[str, Any]) -> None:
    event = event_of(span, 4, 1000 * 10**9)
    assert (event["name"], event["args"]) == (name, about)
    assert (event["ts"], event["dur"], event["tid"]) == (1000 * 10**9, 10**9, 4)


def test_a_clock_is_told_in_seconds_since_1970() -> None:
    offset_s = clock_offset_s(time.monotonic)
    before_s, now_s, after_s = time.time(), time.monotonic() + offset_s, time.time()
    assert before_s - 0.05 <= now_s <= after_s + 0.05
