"""What ranks did and when, read from parts of a trace and cut into steps."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from diel.run.directory import RunDirectory
from diel.run.timeline import Timeline, TimelineSpan, draw_spans


def event(start_s: float, seconds: float, name: str = "a.0", **changes: Any) -> bytes:
    fields = {
        "ph": "X",
        "name": name,
        "cat": "module",
        "ts": round(start_s * 1e9),
        "dur": round(seconds * 1e9),
        "tid": 2,
        "args": {},
    }
    return json.dumps({**fields, **changes}).encode() + b"\n"


@pytest.fixture
def part(tmp_path: Path) -> Path:
    path = RunDirectory(tmp_path).trace_part(2)
    path.parent.mkdir()
    return path


def test_a_part_is_read_as_it_grows(tmp_path: Path, part: Path) -> None:
    timeline = Timeline(RunDirectory(tmp_path))
    timeline.look([2, 3])
    assert timeline.spans(2) == timeline.spans(3) == []
    second = event(2, 1, "wait: work", cat="wait")
    part.write_bytes(event(1, 1) + b"no event\n" + b'{"ph": "X"}\n' + second[:20])
    timeline.look([2])
    assert timeline.spans(2) == [TimelineSpan("module", "a.0", 1.0, 2.0)]
    with part.open("ab") as file:
        file.write(second[20:])
    timeline.look([2])
    assert timeline.spans(2)[1:] == [TimelineSpan("wait", "wait: work", 2.0, 3.0)]
    part.write_bytes(event(5, 1))  # another run, shorter
    timeline.look([2])
    assert [span.start_s for span in timeline.spans(2)] == [5.0]


def test_of_a_huge_part_the_end_is_read(tmp_path: Path, part: Path) -> None:
    with part.open("wb") as file:
        file.truncate(2**34)  # a hole: 16 GiB that take no room
        file.seek(0, 2)
        file.write(b"\n" + event(7, 1))
    timeline = Timeline(RunDirectory(tmp_path))
    timeline.look([2])
    assert [span.start_s for span in timeline.spans(2)] == [7.0]


def test_short_spans_share_a_step_and_the_longest_names_it() -> None:
    spans = [
        TimelineSpan("module", "short", 10.0, 10.01),
        TimelineSpan("module", "longer", 10.02, 10.06),
        TimelineSpan("wait", "within", 12.0, 14.0),
        TimelineSpan("module", "long", 11.0, 15.0),
        TimelineSpan("module", "before", 0.0, 9.0),
        TimelineSpan("module", "over the end", 19.0, 30.0),
    ]
    assert draw_spans(spans, 10.0, 20.0, 10) == [
        (0, 1, "module", "longer"),
        (1, 5, "module", "long"),
        (9, 1, "module", "over the end"),
        (2, 3, "wait", "within"),
    ]
    assert draw_spans(spans, 10.0, 10.0, 10) == []


def test_any_number_of_spans_is_drawn_in_bounded_boxes_that_do_not_overlap() -> None:
    random = Random(7)
    spans = []
    for _ in range(3000):
        start_s = random.uniform(-5, 105)
        spans.append(
            TimelineSpan(
                random.choice(["module", "wait"]), "x", start_s, start_s + random.expovariate(0.5)
            )
        )
    boxes = draw_spans(spans, 0.0, 100.0, 40)
    for kind in ("module", "wait"):
        covered: list[int] = []
        for first, count, _, _ in (box for box in boxes if box[2] == kind):
            assert count > 0
            covered += range(first, first + count)
        assert sorted(set(covered)) == sorted(covered)
        assert set(covered) <= set(range(40))
        touched = {
            step
            for span in spans
            if span.kind == kind
            for step in range(40)
            if span.start_s < (step + 1) * 2.5 and span.end_s >= step * 2.5
        }
        assert set(covered) == touched
